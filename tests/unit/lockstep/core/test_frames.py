"""Records and frames through their codec."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.core.apply_table import APPLY
from lockstep.core.epoch_table import UNKNOWN_REIGN
from lockstep.core.frames import (
    HEADER_BYTES,
    BadFrame,
    Frame,
    LoggedRecord,
    check_frame,
    decode_header,
    decode_records,
    encode_frame,
    encode_record,
    read_frame,
)
from lockstep.core.ids import Epoch, LogIndex, QueueId, QueuePosition, SessionKey, SetName, TimeMs, place
from lockstep.core.records import (
    Alike,
    AnyRecord,
    CommandRef,
    DeclareQueue,
    Dequeue,
    Message,
    PackedPublish,
    Publish,
)
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash

KINDS: list[type[AnyRecord]] = list(get_args(AnyRecord))


def is_encodable(record: AnyRecord) -> bool:
    """MessagePack has no larger numbers than 64 bits, and no log has."""
    try:
        msgspec.msgpack.encode(record)
    except OverflowError:
        return False
    return True


SOME_QUEUES = tuple(map(QueueId, range(300, 500)))
RECORDS = st.one_of([st.from_type(kind) for kind in KINDS]).filter(is_encodable)
BATCHES = st.lists(st.tuples(RECORDS, st.booleans()), min_size=1, max_size=8)


@pytest.mark.fuzz
@given(BATCHES, st.integers(1, 2**40), st.integers(0, 2**40))
def test_what_is_written_into_a_frame_is_read_from_it(
    batch: list[tuple[AnyRecord, bool]], first: int, time_ms: int
) -> None:
    frame = encode_frame(Epoch(7), LogIndex(first), LogIndex(0), TimeMs(time_ms), batch)
    assert encode_frame(Epoch(7), LogIndex(first), LogIndex(0), TimeMs(time_ms), batch, 100 << 20) == frame
    read = read_frame(frame.durable, frame.transient)
    assert read == frame
    assert decode_header(frame.durable) == frame.header
    assert [(found.index, found.record, found.is_durable) for found in decode_records(read)] == [
        (first + place, record, is_durable) for place, (record, is_durable) in enumerate(batch)
    ]


def test_much_is_written_as_little_is() -> None:
    big = Message((QueueId(1), QueueId(300)), b"properties", b"x" * (1 << 16), 7, True, 9)
    small = Message((QueueId(1),), b"", b"small")
    messages = (
        replace(big, queues=()),
        small,
        big,
        replace(big, body=b"y" * ((1 << 16) - 1)),
        *[small] * 20,
        replace(big, body=b"z" * (5 << 20)),
        *[replace(each, queues=tuple(map(QueueId, range(200)))) for each in (small, big)],
        *[replace(each, queues=SOME_QUEUES) for each in (small, big, small, small)],
    )
    alike = Alike((QueueId(1),), True, tuple(len(message.body) for message in messages))
    publish = Publish(CommandRef(SessionKey(9), 4), (LogIndex(3), Epoch(2)), 70_000, messages, alike)
    batch = [
        (DeclareQueue(None, "q", True), True),
        None,
        (publish, True),
        (publish, False),
        *[(publish, True)] * 17,
    ]
    frame = encode_frame(Epoch(7), LogIndex(3), LogIndex(2), TimeMs(1), batch, content_bytes=100 << 20)
    assert frame == encode_frame(Epoch(7), LogIndex(3), LogIndex(2), TimeMs(1), batch)
    assert check_frame(frame.durable) == frame.header


@pytest.mark.parametrize("queues", [1, 100])
@pytest.mark.parametrize("content_bytes", [0, 100 << 20])
def test_what_is_serialised_before_its_frame_is_the_same_there(queues: int, content_bytes: int) -> None:
    many = tuple(map(QueueId, range(queues)))
    messages = tuple(Message(many, b"properties", b"%d" % number) for number in range(20))
    publish = Publish(CommandRef(SessionKey(9), 4), (LogIndex(3), Epoch(2)), 70_000, messages)
    ahead = encode_record(publish)
    declare = DeclareQueue(None, "q", True)
    whole: list[tuple[LoggedRecord, bool] | None] = [(declare, True), None, (publish, True), (publish, False)]
    logged: list[tuple[LoggedRecord, bool] | None] = [(declare, True), None, (ahead, True), (ahead, False)]
    frames = [
        encode_frame(Epoch(7), LogIndex(3), LogIndex(2), TimeMs(1), records, content_bytes)
        for records in (whole, logged)
    ]
    assert frames[0] == frames[1]


@pytest.mark.fuzz
@given(BATCHES, st.data())
def test_a_damaged_frame_is_noticed(batch: list[tuple[AnyRecord, bool]], data: st.DataObject) -> None:
    frame = encode_frame(Epoch(7), LogIndex(1), LogIndex(0), TimeMs(0), batch)
    damaged = bytearray(frame.durable)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadFrame):
        check_frame(bytes(damaged))
    with pytest.raises(BadFrame):
        check_frame(frame.durable[: data.draw(st.integers(0, len(frame.durable) - 1))])


def test_every_kind_of_record_is_applied() -> None:
    assert set(APPLY) == {*KINDS, PackedPublish}


def test_transient_records_leave_only_their_indexes_in_the_durable_part() -> None:
    declare = DeclareQueue(None, "q", True)
    publish = Publish(None, None, 0, (Message((), b"", b"secret"),))
    frame = encode_frame(
        Epoch(1), LogIndex(1), LogIndex(0), TimeMs(0), [(publish, False), (declare, True), (publish, False)]
    )
    assert b"secret" not in frame.durable
    assert [found.index for found in decode_records(frame._replace(transient=b""))] == [2]
    assert frame.header.last == 3
    assert len(frame.durable) == HEADER_BYTES + frame.header.payload_bytes


def test_a_frame_that_does_not_decode_changes_nothing() -> None:
    good = encode_frame(
        Epoch(1), LogIndex(1), LogIndex(0), TimeMs(5), [(DeclareQueue(None, "q", True), True)]
    )
    bad = Frame(good.header, good.durable, b"\xc1")
    state = SetState(SetName("orders"))
    with pytest.raises(BadFrame):
        state.apply_frame(bad)
    assert (state.applied, state.time_ms, state.queues.by_id) == (0, 0, {})


def test_a_frame_that_does_not_follow_is_our_own_bug() -> None:
    frame = encode_frame(
        Epoch(1), LogIndex(2), LogIndex(0), TimeMs(5), [(DeclareQueue(None, "q", True), True)]
    )
    with pytest.raises(AssertionError, match=r"frame 2\.\.2 behind 0"):
        SetState(SetName("orders")).apply_frame(frame)


def test_a_record_names_its_command_as_a_pair() -> None:
    record = Dequeue(CommandRef(3, 4), None, 0, 5, (QueuePosition(place(1, 2)),))  # type: ignore[arg-type]
    frame = encode_frame(Epoch(1), LogIndex(1), LogIndex(0), TimeMs(5), [(record, True)])
    (found,) = decode_records(frame)
    assert found.record.command == CommandRef(3, 4)  # type: ignore[arg-type]
    assert type(found.record.command) is CommandRef


def test_a_frame_says_whose_reign_it_is_where_versions_before_have_nothing() -> None:
    content: list[tuple[AnyRecord, bool]] = [(DeclareQueue(None, "q", True), True)]
    head = Epoch(1), LogIndex(1), LogIndex(0), TimeMs(5), content
    before, frame = encode_frame(*head), encode_frame(*head, reign=0x1234)
    assert (before.header.reign, frame.header.reign) == (UNKNOWN_REIGN, 0x1234)
    assert check_frame(frame.durable) == frame.header
    assert (before.durable[6:8], frame.durable[6:8]) == (b"\0\0", b"\x34\x12"), "read by nobody there"
    state = SetState(SetName("orders"))
    state.apply_frame(frame)
    assert state.epochs.reigns == ((1, 0x1234),)
    other = SetState(SetName("orders"))
    other.apply_frame(before)
    assert state_hash(state) == state_hash(other), "it is no part of the state"
