"""Keeping the map while backups come and go: what waits, what completes (R3 to R5, histories 4, 12, 14, 21, 22)."""

from dataclasses import replace

import pytest
from msgspec import structs

from lockstep.core.cluster_map import Member
from lockstep.core.effects import CloseBackupStream
from lockstep.core.ids import BrokerId, Epoch, Incarnation, LogIndex
from lockstep.core.inputs import BackupSaid, BackupStreamClosed, MapSeen, PresencesSeen, SwapAnswered, Verdict
from lockstep.core.replication import Acknowledge, Frames, SubscriptionRefused
from tests.unit.services.replicas import SET, MemoryStore, PrimaryBench, copy_of, entry, frames, member, seen

A, B, C = member("a"), member("b"), member("c")
B1 = member("b", 1)
EPOCH_1 = ((Epoch(1), LogIndex(1)),)


def serving(*others: Member, min_in_sync: int = 1) -> PrimaryBench:
    """Primary a with all the others subscribed, one stream each from 1 on, and the epoch's record committed."""
    bench = PrimaryBench(entry(1, A, *others, min_in_sync=min_in_sync))
    for stream, who in enumerate(others, 1):
        bench.subscribe(stream, who, log_end=1, epochs=EPOCH_1, is_memory_whole=True)
    assert bench.core.is_serving
    return bench


def present(*members: Member) -> PresencesSeen:
    return PresencesSeen(SET, tuple((each.broker, each.incarnation, 5) for each in members))


def answer(bench: PrimaryBench, verdict: Verdict, revision: int = 0) -> None:
    bench.feed(SwapAnswered(SET, bench.swaps()[-1].request, verdict, revision))


# --- serving ----------------------------------------------------------------------------------------------------------


def test_nothing_is_served_before_the_epochs_record_is_at_every_member_of_the_map() -> None:
    """History 14."""
    bench = PrimaryBench(entry(1, A, B))
    bench.pass_ms(1_000)
    assert not bench.core.is_serving
    bench.subscribe(1, B, is_memory_whole=True)
    bench.pass_ms(500)
    assert bench.core.commit_index == 0
    bench.acknowledge(1, B, 1)
    assert bench.core.is_serving


def test_nothing_of_an_earlier_epoch_is_committed_before_this_epochs_record() -> None:
    """R5: any of the suffix may have been acknowledged, but only this epoch's record makes it this set's."""
    held = frames(1, 1, 4)
    bench = PrimaryBench(entry(2, A, B), MemoryStore("disk-a", *held), copy_of(*held, commit=1))
    bench.subscribe(1, B, log_end=2, epochs=EPOCH_1, is_memory_whole=True, applied=1)
    bench.acknowledge(1, B, 4)
    assert bench.core.commit_index == 1
    bench.acknowledge(1, B, 5)
    assert bench.core.commit_index == 5


# --- losing a backup --------------------------------------------------------------------------------------------------


def test_what_waited_for_a_lost_backup_completes_when_its_removal_is_confirmed() -> None:
    bench = serving(B)
    index = bench.write("waits")
    bench.feed(BackupStreamClosed(SET, 1))
    (swap,) = bench.swaps()
    assert swap.set_map.in_sync == (A,)
    assert bench.core.commit_index == 1
    answer(bench, Verdict.DONE, 11)
    assert bench.core.commit_index == index


def test_a_backup_that_says_nothing_for_three_heartbeats_is_lost() -> None:
    """History 21: one frozen, one well."""
    bench = serving(B, C)
    index = bench.write("waits")
    for _ in range(10):
        bench.acknowledge(2, C, index)
        bench.pass_ms(100)
    assert CloseBackupStream(SET, 1) in bench.effects
    assert [each.broker for each in bench.swaps()[0].set_map.in_sync] == ["a", "c"]


def test_a_lost_backup_that_may_not_be_removed_is_waited_for() -> None:
    """Histories 12 and 22."""
    bench = serving(B, min_in_sync=2)
    bench.write("waits")
    bench.feed(BackupStreamClosed(SET, 1))
    bench.pass_ms(10_000)
    assert bench.swaps() == []
    assert bench.core.commit_index == 1


def test_its_new_memory_replaces_it() -> None:
    bench = serving(B, min_in_sync=2)
    index = bench.write("waits")
    bench.feed(BackupStreamClosed(SET, 1))
    bench.subscribe(2, B1, log_end=index, epochs=EPOCH_1)
    bench.acknowledge(2, B1, index)
    assert bench.swaps()[-1].set_map.in_sync == (A, B1)
    assert bench.core.commit_index == 1
    answer(bench, Verdict.DONE, 11)
    assert bench.core.commit_index == index


def test_a_removed_backup_that_comes_back_is_swapped_in_again() -> None:
    bench = serving(B)
    bench.feed(BackupStreamClosed(SET, 1))
    answer(bench, Verdict.DONE, 11)
    index = bench.write("alone")
    bench.subscribe(2, B, log_end=1, epochs=EPOCH_1, is_memory_whole=True, applied=1)
    bench.acknowledge(2, B, index)
    assert bench.swaps()[-1].set_map.in_sync == (A, B)


def test_a_new_primary_gives_its_members_a_moment_to_come() -> None:
    bench = PrimaryBench(entry(1, A, B))
    bench.pass_ms(1_400)
    assert bench.swaps() == []
    bench.pass_ms(200)
    assert bench.swaps()[0].set_map.in_sync == (A,)


