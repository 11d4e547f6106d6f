"""Requests of more fields than a parser should make objects of: refused before it does, however few bytes they have."""

import logging
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.errors import Rejected
from lockstep.runtime import rpc
from lockstep.runtime.channels import make_server, open_channel
from lockstep.runtime.field_limit import FIELDS_MAX, LOOKED_BYTES_MIN, check_fields, look_at_fields
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.request_limits import request_bytes_max
from lockstep.wire.v1 import cluster_pb2, session_pb2, transactions_pb2

MESSAGE = transactions_pb2.PublishRequest.OutgoingMessage


def fields_of(message: Message) -> int:
    """All of them, as protobuf's own reflection has them; of lists of numbers none are expected."""
    count = 0
    for field, value in message.ListFields():
        values: Iterable[Any] = value if field.is_repeated else (value,)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            count += 3 * len(value)
            continue
        for one in values:
            count += 1
            if isinstance(one, Message):
                count += fields_of(one)
    return count


PUBLISHES = st.builds(
    transactions_pb2.PublishRequest,
    transaction_id=st.text(max_size=5),
    sequence=st.integers(0, 2**64 - 1),
    messages=st.lists(
        st.builds(
            MESSAGE,
            body=st.binary(max_size=300),
            ttl_ms=st.integers(0, 2**40),
            headers=st.dictionaries(st.text("ab", min_size=1), st.text("ab", min_size=1), max_size=3),
        ),
        max_size=4,
    ),
)


def refuses(message: Message | bytes, fields_max: int) -> bool:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    try:
        list(look_at_fields(transactions_pb2.PublishRequest, data, fields_max))
    except Rejected:
        return True
    return False


@given(PUBLISHES)
def test_as_many_as_there_are_and_none_more(request: transactions_pb2.PublishRequest) -> None:
    count = fields_of(request)
    assert not refuses(request, count)
    assert count == 0 or refuses(request, count - 1)


@given(st.binary(max_size=50))
def test_of_what_is_malformed_the_parser_says_so(data: bytes) -> None:
    refuses(data, 100)


def test_what_is_big_in_bytes_is_one_field() -> None:
    assert not refuses(transactions_pb2.PublishRequest(messages=[MESSAGE(body=b"\x2a\x00" * 2**20)]), 2)


@pytest.mark.parametrize("place", ["messages", "bodies of one", "headers of one", "positions"])
def test_no_place_of_a_session_request_has_millions(place: str) -> None:
    message, publish = session_pb2.ClientMessage, session_pb2.ClientMessage.Publish
    request = {
        "messages": session_pb2.SessionRequest(messages=[message()] * (FIELDS_MAX + 1)),
        "bodies of one": session_pb2.SessionRequest(
            messages=[message(publish=publish(bodies=[b""] * FIELDS_MAX))]
        ),
        "headers of one": session_pb2.SessionRequest(
            messages=[message(publish=publish(headers=[session_pb2.Pairs()] * FIELDS_MAX))]
        ),
        "positions": session_pb2.SessionRequest(
            messages=[message(settle=message.Settle(positions=[1] * (40 * FIELDS_MAX)))]
        ),
    }[place]
    with pytest.raises(Rejected, match=f"more than {FIELDS_MAX} fields"):
        check_fields(session_pb2.SessionRequest, request.SerializeToString())


async def test_a_call_s_request_is_refused_before_it_is_parsed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "refusals", LimitLog(logging.getLogger("lockstep.rpc")))
    parsed: list[int] = []

    async def handler(request: transactions_pb2.PublishRequest) -> cluster_pb2.LocateResponse:
        parsed.append(len(request.messages))
        return cluster_pb2.LocateResponse()

    server = make_server(request_bytes_max)
    handlers = {"Publish": rpc.unary(transactions_pb2.PublishRequest, handler)}
    server.add_generic_rpc_handlers([rpc.service("Transactions", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = open_channel(f"127.0.0.1:{port}")
    call: Any = channel.unary_unary("/lockstep.wire.v1.Transactions/Publish")
    empty = transactions_pb2.PublishRequest(messages=[MESSAGE()]).SerializeToString()
    await call(empty * (LOOKED_BYTES_MIN // len(empty) + 1))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(empty * (FIELDS_MAX + 1))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # As TOO_LARGE has it.
    assert parsed == [LOOKED_BYTES_MIN // len(empty) + 1]
    assert [text for text in caplog.messages if "limit=fields_max" in text]
    await channel.close()
    await server.stop(None)
