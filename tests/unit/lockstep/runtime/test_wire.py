"""Serialising big bytes behind a message, and taking them out of it."""

from contextlib import suppress
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.pieces import at_once
from lockstep.runtime import wire
from lockstep.runtime.wire import PIECES_BYTES_MIN, BytesWithin, parse, parse_answer, parse_in_steps
from lockstep.wire.v1.primary_pb2 import SubscribeResponse
from lockstep.wire.v1.transactions_pb2 import PublishRequest
from tests.unit.lockstep.runtime.serialized import reserialized, whole

DURABLE = BytesWithin(SubscribeResponse.DESCRIPTOR, "frames", "durable")
BOTH = BytesWithin(SubscribeResponse.DESCRIPTOR, "frames", "transient", "durable")


def response(*durable: bytes) -> SubscribeResponse:
    frames = SubscribeResponse.Frames(durable=durable, transient=[b"t"], commit_index=300)
    return SubscribeResponse(resource_set="orders", epoch=5, frames=frames)


def in_pieces(message: SubscribeResponse, values: list[bytes]) -> bytes:
    """As if the values were big."""
    with patch.object(wire, "PIECES_BYTES_MIN", 0):
        return whole(DURABLE.serialize_with(message, values))


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_values_are_read_as_if_they_had_been_filled_in(values: list[bytes]) -> None:
    for encoded in (whole(DURABLE.serialize_with(response(), values)), in_pieces(response(), values)):
        assert SubscribeResponse.FromString(encoded) == response(*values)


def test_values_follow_those_that_the_message_has() -> None:
    encoded = in_pieces(response(b"first"), [b"second"])
    assert SubscribeResponse.FromString(encoded) == response(b"first", b"second")
    assert (
        whole(DURABLE.serialize_with(response(b"first"), [b"second"]))
        == response(b"first", b"second").SerializeToString()
    )


@pytest.mark.parametrize("size", [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 0x1FFFFF, 0x200000])
def test_sizes_of_one_to_four_bytes(size: int) -> None:
    values = [b"x" * size, b"y"]
    assert SubscribeResponse.FromString(in_pieces(response(), values)) == response(*values)


def test_another_implementation_of_protobuf_reads_the_same() -> None:
    encoded = in_pieces(response(), [b"one", b"two"])
    read = reserialized(SubscribeResponse, encoded)
    assert SubscribeResponse.FromString(read) == response(b"one", b"two")


def test_big_values_stay_pieces_and_small_ones_do_not() -> None:
    big = b"x" * PIECES_BYTES_MIN
    pieces = DURABLE.serialize_with(response(), [big, b"y"])
    assert isinstance(pieces, tuple)
    assert pieces[1] is big
    assert isinstance(DURABLE.serialize_with(response(), [b"x", b"y"]), bytes)
    assert DURABLE.serialize_with(response(), []) == response().SerializeToString()


def test_what_is_small_beside_a_big_field_is_put_into_the_message() -> None:
    big = b"x" * PIECES_BYTES_MIN
    pieces = BOTH.serialize_with(response(), [b""], [big])
    assert isinstance(pieces, tuple)
    assert len(pieces) == 2
    assert pieces[1] is big
    expected = response(big)
    expected.frames.transient.append(b"")
    assert SubscribeResponse.FromString(whole(pieces)) == expected


@pytest.mark.parametrize("small", [[], [b""], [b"some"]])
def test_who_has_nothing_but_values_is_there_when_they_are_taken(small: list[bytes]) -> None:
    message = SubscribeResponse(resource_set="orders", epoch=5)
    message.frames.SetInParent()
    data = whole(BOTH.serialize_with(message, small, [b"x" * PIECES_BYTES_MIN]))
    for rest, found in (BOTH.split_from(data), at_once(BOTH.split_in_steps(data))):
        assert len(found[1]) == 1
        assert parse(SubscribeResponse(), rest).WhichOneof("response") == "frames"


@pytest.mark.parametrize("place", range(3))
def test_a_message_that_is_of_another_kind_too_is_left_to_its_parser(place: int) -> None:
    pieces = [SubscribeResponse(frames=SubscribeResponse.Frames(durable=[b"%d" % n])) for n in range(2)]
    pieces.insert(place, SubscribeResponse(accepted=SubscribeResponse.Accepted(agreed=1)))
    data = b"".join(piece.SerializeToString() for piece in pieces)
    assert read(data) == SubscribeResponse.FromString(data)


def read(data: bytes) -> SubscribeResponse:
    """With what was split from it put behind again."""
    with patch.object(wire, "PIECES_BYTES_MIN", 0):
        rest, (values,) = DURABLE.split_from(data)
    in_steps, (of_steps,) = at_once(DURABLE.split_in_steps(data))
    assert (in_steps, [*of_steps]) == (rest, [*values])
    message = parse(SubscribeResponse(), rest)
    if values:
        message.frames.durable.extend(values)
    return message


@given(st.lists(st.binary(max_size=300), max_size=4), st.lists(st.binary(max_size=300), max_size=4))
def test_what_was_put_behind_a_message_is_split_from_it(first: list[bytes], values: list[bytes]) -> None:
    data = in_pieces(response(*first), values)
    with patch.object(wire, "PIECES_BYTES_MIN", 0):
        rest, (found,) = DURABLE.split_from(data)
    assert [*found] == values
    assert SubscribeResponse.FromString(bytes(rest)) == response(*first)


