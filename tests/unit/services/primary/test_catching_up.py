"""What was cut while a newcomer was sent everything: it follows in turns, as the newcomer makes it durable (R8)."""

import pytest

from lockstep.core.effects import CloseBackupStream, Note
from lockstep.core.frames import Frame, check_frame
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.inputs import Tick, Woken
from lockstep.core.records import DeclareQueue
from lockstep.core.replication import (
    FRAMES_IN_ONE,
    Frames,
    HandedOver,
    SnapshotChunk,
    SubscriptionRefused,
    ToBackup,
)
from services.primary.core.catching_up import CatchingUp
from services.primary.core.settings import PrimarySettings
from tests.unit.services.replicas import SET, MemoryStore, PrimaryBench, copy_of, entry, frames, member

A, B = member("a"), member("b")
WRITTEN = 40


def behind_a_snapshot(settings: PrimarySettings) -> PrimaryBench:
    """B has been sent a whole snapshot, and nothing that it says is known; so much was written meanwhile."""
    bench = PrimaryBench(entry(1, A), settings=settings)
    for number in range(10):
        bench.write(f"q{number}")
    bench.subscribe(1, B)
    for number in range(WRITTEN):
        bench.write(f"behind{number}")
    return bench


def small(**others: int) -> PrimarySettings:
    """One frame is all that may be on its way."""
    return PrimarySettings(retained_bytes_max=0, snapshot_chunk_bytes=1, **others)


def sent(bench: PrimaryBench) -> list[Frame]:
    """The frames that B was sent."""
    said = [message for message in bench.told(1) if isinstance(message, Frames)]
    return [
        Frame(check_frame(durable), durable, transient)
        for message in said
        for durable, transient in message.frames
    ]


def test_frames_behind_a_snapshot_leave_as_the_newcomer_makes_them_durable() -> None:
    bench = behind_a_snapshot(small())
    assert len(sent(bench)) == 1
    while (last := sent(bench)[-1].header.last) < bench.core.log_end:
        before = len(sent(bench))
        bench.feed(Tick(SET))
        assert len(sent(bench)) == before
        bench.acknowledge(1, B, last)
        assert len(sent(bench)) == before + 1
    assert [frame.header.first for frame in sent(bench)] == list(range(12, 12 + WRITTEN))


def test_the_log_goes_directly_when_nothing_waits_behind_the_snapshot() -> None:
    bench = behind_a_snapshot(small(guard_lag=0))
    while sent(bench)[-1].header.last < bench.core.log_end:
        bench.acknowledge(1, B, sent(bench)[-1].header.last)
    for number in range(3):
        assert bench.write(f"direct{number}") == sent(bench)[-1].header.last


