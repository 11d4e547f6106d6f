"""Newcomers while deleted queues are cleared: a snapshot is read behind that, and no step clears all of it (R8)."""

from lockstep.core.clearing import CLEARED_IN_ONE
from lockstep.core.inputs import BackupStreamClosed, Tick, Woken
from lockstep.core.replication import SubscriptionAccepted
from services.primary.core.settings import PrimarySettings
from tests.unit.lockstep.core.history import Log
from tests.unit.lockstep.core.test_clearing import MANY, filled
from tests.unit.services.replicas import SET, MemoryStore, PrimaryBench, copy_of, entry, member

A, B, C = member("a"), member("b"), member("c")


def clearing() -> PrimaryBench:
    """A long queue has just been deleted."""
    log = Log()
    filled(log)
    store, copy = MemoryStore("disk-a", *log.frames), copy_of(*log.frames, commit=log.frames[-1].header.last)
    bench = PrimaryBench(entry(1, A), store, copy, settings=PrimarySettings(piece_cost=1))
    assert left(bench) == MANY
    return bench


def left(bench: PrimaryBench) -> int:
    return len(bench.core.context.state.contents)


def test_a_snapshot_is_read_once_what_was_deleted_is_cleared_in_pieces() -> None:
    bench = clearing()
    assert bench.subscribe(1, B) == []
    while not bench.told(1):
        before = left(bench)
        bench.feed(Woken(SET))
        assert before <= left(bench) + CLEARED_IN_ONE
    accepted = bench.told(1)[0]
    assert isinstance(accepted, SubscriptionAccepted) and accepted.snapshot_index == bench.core.log_end
    assert left(bench) == 0


def test_who_needs_the_log_alone_does_not_wait() -> None:
    bench = clearing()
    end, starts = bench.core.log_end, tuple(bench.core.context.state.epochs.entries)
    told = bench.subscribe(1, B, log_end=end, epochs=starts, commit_index=end, is_memory_whole=True)
    assert isinstance(told[0], SubscriptionAccepted) and not told[0].snapshot_index
    assert left(bench) == MANY


def test_who_goes_while_it_waits_is_told_nothing() -> None:
    bench = clearing()
    bench.subscribe(1, B)
    bench.subscribe(2, C)
    bench.feed(BackupStreamClosed(SET, 1))
    while not bench.told(2):
        bench.feed(Woken(SET))
    assert bench.told(1) == []


def test_whoever_else_has_cleared_it_keeps_no_newcomer_waiting() -> None:
    """As a status with the hash of the state does."""
    log = Log()
    filled(log)
    store, copy = MemoryStore("disk-a", *log.frames), copy_of(*log.frames, commit=log.frames[-1].header.last)
    turns = copy.state.clearing.turns()
    assert turns is not None
    next(turns)
    bench = PrimaryBench(entry(1, A), store, copy, settings=PrimarySettings(piece_cost=1))
    assert bench.subscribe(1, B) == []
    for _ in turns:
        pass
    for _ in range(20):
        bench.feed(Tick(SET))
    assert bench.told(1)
