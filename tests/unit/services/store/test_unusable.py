"""What is whole by its checksums and no good all the same: records of a committed frame that cannot be applied, a snapshot of
no state. It is damage of its set, and of no other (DESIGN R10).
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.frames import HEADER_BYTES
from lockstep.core.ids import DiskId, Epoch, LogIndex, SetName
from lockstep.core.items import QUEUE
from lockstep.core.records import DeclareExchange
from lockstep.core.store_protocol import (
    AcceptDamage,
    AnyStoreAnswer,
    Appended,
    AppendFrames,
    BeginInstall,
    EndInstall,
    InstallItems,
    OpenSet,
    SetAside,
    SetOpened,
    StateItem,
    StoreRefused,
)
from services.store.core import consolidator
from services.store.core.blocks import damage
from services.store.core.disk import AnyStep, Compute, DiskProblem, Unusable, WriteMeta
from services.store.core.messages import Tick
from services.store.core.segment import FramesAt
from services.store.core.stored_set import StoredSet
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, frame, summed
from tests.unit.services.store.test_installing import content_frame, items_at
from tests.unit.services.store.test_unreadable import fail, place_of

OTHER = SetName("other")
BAD = 5
FRAMES_MAX = 300


def carrying(records: object) -> bytes:
    """A frame at `BAD` with these instead of records."""
    payload = msgspec.msgpack.encode(records)
    head = bytearray(frame(BAD)[: HEADER_BYTES - 4])
    head[8:12] = len(payload).to_bytes(4, "little")
    return summed(bytes(head), payload)


UNUSABLE = {
    "of a kind that is none": frame(BAD, records=[DeclareExchange(None, "e", "nonsense", True)]),
    "no record": carrying([(0, ("nonsense",))]),
    "outside of its indexes": carrying([(7, (10, None, None, 0, []))]),
    "a message that is none": carrying([(0, (10, None, None, 0, [([1], b"", 5)]))]),
}


def grow(rig: StoreRig, bad: bytes) -> AnyStoreAnswer:
    """Append until something is refused, or there is enough."""
    answer: AnyStoreAnswer | None = None
    for index in range(1, FRAMES_MAX):
        answer = rig.append(bad if index == BAD else content_frame(index), commit=index - 1)
        if not isinstance(answer, Appended):
            return answer
        if index % 50 == 0:
            rig.feed(Tick())
            rig.run()
    assert answer is not None
    return answer


@pytest.fixture(params=list(UNUSABLE))
def rig(request: pytest.FixtureRequest) -> StoreRig:
    """Two sets, of which one has met such a frame."""
    rig = StoreRig(SMALL)
    rig.ask(OpenSet(OTHER, Epoch(1), ME), stream=50)
    rig.open()
    refused = grow(rig, UNUSABLE[request.param])
    assert isinstance(refused, StoreRefused) and refused.code is ErrorCode.UNAVAILABLE
    return rig


def test_a_frame_that_cannot_be_applied_is_damage_of_its_set_and_others_go_on(rig: StoreRig) -> None:
    (answer,) = rig.ask(AppendFrames(OTHER, Epoch(1), ME, (frame(1),), LogIndex(0)), stream=50)
    assert isinstance(answer, Appended) and answer.log_end == 1
    opened = rig.open()
    assert opened.log_end < BAD, "the log ends before it"
    assert opened.is_unusable
    assert "cannot be applied" in opened.damage or "cannot be written" in opened.damage
    assert {"disk failed", "closed", "damaged"} <= {note.event for note in rig.notes}
    damages = {status.set_name: status.damage for status in rig.core.status()}
    assert damages == {SET: opened.damage, OTHER: ""}


def test_it_stays_damage_until_the_set_is_set_aside(rig: StoreRig) -> None:
    opened = rig.open()
    assert (opened.damage, opened.is_unusable) == (rig.open().damage, True) and opened.damage
    (empty,) = rig.ask(SetAside(SET, Epoch(1), ME))
    assert isinstance(empty, SetOpened) and (empty.log_end, empty.damage, empty.is_unusable) == (0, "", False)
    assert rig.append_ok(frame(1)) == 1
    assert rig.open().damage == ""


def test_what_lies_before_it_is_there_for_an_operator_to_go_on_with(rig: StoreRig) -> None:
    """R7: also for the next process, which would meet the frame again if that were not cut off."""
    opened = rig.open()
    assert not opened.has_no_state
    end = opened.log_end
    (accepted,) = rig.ask(AcceptDamage(SET, Epoch(1), ME))
    assert isinstance(accepted, SetOpened) and (accepted.log_end, accepted.damage) == (end, "")
    for index in range(end + 1, FRAMES_MAX):
        assert rig.append_ok(content_frame(index), commit=index - 1) == index
        if index % 50 == 0:
            rig.feed(Tick())
            rig.run()
    rig.crash()
    opened = rig.open(2)
    assert (opened.log_end, opened.damage) == (FRAMES_MAX - 1, "") and opened.snapshot_index > BAD


def without_queue(items: tuple[StateItem, ...]) -> tuple[StateItem, ...]:
    return tuple(item for item in items if item.key[:1] != QUEUE)


NO_STATES: dict[str, Callable[[tuple[StateItem, ...]], tuple[StateItem, ...]]] = {
    "an item of a kind that is none": lambda items: (*items, StateItem(b"?1", b"", True)),
    "a key that is none": lambda items: (*items, StateItem(QUEUE, b"", True)),
    "entries of no queue": without_queue,
    "items of another index": lambda items: items_at(7),
}


@pytest.mark.parametrize("make", NO_STATES.values(), ids=list(NO_STATES))
def test_a_snapshot_that_was_sent_and_is_that_of_no_state_is_damage_of_its_set_alone(
    make: Callable[[tuple[StateItem, ...]], tuple[StateItem, ...]],
) -> None:
    """Nobody looks at what is installed before it is needed."""
    rig = StoreRig(SMALL)
    rig.ask(OpenSet(OTHER, Epoch(1), ME), stream=50)
    rig.open()
    head, table = (SET, Epoch(1), ME), ((Epoch(1), LogIndex(1)),)
    rig.ask(BeginInstall(*head, LogIndex(9), table, 7))
    rig.ask(InstallItems(*head, make(items_at(9))))
    rig.ask(EndInstall(*head))
    for index in range(10, FRAMES_MAX):
        if not isinstance(rig.append(frame(index), commit=index - 1), Appended):
            break
        if index % 50 == 0:
            rig.feed(Tick())
            rig.run()
    opened = rig.open()
    assert "the snapshot" in opened.damage and opened.log_end == 0 and opened.has_no_state
    (refused,) = rig.ask(AcceptDamage(SET, Epoch(1), ME))
    assert isinstance(refused, StoreRefused) and "nothing undamaged is left" in refused.message
    (answer,) = rig.ask(AppendFrames(OTHER, Epoch(1), ME, (frame(1),), LogIndex(0)), stream=50)
    assert isinstance(answer, Appended)
    (empty,) = rig.ask(SetAside(SET, Epoch(1), ME))
    assert isinstance(empty, SetOpened) and (empty.log_end, empty.damage) == (0, "")
    assert rig.append_ok(frame(1)) == 1


@pytest.mark.parametrize("first", [0, 1, BAD])
def test_what_was_no_good_once_is_read_anew_and_condemns_no_disk(first: int) -> None:
    """It may have been a fault of what was in memory."""
    rig = StoreRig(SMALL)
    rig.open()
    failed: list[AnyStep] = []

    def fault(set_name: SetName, step: AnyStep) -> None:
        if isinstance(step, Compute) and not failed:
            failed.append(step)
            raise Unusable(LogIndex(first), "a fault of memory")

    rig.disk.fault = fault
    for index in range(1, FRAMES_MAX):
        assert rig.append_ok(content_frame(index), commit=index - 1) == index
        if index % 50 == 0:
            rig.feed(Tick())
            rig.run()
    assert failed
    opened = rig.open()
    assert (opened.log_end, opened.damage) == (FRAMES_MAX - 1, "") and opened.snapshot_index > BAD


def test_of_two_places_that_are_no_good_the_first_is_where_the_log_ends() -> None:
    the = StoredSet(SET, SMALL)
    the.found_corrupt("a frame", LogIndex(7), is_unusable=True)
    the.found_corrupt("the snapshot", LogIndex(0), is_unusable=False)
    the.found_corrupt("a frame", LogIndex(5), is_unusable=True)
    assert (the.corruption, the.corrupt_from, the.is_unusable) == ("the snapshot", 0, False)


class NoMemory:
    """In the place of a state, and of what has changed in it."""

    applied = LogIndex(0)

    def apply_frame(self, frame: object) -> None:
        raise MemoryError

    def take(self, state: object, written: LogIndex) -> None:
        raise MemoryError


def test_a_process_that_has_no_memory_left_says_nothing_of_its_disks() -> None:
    """It ends: what is whole is whole for the next one."""
    no_memory, data = cast(Any, NoMemory()), frame(1)
    run = FramesAt(1, 0, len(data), ((0, len(data)),), LogIndex(1))
    with pytest.raises(MemoryError):
        consolidator._apply(no_memory, run, data)
    with pytest.raises(MemoryError):
        consolidator._take_changes(no_memory, no_memory, LogIndex(0))
    with pytest.raises(MemoryError), damage():
        raise MemoryError


def test_where_bytes_are_wrong_before_it_that_is_the_damage() -> None:
    rig = StoreRig(SMALL)
    rig.open()
    bad = UNUSABLE["no record"]
    grow(rig, bad)
    assert rig.open().is_unusable
    number, offset = place_of(rig, bad)
    rig.disk.flip_bit(SET, number, offset + len(bad) - 1, 0)
    fail(rig, WriteMeta, DiskProblem.FAILED)
    (refused,) = rig.ask(OpenSet(SET, Epoch(2), ME))
    assert isinstance(refused, StoreRefused), "it is read anew behind that"
    rig.disk.fault = None
    opened = rig.open(2)
    assert (opened.log_end, opened.is_unusable) == (BAD - 1, False) and "checksum" in opened.damage


def asked(rig: StoreRig, first: int, disk: DiskId) -> AnyStoreAnswer:
    """Its broker cannot use what the store finds nothing wrong with, from there on, and an operator accepts the loss."""
    (answer,) = rig.ask(AcceptDamage(SET, Epoch(1), ME, disk, LogIndex(first), "no good to its broker"))
    return answer


def test_what_only_its_broker_cannot_use_is_cut_off_where_that_says_for_whoever_opens_it_next() -> None:
    rig = StoreRig(SMALL)
    disk = rig.open().disk
    for index in range(1, 9):
        assert rig.append_ok(frame(index), commit=index - 1) == index
    answer = asked(rig, BAD, disk)
    assert isinstance(answer, SetOpened)
    assert (answer.log_end, answer.commit_index, answer.damage, answer.is_unusable) == (4, 4, "", False)
    assert rig.append_ok(frame(BAD, epoch=1)) == BAD
    (note,) = [note.details for note in rig.notes if note.event == "damage accepted"]
    assert note.startswith("no good to its broker: the log ends at 4, 7 was committed")
    rig.crash()
    opened = rig.open(2)
    assert (opened.log_end, opened.damage, opened.disk) == (BAD, "", disk)


def test_nothing_ends_for_whoever_names_another_disk_or_what_a_snapshot_has() -> None:
    rig = StoreRig(SMALL)
    disk = rig.open().disk
    grow(rig, content_frame(BAD))
    snapshot = rig.open().snapshot_index
    assert snapshot > BAD
    for first, named in ((BAD, disk), (snapshot, disk), (FRAMES_MAX - 1, DiskId("another"))):
        refused = asked(rig, first, named)
        assert isinstance(refused, StoreRefused) and refused.code is ErrorCode.ILLEGAL_STATE
        opened = rig.open()
        assert (opened.log_end, opened.damage) == (FRAMES_MAX - 1, "")
    accepted = asked(rig, snapshot + 1, disk)
    assert isinstance(accepted, SetOpened) and accepted.log_end == snapshot
