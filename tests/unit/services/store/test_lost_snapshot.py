"""A step on the snapshot fails and takes with it what was not flushed: nobody goes on from what is no longer there."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.core.frames import Frame, check_frame
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import AppendFrames, LoadState, StateItem, StateLoaded, StoreRefused
from services.store.core.disk import (
    AnyStep,
    DiskError,
    DiskProblem,
    ReadSnapshotItems,
    ReadSnapshotMeta,
    ReadSnapshotValues,
    SnapshotFlush,
    SnapshotWrite,
    Step,
    SyncSegment,
)
from services.store.core.messages import ReaderRequested, Requested, Tick
from services.store.core.requests import ItemsRead, ReadItems, ReadRefused
from services.store.snapshot_db import SnapshotDb, SnapshotFailed
from tests.simulation.disk import VirtualDisk, VirtualSnapshot
from tests.unit.lockstep.core.history import durable_replay
from tests.unit.services.store.crowd import Crowd
from tests.unit.services.store.full_files import files_that_do_not_grow
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig

CHANCES = pytest.mark.parametrize("name", [f"disk {number}" for number in range(8)])
"""Each loses another part of what was not flushed."""


class Set:
    """A set whose snapshot is written with nearly every append and flushed only when a segment goes."""

    def __init__(self, name: str) -> None:
        limits = replace(SMALL, segment_bytes=1 << 20, unconsolidated_bytes=1, unflushed_items_max=1 << 20)
        self.rig = StoreRig(limits, VirtualDisk(name))
        self.rig.disk.fault = self._fail
        self._failing: type[Step] | None = None
        self.rig.open()
        self.crowd = Crowd(self.rig.chance)
        self._sent = 0

    def _fail(self, _set_name: SetName, step: AnyStep) -> None:
        if self._failing is not None and isinstance(step, self._failing):
            self._failing = None
            raise DiskError(DiskProblem.FAILED, "no")

    def fail(self, kind: type[Step]) -> None:
        """The next of this kind."""
        self._failing = kind

    @property
    def has_failed(self) -> bool:
        return self._failing is None

    def grow(self, count: int = 30) -> None:
        for _ in range(count):
            self.crowd.step()
        self.crowd.log.flush()
        frames = self.crowd.log.frames
        for frame in frames[self._sent :]:
            self.rig.append_ok(frame.durable, commit=frame.header.last)
        self._sent = len(frames)

    def tick(self) -> None:
        self.rig.feed(Tick())
        self.rig.run()

    @property
    def snapshot(self) -> VirtualSnapshot:
        return self.rig.disk.directories[SET].snapshot

    @property
    def told_index(self) -> int:
        return self.rig.core.status()[0].snapshot_index

    def load(self) -> object:
        """Answers the last answer; the state, where it came, is the whole one."""
        items, frames, last = self.rig.load()
        if isinstance(last, StateLoaded):
            state = SetState.from_items(SET, (StateItem(key, value, True) for key, value in items.items()))
            for data in frames:
                state.apply_frame(Frame(check_frame(data), data, b""))
            assert state.applied == last.log_end == self.crowd.log.frames[-1].header.last
            expected = durable_replay(self.crowd.log.frames)
            assert list(state.items(transient=False)) == list(expected.items(transient=False))
        return last


@CHANCES
@pytest.mark.parametrize("failing", [SnapshotWrite, SnapshotFlush])
def test_a_broker_gets_the_whole_state_behind_a_failed_write_or_flush(
    name: str, failing: type[SnapshotWrite] | type[SnapshotFlush]
) -> None:
    one = Set(name)
    one.grow()
    assert one.told_index and one.snapshot.unflushed
    one.fail(failing)
    for _ in range(3):  # A second quiet one flushes.
        one.tick()
        one.grow(1)
    assert isinstance(one.load(), StateLoaded)
    one.grow()
    one.tick()
    assert isinstance(one.load(), StateLoaded)


@CHANCES
def test_what_is_said_of_a_lost_snapshot_is_what_was_flushed(name: str) -> None:
    one = Set(name)
    one.grow()
    one.fail(SnapshotWrite)
    while not one.has_failed:
        one.grow(1)
    assert one.told_index == 0
    one.tick()
    one.grow()
    assert one.told_index > 0, "it is consolidated again"


@CHANCES
def test_the_consolidator_does_not_go_on_from_what_a_reader_has_lost(name: str) -> None:
    """Though another reader finds what is left."""
    one = Set(name)
    one.grow()
    one.fail(ReadSnapshotItems)
    (refused,) = one.rig.ask_reader(ReadItems(SET, Epoch(1), b""))
    assert isinstance(refused, ReadRefused)
    assert isinstance(one.rig.ask_reader(ReadItems(SET, Epoch(1), b""))[-1], ItemsRead)
    for _ in range(3):
        one.tick()
        one.grow()
    assert isinstance(one.load(), StateLoaded)


@CHANCES
def test_a_load_that_a_reader_spoils_fails(name: str) -> None:
    """The reader's failure takes what the load has begun to send."""
    one, spoilt = Set(name), 0
    for _ in range(20):
        one.grow()
        one.fail(ReadSnapshotItems)
        before = len(one.rig.answers)
        one.rig.feed(Requested(one.rig.stream, LoadState(SET, Epoch(1), ME)))
        one.rig.feed(ReaderRequested(1000, ReadItems(SET, Epoch(1), b"")))
        one.rig.feed(ReaderRequested(1000, ReadItems(SET, Epoch(1), b"")))
        one.rig.run()
        last = one.rig.answers[-1][1]
        assert len(one.rig.answers) > before and isinstance(last, StateLoaded | StoreRefused)
        assert isinstance(one.rig.read[-1], ItemsRead | ReadRefused)
        spoilt += isinstance(last, StoreRefused)
        if isinstance(last, StoreRefused):
            one.rig.open()
        assert isinstance(one.load(), StateLoaded)
    assert spoilt


