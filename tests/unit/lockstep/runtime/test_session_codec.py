"""What is encoded is decoded to the same; what is nonsense is rejected, and nothing else happens to it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.asides import Aside
from lockstep.core.deaths import Death, DeathReason
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SetName
from lockstep.core.pieces import at_once
from lockstep.runtime import session_codec
from lockstep.runtime.client_message_codec import COUNT_MAX
from lockstep.runtime.session_codec import (
    MESSAGES_MAX,
    decode_long_response,
    decode_response,
    encode_request,
    encode_response,
)
from lockstep.wire.v1 import session_pb2 as pb
from tests.unit.lockstep.runtime.serialized import decoded, whole
from tests.unit.lockstep.runtime.session_messages import (
    client_messages,
    server_messages,
    wild_client_messages,
)

SET = SetName("s")


@contextmanager
def all_are_looked_at() -> Iterator[None]:
    """For big bodies, however small the whole is."""
    with patch.object(session_codec, "LOOKED_BYTES_MIN", 0):
        yield


@pytest.mark.fuzz
@given(st.lists(client_messages, max_size=4))
def test_every_message_of_a_client_arrives_as_it_was_sent(messages: list[rq.ClientMessage]) -> None:
    data = whole(encode_request(SET, messages))
    assert decoded(data) == (SET, tuple(messages))
    with all_are_looked_at():
        assert decoded(data) == (SET, tuple(messages))


@pytest.mark.fuzz
@given(st.lists(server_messages, min_size=1, max_size=4))
def test_every_message_of_a_primary_arrives_as_it_was_sent(messages: list[sm.AnyServerMessage]) -> None:
    data = whole(encode_response(SET, messages))
    assert decode_response(data) == (SET, tuple(messages)) == at_once(decode_long_response(data))


@pytest.mark.parametrize(
    "change",
    [
        {"delivery_count": 1},
        {"expires_ms": 9},
        {"is_durable": False},
        {"properties": b""},
        {"properties": b"other"},
        {"aside": Aside((Death("q", DeathReason.REJECTED, 1, 2, 3),))},
    ],
    ids=str,
)
def test_one_delivery_that_is_unlike_the_others_and_all_alike_arrive_as_they_were_sent(
    change: dict[str, Any],
) -> None:
    alike = [sm.DeliveredMessage(QueuePosition(n), b"p", b"%d" % n, 0, 0, True) for n in range(3)]
    for changed in ({0}, {1}, {2}, {0, 1, 2}):
        messages = [replace(each, **change) if n in changed else each for n, each in enumerate(alike)]
        told = sm.Deliveries(Epoch(1), LogIndex(2), 3, "q", tuple(messages), False)
        assert decode_response(whole(encode_response(SET, [told]))) == (SET, (told,))


def decode_or_refuse(decode: Callable[[], object]) -> None:
    """Any other exception would stop a primary."""
    try:
        decode()
    except Rejected as rejected:
        if rejected.code is not ErrorCode.INVALID_ARGUMENT:
            raise


@pytest.mark.fuzz
@given(st.binary(max_size=200))
def test_garbage_is_messages_or_a_rejection(garbage: bytes) -> None:
    decode_or_refuse(lambda: decoded(garbage))
    decode_or_refuse(lambda: decode_response(garbage))
    decode_or_refuse(lambda: at_once(decode_long_response(garbage)))


@pytest.mark.fuzz
@given(client_messages, st.data())
def test_a_message_with_bytes_changed_is_messages_or_a_rejection(
    message: rq.ClientMessage, data: st.DataObject
) -> None:
    wire = bytearray(whole(encode_request(SET, [message])))
    for _ in range(data.draw(st.integers(1, 3))):
        wire[data.draw(st.integers(0, min(len(wire), 200) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(lambda: decoded(bytes(wire)))
    with all_are_looked_at():
        decode_or_refuse(lambda: decoded(bytes(wire)))


@pytest.mark.fuzz
@given(wild_client_messages)
def test_whatever_can_be_said_is_understood(message: rq.ClientMessage) -> None:
    try:
        wire = whole(encode_request(SET, [message]))
    except Exception:  # Refused to whoever wants to say it.
        return
    assert len(decoded(wire)[1]) == 1


Publish = pb.ClientMessage.Publish
Settle = pb.ClientMessage.Settle
TX = pb.TransactionName(index=3, epoch=1)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (pb.ClientMessage(number=1), "kind"),
        (pb.ClientMessage(publish=Publish(bodies=[b"a"])), "no number"),
        (pb.ClientMessage(number=1, heartbeat=pb.ClientMessage.Heartbeat()), "has a command number"),
        (pb.ClientMessage(number=1, publish=Publish()), "without messages"),
        (
            pb.ClientMessage(number=1, publish=Publish(bodies=[b""] * 3, properties=[b""] * 2)),
            "column properties has 2",
        ),
        (
            pb.ClientMessage(number=1, publish=Publish(bodies=[b""] * 3, ttls_ms=[1] * 4)),
            "column ttls_ms has 4",
        ),
        (pb.ClientMessage(number=1, publish=Publish(bodies=[b""], ttls_ms=[2**43])), "time to live"),
        (
            pb.ClientMessage(
                number=1, publish=Publish(bodies=[b""], transaction=pb.TransactionName(index=3))
            ),
            "epoch",
        ),
        (pb.ClientMessage(number=1, settle=Settle(disposition=1)), "without positions"),
        (pb.ClientMessage(number=1, settle=Settle(positions=[4])), "disposition 0"),
        (pb.ClientMessage(number=1, settle=Settle(positions=[4], disposition=5)), "disposition 5"),
        (pb.ClientMessage(number=1, settle=Settle(positions=[4, 4], disposition=1)), "twice"),
        (
            pb.ClientMessage(number=1, settle=Settle(positions=[4], disposition=2, transaction=TX)),
            "only an accept",
        ),
        (pb.ClientMessage(number=1, commit=pb.ClientMessage.Commit()), "without index or epoch"),
        (pb.ClientMessage(number=1, begin=pb.ClientMessage.Begin(timeout_ms=2**43)), "time span"),
    ],
)
def test_nonsense_is_rejected_by_name(message: pb.ClientMessage, why: str) -> None:
    with pytest.raises(Rejected, match=why) as raised:
        decoded(pb.SessionRequest(resource_set="s", messages=[message]).SerializeToString())
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT


def test_deliveries_need_a_body_for_every_position() -> None:
    batch = pb.ServerMessage.Batch(positions=[1, 2], bodies=[b""])
    deliveries = pb.ServerMessage.Deliveries(queue="q", batch=batch)
    with pytest.raises(Rejected, match="2 positions for 1 bodies"):
        decode_response(
            pb.SessionResponse(messages=[pb.ServerMessage(deliveries=deliveries)]).SerializeToString()
        )


@pytest.mark.parametrize("column", [{"codes": [0, 1]}, {"messages": ["", "x"]}, {"values": [1, 2]}], ids=str)
def test_one_answer_has_one_of_each(column: dict[str, Any]) -> None:
    answers = pb.ServerMessage.Answers(numbers=[7], **column)
    with pytest.raises(Rejected, match="has 2 values for 1"):
        decode_response(pb.SessionResponse(messages=[pb.ServerMessage(answers=answers)]).SerializeToString())


@pytest.mark.parametrize("column", [{"properties": [b"", b"x"]}, {"ttls_ms": [1, 2]}], ids=str)
def test_one_message_has_one_of_each(column: dict[str, Any]) -> None:
    publish = pb.ClientMessage.Publish(routing_key="q", bodies=[b""], **column)
    with pytest.raises(Rejected, match="has 2 values for 1"):
        decoded(pb.SessionRequest(messages=[pb.ClientMessage(number=1, publish=publish)]).SerializeToString())


def test_what_is_the_same_for_all_messages_is_said_once() -> None:
    messages = tuple(c.OutgoingMessage(b"p", bytes([i]), True, 50) for i in range(100))
    request = pb.SessionRequest.FromString(
        whole(encode_request(SET, [c.PublishCommand(1, "", "q", messages)]))
    )
    publish = request.messages[0].publish
    assert (len(publish.bodies), len(publish.properties), len(publish.are_durable), len(publish.ttls_ms)) == (
        100,
        1,
        1,
        1,
    )
    assert not publish.headers


def test_what_is_more_than_one_step_takes_is_refused_before_anything_is_made_of_it() -> None:
    many = COUNT_MAX + 1
    publish = pb.ClientMessage.Publish(routing_key="q", bodies=[b""] * many)
    columns = pb.ClientMessage.Publish(routing_key="q", bodies=[b""], properties=[b""] * many)
    settle = pb.ClientMessage.Settle(queue="q", positions=range(1, many + 1), disposition=1)
    requests = [
        pb.SessionRequest(messages=[pb.ClientMessage(number=1, publish=publish)]),
        pb.SessionRequest(messages=[pb.ClientMessage(number=1, publish=columns)]),
        pb.SessionRequest(messages=[pb.ClientMessage(number=1, settle=settle)]),
        pb.SessionRequest(
            messages=[pb.ClientMessage(heartbeat=pb.ClientMessage.Heartbeat())] * (MESSAGES_MAX + 1)
        ),
    ]
    for request in requests:
        with pytest.raises(Rejected) as caught:
            decoded(request.SerializeToString())
        assert caught.value.code is ErrorCode.TOO_LARGE
