"""A backup and its own store: what is acknowledged is on this disk, whatever the stream to it swallowed (R2, histories 4, 23)."""

import pytest

from lockstep.core.effects import TellStore
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.replication import FRAMES_IN_ONE, Frames, SubscriptionAccepted
from lockstep.core.store_protocol import AppendFrames
from services.backup.core.backup_memory import BackupState
from tests.unit.services.replicas import SET, BackupBench, MemoryStore, copy_of, frames


def accepted(agreed: int, epoch: int, snapshot_index: int = 0) -> SubscriptionAccepted:
    return SubscriptionAccepted(SET, Epoch(epoch), LogIndex(agreed), LogIndex(snapshot_index), False, (), 0)


def log(epoch: int, first: int, last: int, commit: int = 0) -> Frames:
    parts = tuple((each.durable, each.transient) for each in frames(epoch, first, last))
    return Frames(SET, Epoch(epoch), parts, LogIndex(commit))


def diverging_backup(kept: int) -> BackupBench:
    """Disk: 1..`kept` of epoch 1. The primary of epoch 2 has 1..3 of epoch 1, and 4..6 of its own; the cut to 3 was lost."""
    old = frames(1, 1, kept)
    bench = BackupBench(MemoryStore("disk-b", *old, commit=3), 2, copy_of(*old, commit=3), True)
    bench.is_store_up = False
    bench.hear(accepted(3, 2), log(2, 4, 6, commit=3))
    assert bench.store.content() == [(1, index) for index in range(1, kept + 1)]
    return bench


def test_a_disk_that_missed_the_cut_and_is_as_long_is_cut_before_anything_is_acknowledged() -> None:
    bench = diverging_backup(6)
    bench.lose_store()
    bench.find_store()
    assert bench.store.content() == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]
    assert bench.subscriptions()[-1].log_end == 6


def test_a_disk_that_missed_the_cut_and_is_shorter_gets_no_mixture() -> None:
    bench = diverging_backup(5)
    bench.lose_store()
    bench.find_store()
    assert bench.store.content() == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]


def test_a_disk_that_missed_the_cut_and_is_longer_keeps_the_memory() -> None:
    bench = diverging_backup(9)
    bench.lose_store()
    bench.find_store()
    assert bench.store.content() == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]
    assert bench.core.is_memory_whole
    assert not bench.core.has_lost_memory


def test_what_a_store_did_not_get_is_sent_again_and_only_then_acknowledged() -> None:
    bench = BackupBench(MemoryStore("disk-b"), 1)
    bench.hear(accepted(0, 1))
    bench.is_store_up = False
    bench.hear(log(1, 1, 4))
    bench.pass_ms(500)
    assert bench.acknowledged() == 0
    bench.lose_store()
    bench.find_store()
    assert bench.subscriptions()[-1].log_end == bench.store.log_end == 4


@pytest.mark.parametrize("is_amid", [False, True])
def test_a_memory_whose_disk_goes_on_failing_is_given_up(is_amid: bool) -> None:
    """R5: it cannot stand, and would keep restarted members from it. A disk that takes a piece of what is big has taken none."""
    bench = BackupBench(MemoryStore("disk-b"), 1)
    bench.hear(accepted(0, 1))
    bench.store.is_failing, bench.store.is_failing_amid = not is_amid, is_amid
    bench.hear(log(1, 1, 4))
    bench.pass_ms(4_500)
    assert not bench.core.has_lost_memory
    bench.pass_ms(2_000)
    assert bench.core.has_lost_memory


def test_another_disk_behind_the_stream_takes_the_memory_with_it() -> None:
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 3)), 1)
    bench.lose_store()
    bench.store.disk, bench.store.frames = MemoryStore("new").disk, []
    bench.find_store()
    assert bench.core.has_lost_memory
    assert bench.subscriptions()[-1].log_end == 0


def test_very_many_frames_go_to_a_store_in_few_requests_each_behind_the_one_before() -> None:
    """No step takes longer because it lacks more."""
    count = 2 * FRAMES_IN_ONE + 1
    bench = BackupBench(MemoryStore("disk-b"), 1, copy_of(*frames(1, 1, count)), True)
    told = [effect.request for effect in bench.effects if isinstance(effect, TellStore)]
    appends = [len(request.frames) for request in told if isinstance(request, AppendFrames)]
    assert appends == [FRAMES_IN_ONE, FRAMES_IN_ONE, 1]
    assert bench.subscriptions()[-1].log_end == bench.store.log_end == count


def test_what_a_store_still_lacks_when_it_is_lost_again_is_sent_when_it_is_back() -> None:
    bench = BackupBench(MemoryStore("disk-b"), 1, copy_of(*frames(1, 1, FRAMES_IN_ONE + 5)), True)
    bench.lose_store()
    bench.store.frames = bench.store.frames[:3]
    bench.store.is_failing = True
    bench.find_store()
    assert bench.core.state is BackupState.OPENING
    bench.store.is_failing = False
    bench.pass_ms(4_000)
    assert bench.subscriptions()[-1].log_end == bench.store.log_end == FRAMES_IN_ONE + 5