def test_where_flushed_items_are_gone_the_set_is_damaged() -> None:
    one = Set("disk")
    one.grow()
    one.snapshot.flush()
    flushed_index = one.told_index
    assert flushed_index
    one.rig.crash(power=False)
    assert one.rig.open().snapshot_index == flushed_index
    one.fail(ReadSnapshotItems)
    (refused,) = one.rig.ask_reader(ReadItems(SET, Epoch(1), b""))
    assert isinstance(refused, ReadRefused) and one.told_index == flushed_index
    one.rig.disk.directories[SET].snapshot = VirtualSnapshot()
    one.rig.ask_reader(ReadItems(SET, Epoch(1), b""))
    assert [note.event for note in one.rig.notes][-1] == "closed"


def test_what_a_set_that_was_opened_again_has_not_flushed_is_not_taken_for_flushed() -> None:
    """Then a step that fails takes it, and nothing that was flushed."""
    one = Set("disk")
    one.grow()
    assert one.told_index and not one.snapshot.flushed_meta
    one.fail(SyncSegment)
    one.crowd.step()
    one.crowd.log.flush()
    (refused,) = one.rig.ask(
        AppendFrames(SET, Epoch(1), ME, (one.crowd.log.frames[-1].durable,), LogIndex(0))
    )
    assert isinstance(refused, StoreRefused)
    one.rig.open()
    one.snapshot.unflushed, one.snapshot.items, one.snapshot.meta = [], {}, b""
    one.fail(ReadSnapshotItems)
    (unread,) = one.rig.ask_reader(ReadItems(SET, Epoch(1), b""))
    assert isinstance(unread, ReadRefused) and one.told_index == 0
    one.grow()
    assert isinstance(one.load(), StateLoaded)
    assert not [note for note in one.rig.notes if note.event in ("damaged", "closed")]


# --- the database -----------------------------------------------------------------------------------------------------


def items_of(index: int) -> tuple[StateItem, ...]:
    return tuple(StateItem(b"%d-%d" % (index, number), bytes(100), True) for number in range(100))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SnapshotDb]:
    made = SnapshotDb(tmp_path / "snapshot")
    made.write(items_of(1), (), b"1")
    made.flush()
    yield made
    made.close()


@pytest.mark.parametrize(
    "step",
    [
        lambda database: database.read_items(b"", 1 << 20),
        lambda database: database.read_values((b"1-1",)),
        lambda database: database.write(items_of(3), (), b"3"),
        lambda database: database.flush(),
    ],
)
def test_a_database_that_had_an_error_does_nothing_until_its_meta_is_read(
    database: SnapshotDb, step: Callable[[SnapshotDb], object]
) -> None:
    database.write(items_of(2), (), b"2")
    with files_that_do_not_grow(16), pytest.raises(SnapshotFailed):
        database.flush()
    for _ in range(2):
        with pytest.raises(SnapshotFailed, match="an error before"):
            step(database)
    index = int(database.read_meta())
    assert index in (1, 2)
    items, _ = database.read_items(b"", 1 << 30)
    assert len(items) == 100 * index
    database.write(items_of(3), (), b"3")
    database.flush()


def test_a_database_that_had_an_error_can_be_cleared(database: SnapshotDb) -> None:
    database.write(items_of(2), (), b"2")
    with files_that_do_not_grow(16), pytest.raises(SnapshotFailed):
        database.flush()
    database.clear()
    database.write(items_of(3), (), b"3")
    assert database.read_meta() == b"3"
    assert len(database.read_items(b"", 1 << 30)[0]) == 100


@pytest.mark.parametrize("end", [SnapshotDb.clear, SnapshotDb.close])
def test_a_database_that_cannot_be_flushed_is_cleared_or_closed_all_the_same(
    database: SnapshotDb, end: Callable[[SnapshotDb], None]
) -> None:
    """Nobody has heard of the error before: what closes a set, or removes it, would be stopped by it, and with it the store."""
    database.write(items_of(2), (), b"2")
    with files_that_do_not_grow(16):
        end(database)
    assert database.read_meta() == (b"1" if end is SnapshotDb.close else b"")
    database.write(items_of(3), (), b"3")
    database.flush()


def test_what_an_interrupted_clearing_left_goes_with_the_next(database: SnapshotDb, tmp_path: Path) -> None:
    database.close()
    (tmp_path / "snapshot").rename(tmp_path / "snapshot.doomed")
    database.clear()
    assert not any(tmp_path.iterdir())


def test_what_a_database_lost_is_what_was_not_flushed(database: SnapshotDb) -> None:
    """Here it does, so that the tests above are not about nothing."""
    database.write(items_of(2), (), b"2")
    with files_that_do_not_grow(16), pytest.raises(SnapshotFailed):
        database.flush()
    assert database.read_meta() == b"1"


def test_only_these_steps_need_a_snapshot_that_is_known() -> None:
    disk = VirtualDisk()
    disk.perform(SET, SnapshotWrite(items_of(1), (), b"1"))
    disk.perform(SET, SnapshotFlush())
    disk.fault = lambda _name, step: _no() if isinstance(step, SnapshotFlush) else None
    with pytest.raises(DiskError):
        disk.perform(SET, SnapshotFlush())
    with pytest.raises(DiskError, match="before this one"):
        disk.perform(SET, ReadSnapshotValues((b"1-1",)))
    assert disk.perform(SET, ReadSnapshotMeta()) == b"1"
    assert disk.perform(SET, ReadSnapshotValues((b"1-1",))) == (bytes(100),)


def _no() -> None:
    raise DiskError(DiskProblem.FAILED, "no")