def test_a_member_whose_process_is_another_now_is_not_waited_for() -> None:
    bench = PrimaryBench(entry(1, A, B))
    bench.feed(present(A, B))
    assert bench.swaps() == []
    bench.feed(present(A, B1))
    assert bench.swaps()[0].set_map.in_sync == (A,)


def test_a_member_without_a_presence_is_given_the_moment_that_others_get() -> None:
    """A backup that runs alone has no presence key, and a broker whose lease ran out puts it again."""
    bench = PrimaryBench(entry(1, A, B))
    bench.feed(present(A))
    bench.pass_ms(1_400)
    assert bench.swaps() == []
    bench.subscribe(1, B, log_end=1, epochs=EPOCH_1, is_memory_whole=True)
    bench.pass_ms(500)
    assert bench.swaps() == []
    assert bench.core.is_serving


def test_a_member_without_a_presence_that_does_not_come_is_lost_when_the_moment_is_over() -> None:
    bench = PrimaryBench(entry(1, A, B))
    bench.feed(present(A))
    bench.pass_ms(1_600)
    assert bench.swaps()[0].set_map.in_sync == (A,)


def test_a_member_whose_presence_went_is_not_waited_for() -> None:
    bench = PrimaryBench(entry(1, A, B))
    bench.feed(present(A, B))
    assert bench.swaps() == []
    bench.feed(present(A))
    assert bench.swaps()[0].set_map.in_sync == (A,)


# --- swaps in doubt ---------------------------------------------------------------------------------------------------


def test_a_swap_in_doubt_completes_nothing_until_a_later_one_is_confirmed() -> None:
    """History 4."""
    bench = serving(B)
    index = bench.write("waits")
    bench.feed(BackupStreamClosed(SET, 1))
    answer(bench, Verdict.IN_DOUBT)
    assert bench.core.commit_index == 1
    bench.pass_ms(100)
    assert len(bench.swaps()) == 2
    answer(bench, Verdict.DONE, 11)
    assert bench.core.commit_index == index


def test_a_swap_in_doubt_that_landed_is_known_by_the_entry() -> None:
    bench = serving(B)
    index = bench.write("waits")
    bench.feed(BackupStreamClosed(SET, 1))
    bench.feed(seen(bench.swaps()[0].set_map, 11))
    assert bench.core.commit_index == index
    answer(bench, Verdict.IN_DOUBT)
    bench.pass_ms(500)
    assert len(bench.swaps()) == 1


def test_the_first_of_two_swaps_in_doubt_may_land_and_the_second_is_void() -> None:
    bench = serving(B)
    bench.feed(BackupStreamClosed(SET, 1))
    answer(bench, Verdict.IN_DOUBT)
    bench.pass_ms(100)
    first, second = bench.swaps()
    assert first.set_map != second.set_map
    bench.feed(seen(first.set_map, 11))
    answer(bench, Verdict.FAILED)
    assert bench.core.membership.set_map == first.set_map
    assert not bench.core.stopped


def test_a_backup_that_returns_while_its_removal_is_in_doubt_is_kept_by_the_next_swap() -> None:
    bench = serving(B)
    bench.feed(BackupStreamClosed(SET, 1))
    answer(bench, Verdict.IN_DOUBT)
    bench.subscribe(2, B, log_end=1, epochs=EPOCH_1, is_memory_whole=True)
    bench.pass_ms(100)
    assert bench.swaps()[-1].set_map.in_sync == (A, B)
    answer(bench, Verdict.DONE, 11)
    index = bench.write("both")
    assert bench.core.commit_index == 1
    bench.acknowledge(2, B, index)
    assert bench.core.commit_index == index


def test_an_answer_to_an_earlier_swap_says_nothing_about_this_one() -> None:
    bench = serving(B)
    bench.feed(BackupStreamClosed(SET, 1))
    first = bench.swaps()[0]
    answer(bench, Verdict.IN_DOUBT)
    bench.pass_ms(100)
    bench.feed(SwapAnswered(SET, first.request, Verdict.DONE, 11))
    assert bench.core.membership.set_map.in_sync == (A, B)


# --- the end of the reign ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry_seen",
    [
        pytest.param(seen(entry(2, B), 11), id="a higher epoch"),
        pytest.param(structs.replace(seen(entry(1, A), 11), set_map=None), id="the set is gone"),
        pytest.param(
            seen(replace(entry(1, A), changed_by=Incarnation("x")), 11), id="somebody else's change"
        ),
    ],
)
def test_an_entry_that_is_not_this_reigns_ends_it(entry_seen: MapSeen) -> None:
    bench = serving()
    bench.feed(entry_seen)
    assert bench.core.stopped
    before = len(bench.effects)
    bench.pass_ms(1_000)
    assert bench.effects[before:] == []


def test_an_older_entry_is_no_news() -> None:
    bench = serving()
    bench.feed(seen(entry(1, A, B), 9))
    assert not bench.core.stopped


def test_a_backup_of_a_higher_epoch_ends_the_reign_and_one_of_a_lower_is_refused() -> None:
    """R2."""
    bench = serving()
    said = bench.subscribe(1, B)
    assert isinstance(said[1], Frames)
    low = Acknowledge(SET, Epoch(0), BrokerId("b"), B.incarnation, LogIndex(1))
    bench.feed(BackupSaid(SET, 1, low))
    assert isinstance(bench.told(1)[-1], SubscriptionRefused)
    assert not bench.core.stopped
    bench.feed(BackupSaid(SET, 2, structs.replace(low, epoch=Epoch(2))))
    assert bench.core.stopped