@given(st.lists(st.builds(SubscribeResponse.Frames, durable=st.lists(st.binary(max_size=9), max_size=3))))
def test_pieces_that_another_made_keep_their_order(pieces: list[SubscribeResponse.Frames]) -> None:
    data = b"".join(SubscribeResponse(frames=piece, epoch=7).SerializeToString() for piece in pieces)
    assert read(data) == SubscribeResponse.FromString(data)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused_by_its_parser(garbage: bytes) -> None:
    data = response(b"first").SerializeToString() + garbage
    try:
        expected = parse(SubscribeResponse(), data)
    except Rejected:
        with suppress(Rejected):
            assert not read(data)
    else:
        assert read(data) == expected


def test_a_message_that_is_cut_short_is_refused() -> None:
    data = in_pieces(response(), [b"one", b"two"])
    for size in range(len(data) - len(b"two"), len(data)):
        with pytest.raises(Rejected):
            read(data[:size])


def test_a_message_of_very_many_fields_is_left_to_its_parser() -> None:
    data = SubscribeResponse(epoch=1).SerializeToString() * PIECES_BYTES_MIN
    data += in_pieces(SubscribeResponse(), [b"value"])
    assert DURABLE.split_from(data) == (data, ((),))
    assert DURABLE.split_from(b"\x80" * PIECES_BYTES_MIN)[1] == ((),)


SOME = st.lists(st.binary(max_size=300), max_size=4)


@given(SOME, SOME)
def test_values_of_two_fields_are_read_and_split_each_in_its_order(
    transient: list[bytes], durable: list[bytes]
) -> None:
    message = SubscribeResponse(epoch=5, frames=SubscribeResponse.Frames(commit_index=300))
    expected = SubscribeResponse.FromString(message.SerializeToString())
    expected.frames.transient.extend(transient)
    expected.frames.durable.extend(durable)
    with patch.object(wire, "PIECES_BYTES_MIN", 0):
        data = whole(BOTH.serialize_with(message, transient, durable))
        rest, found = BOTH.split_from(data)
    assert SubscribeResponse.FromString(data) == expected
    read = parse(SubscribeResponse(), rest)
    read.frames.transient.extend(found[0])
    read.frames.durable.extend(found[1])
    assert read == expected


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_big_in_one_of_two_fields_is_not_copied(place: int) -> None:
    big = b"x" * PIECES_BYTES_MIN
    values = [[b""], [b""]]
    values[place] = [big]
    pieces = BOTH.serialize_with(response(), *values)
    assert isinstance(pieces, tuple) and any(piece is big for piece in pieces)
    rest, found = BOTH.split_from(whole(pieces))
    assert len(rest) < 100 and found[place] == [big]


MESSAGES = st.lists(
    st.builds(
        PublishRequest.OutgoingMessage,
        body=st.binary(max_size=20),
        headers=st.dictionaries(st.sampled_from("ab"), st.text(max_size=3), max_size=2),
    ),
    max_size=5,
)


@given(MESSAGES, MESSAGES, st.data())
def test_what_is_parsed_in_steps_is_what_a_parser_makes_of_it(
    first: list[PublishRequest.OutgoingMessage],
    second: list[PublishRequest.OutgoingMessage],
    data: st.DataObject,
) -> None:
    """A message may come in pieces, and bytes that are none are refused."""
    wire_bytes = bytearray(
        PublishRequest(sequence=1, exchange="x", messages=first).SerializeToString()
        + PublishRequest(sequence=7, routing_key="q", messages=second).SerializeToString()
    )
    for _ in range(data.draw(st.integers(0, 2))):
        wire_bytes[data.draw(st.integers(0, len(wire_bytes) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(wire_bytes[: data.draw(st.integers(0, len(wire_bytes)))])
    for each in (bytes(wire_bytes), cut):
        try:
            expected = parse(PublishRequest(), each)
        except Rejected:
            with patch.object(wire, "_FIELDS_A_STEP", 2), pytest.raises(Rejected):
                at_once(parse_in_steps(PublishRequest(), each))
            continue
        with patch.object(wire, "_FIELDS_A_STEP", 2):
            assert at_once(parse_in_steps(PublishRequest(), each)) == expected
            assert at_once(parse_in_steps(PublishRequest(), memoryview(each))) == expected


def test_no_step_of_a_parser_takes_more_than_some_of_the_fields() -> None:
    message = PublishRequest.OutgoingMessage(body=bytes(1 << 18))
    data = PublishRequest(messages=[message] * 40).SerializeToString()
    assert len(list(parse_in_steps(PublishRequest(), data))) >= 8
    data = PublishRequest(messages=[PublishRequest.OutgoingMessage()] * 10_000).SerializeToString()
    assert len(list(parse_in_steps(PublishRequest(), data))) >= 10


@pytest.mark.parametrize(("is_read", "kind"), [(True, Rejected), (False, InDoubt)])
def test_an_answer_that_is_none_says_whose_it_is_and_not_that_the_question_was_wrong(
    is_read: bool, kind: type[LockstepError]
) -> None:
    with pytest.raises(kind) as caught:
        parse_answer(SubscribeResponse(), b"\xff\xff", "broker b", is_read=is_read)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.message == "broker b has answered what is no answer: 2 bytes are no SubscribeResponse"
    assert parse_answer(SubscribeResponse(), b"", "broker b", is_read=is_read) == SubscribeResponse()
