"""Big bodies deep in a stream's message: serialised apart from it, and taken out of it."""

from collections.abc import Sequence
from unittest.mock import patch

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.session_stream import COMMAND_FIELDS_MAX, UnsayableError, check_sayable
from lockstep.core import commands as c
from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.pieces import at_once
from lockstep.runtime import bodies_apart
from lockstep.runtime.big_bytes import BIG_BYTES, PART_BYTES
from lockstep.runtime.bodies_apart import LOOKED_BYTES_MIN, BodiesApart
from lockstep.runtime.session_codec import encode_request
from lockstep.runtime.wire import PIECES_BYTES_MIN
from lockstep.wire.v1 import session_pb2 as pb
from lockstep.wire.v1.transactions_pb2 import PublishRequest
from tests.unit.lockstep.runtime.serialized import decoded, reserialized, whole

SET = SetName("orders")
KEY = (LogIndex(3), Epoch(2))
REQUEST = BodiesApart(
    pb.SessionRequest.DESCRIPTOR, "messages", ("publish", "bodies"), ("commit", "last_publish", "bodies")
)
BIG = 4
"""From this size on bodies are big here."""
bodies = st.lists(st.binary(max_size=2 * BIG), max_size=4)
Publish, Commit = pb.ClientMessage.Publish, pb.ClientMessage.Commit


@st.composite
def pieces_of_messages(draw: st.DrawFn) -> bytes:
    """A message of a client in pieces, of one member or of several, as nobody serialises it."""
    publish = st.builds(
        Publish, exchange=st.sampled_from(("", "x")), bodies=bodies, priorities=st.binary(max_size=BIG)
    )
    piece = st.one_of(
        st.builds(pb.ClientMessage, publish=publish),
        st.builds(pb.ClientMessage, number=st.just(7), publish=publish),
        st.builds(pb.ClientMessage, number=st.integers(0, 2**64 - 1)),
        st.builds(pb.ClientMessage, commit=st.builds(Commit, operations=st.just(1), last_publish=publish)),
        st.builds(pb.ClientMessage, commit=st.builds(Commit, begins=st.just(1))),
        st.builds(pb.ClientMessage, detach=st.just(pb.ClientMessage.Detach())),
    )
    return b"".join(one.SerializeToString() for one in draw(st.lists(piece, max_size=4)))


def request(messages: Sequence[bytes]) -> bytes:
    """With messages that are serialised."""
    parts = [pb.SessionRequest(resource_set="orders").SerializeToString()]
    for message in messages:
        assert len(message) < 0x80 * 0x80
        parts += (bytes((0x12, len(message) & 0x7F | 0x80, len(message) >> 7)), message)
    return b"".join(parts)


def read(data: bytes) -> pb.SessionRequest:
    """With what was taken from it put back."""
    with patch.object(bodies_apart, "PIECES_BYTES_MIN", BIG):
        rest, found = at_once(REQUEST.take_from(data))
    message = pb.SessionRequest.FromString(bytes(rest))
    for place, of_message in found.items():
        one = message.messages[place]
        publish = one.publish if one.WhichOneof("message") == "publish" else one.commit.last_publish
        for at, body in of_message.items():
            assert publish.bodies[at] == b"" and len(body) >= BIG
            publish.bodies[at] = body
    return message


@given(st.lists(pieces_of_messages(), max_size=4))
def test_what_is_taken_from_a_message_goes_back_to_its_place(messages: list[bytes]) -> None:
    data = request(messages)
    assert read(data) == pb.SessionRequest.FromString(data)


@given(st.lists(pieces_of_messages(), min_size=1, max_size=3), st.data())
def test_bytes_that_are_no_message_are_left_to_their_parser(
    messages: list[bytes], data: st.DataObject
) -> None:
    changed = bytearray(request(messages))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    for wire in (bytes(changed), cut):
        try:
            expected = pb.SessionRequest.FromString(wire)
        except DecodeError:
            with pytest.raises(DecodeError):
                read(wire)
        else:
            assert read(wire) == expected


@given(st.lists(st.tuples(st.booleans(), bodies), max_size=4))
def test_bodies_that_are_apart_are_read_as_if_they_had_been_filled_in(
    given: list[tuple[bool, list[bytes]]],
) -> None:
    def filled(is_commit: bool, values: list[bytes]) -> pb.ClientMessage:
        publish = Publish(exchange="x", bodies=values)
        if is_commit:
            return pb.ClientMessage(number=9, commit=Commit(operations=2, last_publish=publish))
        return pb.ClientMessage(number=9, publish=publish)

    left = pb.SessionRequest(
        resource_set="orders", messages=[filled(is_commit, []) for is_commit, _ in given]
    )
    apart = {place: values for place, (_, values) in enumerate(given) if values}
    with patch.object(bodies_apart, "PIECES_BYTES_MIN", BIG):
        data = whole(REQUEST.serialize(left, apart))
    expected = pb.SessionRequest(resource_set="orders", messages=[filled(*one) for one in given])
    assert pb.SessionRequest.FromString(data) == expected
    assert read(data) == expected


def mixed() -> tuple[c.AnyCommand, ...]:
    big = [bytes((number,)) * (PIECES_BYTES_MIN << number) for number in range(6)]
    mixed = (b"first", big[0], b"", big[5], big[1], b"last")
    each = tuple(c.OutgoingMessage(b"p", body, place % 2 == 0) for place, body in enumerate(mixed))
    alike = c.PublishCommand(3, "", "q", AlikeMessages(mixed, b"p"), KEY, 2)
    return (
        c.PublishCommand(1, "x", "k", each),
        c.BeginCommand(2, 0),
        alike,
        c.CommitCommand(
            4, KEY, 3, 1, c.PublishCommand(4, "", "q", (c.OutgoingMessage(b"", big[5]),), KEY, 3)
        ),
        c.PublishCommand(5, "", "q", AlikeMessages((b"small",))),
    )