def test_a_newcomer_that_is_near_comes_in_while_frames_wait_and_they_go_on() -> None:
    bench = behind_a_snapshot(small(guard_lag=WRITTEN // 2))
    while B not in bench.core.membership.guards:
        bench.acknowledge(1, B, sent(bench)[-1].header.last)
    assert sent(bench)[-1].header.last < bench.core.log_end
    while (last := sent(bench)[-1].header.last) < bench.core.log_end:
        bench.acknowledge(1, B, last)
    bench.acknowledge(1, B, bench.core.log_end)
    assert bench.swaps()[-1].set_map.in_sync == (A, B)


def test_whoever_is_handed_the_set_has_what_waited_before_it_hears_so() -> None:
    bench = behind_a_snapshot(small())
    assert sent(bench)[-1].header.last < bench.core.log_end
    bench.perform(bench.core.hand_over(B.broker, bench.now))
    assert sent(bench)[-1].header.last == bench.core.log_end
    assert not isinstance(bench.told(1)[-1], Frames)


def test_a_newcomer_for_which_too_much_waits_begins_anew() -> None:
    """Otherwise a primary with a big state and much traffic ends for want of memory."""
    bench = behind_a_snapshot(small(catching_up_bytes_max=1000))
    assert CloseBackupStream(SET, 1) in bench.effects
    notes = [effect for effect in bench.effects if isinstance(effect, Note) and effect.is_warning]
    assert [note.event for note in notes] == ["newcomer too slow"]
    assert bench.core.backups.by_stream == {}


def test_a_turn_is_small_and_what_is_on_its_way_is_bounded() -> None:
    catching_up = CatchingUp()
    waiting = frames(1, 1, 9)
    size = len(waiting[0].durable)
    assert {len(frame.durable) for frame in waiting} == {size}
    for each in waiting:
        catching_up.put(each)
    assert catching_up.bytes == 9 * size
    turns = []
    for acknowledged in (0, 0, 0, 1, 2, 6):
        turn = catching_up.turn(LogIndex(acknowledged), 2 * size, 5 * size)
        turns.append([frame.header.last for frame in turn])
    assert turns == [[1, 2], [3, 4], [5], [], [6, 7], [8, 9]]
    assert not catching_up and catching_up.bytes == 0


def test_a_turn_has_no_more_frames_than_a_message_however_small_they_are() -> None:
    catching_up = CatchingUp()
    for each in frames(1, 1, 2 * FRAMES_IN_ONE + 5):
        catching_up.put(each)
    turns = [len(catching_up.turn(LogIndex(0), 1 << 30, 1 << 30)) for _ in range(4)]
    assert turns == [FRAMES_IN_ONE, FRAMES_IN_ONE, 5, 0]


def lacking(bench: PrimaryBench, count: int, *, is_restarted: bool) -> list[ToBackup]:
    """B lacks so many frames; returns what it is told at once."""
    return bench.subscribe(
        1,
        B,
        log_end=bench.core.log_end - count,
        epochs=((Epoch(1), LogIndex(1)),),
        commit_index=2,
        is_memory_whole=not is_restarted,
        applied=2,
    )


MANY = 12 * FRAMES_IN_ONE


def bench_with_many_frames() -> PrimaryBench:
    copy = copy_of(*frames(1, 1, MANY + 2))
    copy.commit(LogIndex(2))
    return PrimaryBench(entry(2, A, B), MemoryStore("disk-a", *frames(1, 1, MANY + 2)), copy)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_member_that_lacks_very_many_frames_gets_them_in_pieces_and_in_order(is_restarted: bool) -> None:
    bench = bench_with_many_frames()
    first = bench.core.log_end - MANY + 1
    told = lacking(bench, MANY, is_restarted=is_restarted)
    assert len([message for message in told if isinstance(message, Frames) and message.frames]) <= 5
    bench.core.context.writer.append(DeclareQueue(None, "behind", True), True)
    bench.feed(Tick(SET))
    while sent(bench)[-1].header.last < bench.core.log_end:
        before = len(bench.told(1))
        bench.feed(Woken(SET))
        told = bench.told(1)[before:]
        assert len(told) <= 5, "a piece"
    assert [frame.header.first for frame in sent(bench)] == list(range(first, bench.core.log_end + 1))
    is_part = [isinstance(message, SnapshotChunk) and message.is_last for message in bench.told(1)]
    assert is_part.count(True) == is_restarted
    if is_restarted:
        frames_before = [m for m in bench.told(1)[: is_part.index(True)] if isinstance(m, Frames)]
        assert sum(len(message.frames) for message in frames_before) >= MANY


def test_whoever_is_handed_the_set_has_all_that_it_lacked_before_it_hears_so() -> None:
    bench = bench_with_many_frames()
    first = bench.core.log_end - MANY + 1
    lacking(bench, MANY, is_restarted=False)
    bench.perform(bench.core.hand_over(B.broker, bench.now))
    turns = 0
    while not bench.core.has_handed_over:
        turns += 1
        bench.perform(bench.core.go_on_handing_over(bench.now))
    assert turns >= 3
    assert [frame.header.first for frame in sent(bench)] == list(range(first, bench.core.log_end + 1))
    assert isinstance(bench.told(1)[-1], HandedOver)


def test_nobody_acknowledges_what_it_was_not_sent_yet() -> None:
    bench = bench_with_many_frames()
    lacking(bench, MANY, is_restarted=False)
    bench.acknowledge(1, B, bench.core.log_end)
    assert CloseBackupStream(SET, 1) in bench.effects
    assert isinstance(bench.told(1)[-1], SubscriptionRefused)