def test_big_bodies_among_small_ones_keep_their_order_and_are_not_copied_on_their_way_out() -> None:
    commands = mixed()
    encoded = encode_request(SET, commands)
    assert isinstance(encoded, tuple)
    publish = commands[0]
    assert isinstance(publish, c.PublishCommand)
    assert any(piece is publish.messages[3].body for piece in encoded)
    data = whole(encoded)
    assert len(data) > LOOKED_BYTES_MIN
    assert decoded(data) == (SET, commands)
    assert decoded(memoryview(data)) == (SET, commands)


def test_another_implementation_of_protobuf_reads_the_same() -> None:
    encoded = whole(encode_request(SET, mixed()))
    read = reserialized(pb.SessionRequest, encoded)
    assert len(read) < len(encoded), "it was in pieces"
    assert decoded(read) == (SET, mixed())


def test_where_all_fields_are_small_they_are_left_to_the_parser() -> None:
    small = c.PublishCommand(1, "", "q", AlikeMessages((b"x" * 200,) * 9_999 + (b"x" * PIECES_BYTES_MIN,)))
    data = whole(encode_request(SET, [small]))
    assert len(data) > LOOKED_BYTES_MIN
    assert at_once(REQUEST.take_from(data)) == (data, {})
    assert decoded(data) == (SET, (small,))


@pytest.mark.parametrize(
    "body", ["x" * PIECES_BYTES_MIN, bytearray(PIECES_BYTES_MIN), [b""] * PIECES_BYTES_MIN], ids=type
)
def test_what_is_no_bytes_cannot_be_said(body: object) -> None:
    with pytest.raises(UnsayableError) as raised:
        check_sayable(SET, c.PublishCommand(1, "", "q", AlikeMessages((b"", body))))  # type: ignore[arg-type]
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT


def test_fields_are_counted_beside_a_big_body() -> None:
    headers = (("name", "value"),) * (COMMAND_FIELDS_MAX // 3)
    check_sayable(SET, c.PublishCommand(1, "", "q", AlikeMessages((bytes(5 << 20),), headers=headers[:-10])))
    with pytest.raises(UnsayableError) as raised:
        check_sayable(SET, c.PublishCommand(1, "", "q", AlikeMessages((bytes(5 << 20),), headers=headers)))
    assert raised.value.code is ErrorCode.TOO_LARGE


def test_no_step_copies_more_of_bodies_than_a_little() -> None:
    medium = (bytes(BIG_BYTES - 1),) * 4
    encoded = whole(
        encode_request(SET, [c.PublishCommand(1, "", "q", AlikeMessages((bytes(3 * BIG_BYTES), *medium)))])
    )
    steps = list(REQUEST.take_from(memoryview(encoded)))
    assert len(steps) >= 3 * BIG_BYTES // PART_BYTES + len(medium)
    assert len([left for left in steps if left is not None]) == 1, "what is big is put together by a thread"


# --- of a request whose messages have one body each ---

CALL = BodiesApart(PublishRequest.DESCRIPTOR, "messages", ("body",))
Outgoing = PublishRequest.OutgoingMessage
outgoing = st.builds(
    Outgoing,
    body=st.binary(max_size=2 * BIG),
    properties=st.binary(max_size=2 * BIG),
    headers=st.dictionaries(st.sampled_from("ab"), st.text(max_size=3), max_size=2),
    priority=st.integers(0, 9),
)
calls = st.builds(
    PublishRequest,
    transaction_id=st.just("orders/7.1"),
    secret=st.binary(max_size=9),
    messages=st.lists(outgoing, max_size=4),
)


def call_read(data: bytes) -> PublishRequest:
    """With what was taken from it put back."""
    with patch.object(bodies_apart, "PIECES_BYTES_MIN", BIG):
        rest, found = at_once(CALL.take_from(data))
    request = PublishRequest.FromString(bytes(rest))
    for place, of_message in found.items():
        [(at, body)] = of_message.items()
        assert (at, request.messages[place].body) == (0, b"") and len(body) >= BIG
        request.messages[place].body = body
    return request


@given(calls, st.data())
def test_what_is_taken_from_a_call_goes_back_to_its_place(call: PublishRequest, data: st.DataObject) -> None:
    encoded = call.SerializeToString()
    assert call_read(encoded) == call
    changed = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = PublishRequest.FromString(bytes(changed))
    except DecodeError:
        with pytest.raises(DecodeError):
            call_read(bytes(changed))
    else:
        assert call_read(bytes(changed)) == expected


@given(st.lists(st.binary(max_size=2 * BIG), min_size=2, max_size=3))
def test_of_several_bodies_of_one_message_the_last_is_its_body(several: list[bytes]) -> None:
    message = b"".join(b"\x0a" + bytes((len(body),)) + body for body in several)
    encoded = b"\x2a" + bytes((len(message),)) + message
    assert call_read(encoded).messages[0].body == several[-1]


@given(st.lists(outgoing, max_size=4))
def test_a_call_is_read_as_if_its_bodies_had_been_filled_in(
    messages: list[PublishRequest.OutgoingMessage],
) -> None:
    call = PublishRequest(sequence=3, messages=messages, is_forwarded=True)
    left = PublishRequest()
    left.CopyFrom(call)
    apart = {place: (message.body,) for place, message in enumerate(messages) if len(message.body) >= BIG}
    for place in apart:
        left.messages[place].ClearField("body")
    with patch.object(bodies_apart, "PIECES_BYTES_MIN", BIG):
        assert PublishRequest.FromString(whole(CALL.serialize(left, apart))) == call
