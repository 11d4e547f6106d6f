"""The backup core's life: loading, following, joining, and what it does when somebody goes away (R8, R10, R12)."""

import pytest

from lockstep.core.effects import CloseSubscription, TellPrimary, WakeAt
from lockstep.core.ids import Epoch, Incarnation, LogIndex
from lockstep.core.inputs import (
    AnyInput,
    PrimarySaid,
    PrimaryStreamClosed,
    StoreConnected,
    StoreLost,
    StoreSaid,
    Tick,
    Woken,
)
from lockstep.core.replication import (
    Acknowledge,
    Frames,
    SnapshotChunk,
    SubscriptionAccepted,
    SubscriptionRefused,
)
from lockstep.core.store_protocol import Appended, StateItem
from services.backup.core.backup_memory import BackupState
from services.backup.core.settings import BackupSettings
from tests.unit.services.replicas import SET, BackupBench, MemoryStore, copy_of, frame, frames, session_record

E1, E2 = Epoch(1), Epoch(2)


def accepted(
    agreed: int, epoch: Epoch = E1, snapshot_index: int = 0, is_whole: bool = False
) -> SubscriptionAccepted:
    epochs = ((E1, LogIndex(1)),) if is_whole else ()
    return SubscriptionAccepted(SET, epoch, LogIndex(agreed), LogIndex(snapshot_index), is_whole, epochs, 0)


def log(first: int, last: int, commit: int = 0, epoch: Epoch = E1) -> Frames:
    parts = tuple((each.durable, each.transient) for each in frames(epoch, first, last))
    return Frames(SET, epoch, parts, LogIndex(commit))


def chunk(*items: StateItem, is_last: bool = True, epoch: Epoch = E1) -> SnapshotChunk:
    return SnapshotChunk(SET, epoch, items, is_last)


def items_at(last: int) -> tuple[StateItem, ...]:
    """The whole state behind frames 1..`last` of epoch 1 and one session."""
    state = copy_of(*frames(1, 1, last - 1), frame(1, last, session_record()), commit=last).state
    return tuple(StateItem(item.key, item.value, item.is_durable) for item in state.items())


def following(last: int = 3) -> BackupBench:
    """In epoch 1, with frames 1..`last` durable and committed, and the memory whole."""
    held = frames(1, 1, last)
    bench = BackupBench(MemoryStore("disk-b", *held, commit=last), 1, copy_of(*held, commit=last), True)
    bench.hear(accepted(last))
    return bench


# --- loading and following --------------------------------------------------------------------------------------------


def test_what_a_disk_holds_is_loaded_and_applied_up_to_the_commit_index() -> None:
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 5), commit=3))
    assert bench.core.copy is not None
    assert (bench.core.copy.state.applied, bench.core.copy.log_end) == (3, 5)
    (subscribe,) = bench.subscriptions()
    assert (subscribe.log_end, subscribe.commit_index, subscribe.applied) == (5, 3, 3)
    assert not subscribe.is_memory_whole


def test_a_replica_without_a_primary_to_follow_only_loads() -> None:
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 5)), primary=None)
    assert bench.core.is_loaded
    assert bench.subscriptions() == []


def test_frames_are_acknowledged_when_durable_and_applied_when_committed() -> None:
    bench = following()
    bench.hear(log(4, 6, commit=4))
    assert bench.acknowledged() == 6
    assert bench.core.copy is not None
    assert bench.core.copy.state.applied == 4


def test_what_is_committed_is_applied_behind_the_acknowledgement_of_what_came_with_it() -> None:
    bench = following()
    assert bench.core.copy is not None
    bench.is_store_up = False
    bench.hear(log(4, 6, commit=3), log(7, 9, commit=6))
    assert (bench.core.copy.state.applied, bench.core.copy.commit_index) == (3, 3)
    effects = bench.core.handle(StoreSaid(SET, Appended(SET, E1, Incarnation("b.0"), LogIndex(6))), bench.now)
    assert bench.core.copy.state.applied == 3
    assert [type(effect) for effect in effects] == [TellPrimary, WakeAt]
    bench.feed(Woken(SET))
    assert (bench.core.copy.state.applied, bench.core.copy.commit_index) == (6, 6)


@pytest.mark.parametrize("given", [Tick(SET), StoreLost(SET)])
def test_what_is_committed_is_applied_while_the_disk_owes_what_came_with_it(given: AnyInput) -> None:
    bench = following()
    assert bench.core.copy is not None
    bench.is_store_up = False
    bench.hear(log(4, 6, commit=4))
    assert bench.core.copy.state.applied == 3
    bench.feed(given)
    assert bench.core.copy.state.applied == 4


def test_a_commit_index_that_comes_alone_is_applied_at_once() -> None:
    bench = following()
    assert bench.core.copy is not None
    bench.is_store_up = False
    bench.hear(log(4, 6, commit=3), Frames(SET, E1, (), LogIndex(5)))
    assert bench.core.copy.state.applied == 5


def test_what_is_committed_is_applied_before_another_role_takes_the_memory() -> None:
    bench = following()
    assert bench.core.copy is not None
    bench.is_store_up = False
    bench.hear(log(4, 6, commit=4))
    bench.core.end()
    assert bench.core.copy.state.applied == 4


def test_a_commit_index_beyond_the_log_waits_for_its_frames() -> None:
    bench = following()
    bench.hear(log(4, 5, commit=9))
    assert bench.core.copy is not None
    assert bench.core.copy.state.applied == 5
    bench.hear(log(6, 9, commit=9))
    assert bench.core.copy.state.applied == 9


def test_what_was_cut_off_is_not_acknowledged_any_more() -> None:
    """R5: the disk had nine, of which the new primary has five; what comes in their place is not durable yet."""
    held = frames(1, 1, 9)
    bench = BackupBench(MemoryStore("disk-b", *held, commit=3), 2, copy_of(*held, commit=3), True)
    bench.hear(accepted(5, E2))
    bench.pass_ms(300)
    assert bench.acknowledged() == 5
    bench.is_store_up = False
    bench.hear(log(6, 8, commit=5, epoch=E2))
    bench.pass_ms(300)
    assert bench.acknowledged() == 5


def test_frames_that_come_twice_are_taken_once() -> None:
    bench = following()
    bench.hear(log(2, 4), log(3, 5))
    assert bench.store.log_end == 5


def test_a_silent_primary_is_left_and_subscribed_to_again() -> None:
    bench = following()
    before = bench.core.stream
    bench.pass_ms(2_000)
    assert CloseSubscription(SET, before) in bench.effects
    assert bench.core.stream > before
    assert bench.subscriptions()[-1].is_memory_whole


def test_who_asks_again_and_again_has_heard_nothing() -> None:
    """A backup that is cut off says for how long its primary has been silent."""
    bench = following()
    heard_ms = bench.core.heard_ms
    assert heard_ms == bench.now.boottime_ms
    bench.pass_ms(10_000)
    assert len(bench.subscriptions()) > 2
    assert bench.core.heard_ms == heard_ms
    bench.hear(accepted(3))
    assert bench.core.heard_ms == bench.now.boottime_ms


def test_a_refused_subscription_is_tried_again_later() -> None:
    bench = BackupBench(MemoryStore("disk-b"))
    bench.hear(SubscriptionRefused(SET, E2, "not the primary"))
    assert bench.core.state is BackupState.READY
    bench.pass_ms(200)
    assert len(bench.subscriptions()) == 2


def test_a_disk_that_lost_what_it_acknowledged_is_damaged_and_stays_so() -> None:
    """R10: a missing tail that a reachable member knows to be acknowledged."""
    bench = BackupBench(MemoryStore("disk-b"))
    bench.hear(SubscriptionRefused(SET, E2, "7 was acknowledged", LogIndex(5)))
    assert bench.core.state is BackupState.DAMAGED
    assert bench.core.opened is not None
    assert bench.core.opened.damage == "7 was acknowledged"
    assert not bench.core.is_loaded
    bench.feed(StoreLost(SET))
    bench.feed(StoreConnected(SET))
    assert bench.core.state is BackupState.DAMAGED


def test_a_stream_that_ends_while_subscribing_is_opened_again_with_a_new_number() -> None:
    bench = BackupBench(MemoryStore("disk-b"))
    first = bench.core.stream
    bench.feed(PrimaryStreamClosed(SET, first))
    bench.pass_ms(200)
    assert bench.core.stream == first + 1
    bench.feed(PrimarySaid(SET, first, accepted(0)))
    assert bench.core.state is BackupState.SUBSCRIBING


def test_messages_of_another_epoch_touch_nothing() -> None:
    bench = following()
    bench.hear(log(4, 5, epoch=E2))
    assert bench.store.log_end == 3


def test_a_busy_primary_has_time_to_answer_a_subscription() -> None:
    """A big snapshot takes longer than some heartbeats; asking anew would make it begin anew, for ever."""
    bench = BackupBench(MemoryStore("disk-b"))
    bench.pass_ms(30_000)
    before = len(bench.subscriptions())
    bench.pass_ms(10_000)
    assert len(bench.subscriptions()) == before <= 6
    bench.hear(accepted(0), log(1, 2))
    assert bench.acknowledged() == 2
    bench.pass_ms(1_000)
    assert len(bench.subscriptions()) == before + 1


# --- joining ----------------------------------------------------------------------------------------------------------


def test_nothing_is_acknowledged_before_the_memory_snapshot_is_complete() -> None:
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 3), commit=3))
    transient = tuple(item for item in items_at(4) if not item.is_durable)
    session = frame(1, 4, session_record())
    bench.hear(accepted(3, snapshot_index=4), Frames(SET, E1, ((session.durable, b""),), LogIndex(3)))
    bench.pass_ms(300)
    assert bench.acknowledged() == 0
    could_stand = []
    for part, is_last in ((transient[:-1], False), (transient[-1:], True)):
        bench.hear(chunk(*part, is_last=is_last))
        could_stand.append(bench.core.can_stand_unrestarted)
    assert could_stand == [False, True]
    assert bench.acknowledged() == 4


def test_a_whole_snapshot_replaces_disk_and_memory() -> None:
    bench = BackupBench(MemoryStore("disk-b", *frames(2, 1, 9)))
    items = items_at(4)
    bench.hear(accepted(0, snapshot_index=4, is_whole=True), chunk(*items), log(5, 6))
    assert (bench.store.snapshot_index, bench.store.log_end) == (4, 6)
    assert bench.acknowledged() == 6
    assert bench.core.is_loaded
    assert bench.core.copy is not None
    assert len(bench.core.copy.state.sessions.by_key) == 1


def test_a_newcomer_calls_committed_what_its_primary_calls_so() -> None:
    """Its snapshot may reach beyond that (R8, R11), in memory as on disk."""
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 3), commit=3))
    bench.hear(accepted(0, snapshot_index=4, is_whole=True), chunk(*items_at(4)))
    assert bench.core.copy is not None
    known = []
    for told in (None, log(5, 6, commit=2), log(7, 7, commit=6)):
        if told is not None:
            bench.hear(told)
        bench.feed(Tick(SET))
        known.append((bench.core.copy.commit_index, bench.store.commit_index))
    assert known == [(0, 0), (2, 2), (6, 6)]
    assert bench.core.copy.state.applied == 6


def test_what_a_disk_knew_before_it_was_sent_a_snapshot_says_nothing_of_what_it_has() -> None:
    """Its log was given up (R7): who counts on what it knew waits for it, or stops."""
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 9), commit=9))
    assert bench.subscriptions()[-1].commit_index == 9
    bench.hear(accepted(0, snapshot_index=4, is_whole=True), chunk(*items_at(4)), log(5, 5, commit=4))
    bench.feed(PrimaryStreamClosed(SET, bench.core.stream))
    bench.pass_ms(1_000)
    assert (bench.subscriptions()[-1].log_end, bench.subscriptions()[-1].commit_index) == (5, 4)


def test_a_disk_says_how_far_its_snapshot_reaches_for_it_cannot_be_cut_there() -> None:
    """A primary whose log ends before it has another log than the set had (R5, R10)."""
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 9), commit=9))
    bench.hear(accepted(0, snapshot_index=4, is_whole=True), chunk(*items_at(4)))
    bench.feed(PrimaryStreamClosed(SET, bench.core.stream))
    bench.pass_ms(1_000)
    assert bench.core.copy is not None and bench.core.copy.commit_index == 0
    later = BackupBench(bench.store)
    for subscribe in (bench.subscriptions()[-1], later.subscriptions()[-1]):
        assert (subscribe.log_end, subscribe.commit_index) == (4, 4)


def test_a_memory_that_agrees_with_no_snapshot_of_its_disk_is_loaded_anew_from_there() -> None:
    store = MemoryStore("disk-b", *frames(2, 5, 6))
    store.snapshot_index, store.snapshot_epochs = LogIndex(4), ((E2, LogIndex(1)),)
    store.items = [item for item in items_at(4) if item.is_durable]
    bench = BackupBench(store, 3, copy_of(*frames(1, 1, 6)), True)
    assert bench.core.has_lost_memory
    assert store.content() == [(2, 5), (2, 6)]


def test_a_store_that_was_sent_a_snapshot_hears_anew_what_is_committed() -> None:
    bench = following(9)
    bench.hear(log(10, 10, commit=9))
    bench.feed(PrimaryStreamClosed(SET, bench.core.stream))
    bench.pass_ms(1_000)
    bench.hear(accepted(0, snapshot_index=4, is_whole=True), chunk(*items_at(4)))
    assert bench.store.commit_index == 0
    bench.hear(Frames(SET, E1, (), LogIndex(4)))
    bench.pass_ms(2_000)
    assert bench.store.commit_index == 4


def test_a_stream_of_what_is_no_frame_is_not_opened_again_at_once() -> None:
    bench = following()
    before = len(bench.subscriptions())
    bench.hear(log(5, 5))
    bench.pass_ms(5 * BackupSettings().retry_ms)
    assert len(bench.subscriptions()) == before
    bench.pass_ms(5 * BackupSettings().retry_ms)
    assert len(bench.subscriptions()) == before + 1


def test_each_part_of_a_snapshot_is_acknowledged_without_counting_for_anything() -> None:
    bench = BackupBench(MemoryStore("disk-b"))
    bench.hear(accepted(0, snapshot_index=4, is_whole=True))
    before = len(bench.said())
    for item in items_at(4)[:3]:
        bench.hear(chunk(item, is_last=False))
    said = bench.said()[before:]
    assert [message.log_end for message in said if isinstance(message, Acknowledge)] == [0, 0, 0]


def test_the_next_part_of_a_snapshot_waits_for_the_own_store() -> None:
    """A store that had all of it before it at once would not even answer heartbeats."""
    bench = BackupBench(MemoryStore("disk-b"))
    bench.hear(accepted(0, snapshot_index=4, is_whole=True))
    before = len(bench.said())
    durable = next(item for item in items_at(4) if item.is_durable)
    part = PrimarySaid(SET, bench.core.stream, chunk(durable, is_last=False))
    effects = bench.core.handle(part, bench.now)
    assert not [effect for effect in effects if isinstance(effect, TellPrimary)]
    bench.perform(effects)
    assert len(bench.said()) == before + 1


def test_a_replica_in_the_middle_of_an_installation_cannot_stand() -> None:
    bench = BackupBench(MemoryStore("disk-b"))
    bench.hear(accepted(0, snapshot_index=4, is_whole=True), chunk(is_last=False))
    assert not bench.core.is_loaded


@pytest.mark.parametrize("chunks", [0, 1])
def test_an_installation_that_is_interrupted_leaves_an_empty_disk_and_begins_anew(chunks: int) -> None:
    """History 24: a disk that is half installed is no disk of the set."""
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 2)))
    bench.hear(accepted(0, snapshot_index=4, is_whole=True))
    bench.hear(*[chunk(*items_at(4)[:1], is_last=False)] * chunks)
    bench.feed(PrimaryStreamClosed(SET, bench.core.stream))
    bench.pass_ms(200)
    subscribe = bench.subscriptions()[-1]
    assert (subscribe.disk, subscribe.log_end, subscribe.applied) == ("disk-b-1", 0, 0)


def test_an_interrupted_memory_snapshot_is_asked_for_again() -> None:
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 3), commit=3))
    bench.hear(accepted(3, snapshot_index=3), chunk(is_last=False))
    bench.feed(PrimaryStreamClosed(SET, bench.core.stream))
    bench.pass_ms(200)
    assert not bench.subscriptions()[-1].is_memory_whole
    assert bench.core.is_loaded


def test_chunks_that_were_on_their_way_when_the_store_went_are_dropped() -> None:
    bench = BackupBench(MemoryStore("disk-b", *frames(1, 1, 3), commit=3))
    bench.hear(accepted(3, snapshot_index=5))
    bench.lose_store()
    bench.hear(log(4, 5), chunk())
    assert bench.core.state is BackupState.OPENING
    bench.find_store()
    assert not bench.subscriptions()[-1].is_memory_whole


def test_a_memory_that_is_not_whole_any_more_takes_a_new_name() -> None:
    """Others may believe in the old one: as long as it is present they do not stand as restarted (R5)."""
    bench = following()
    bench.pass_ms(1_000)
    bench.hear(accepted(3, snapshot_index=3))
    assert bench.core.has_lost_memory
    assert not bench.core.is_memory_whole


def test_a_memory_beyond_the_new_primarys_log_is_given_up() -> None:
    store = MemoryStore("disk-b", *frames(1, 1, 3), commit=3)
    bench = BackupBench(store)
    bench.hear(accepted(3, snapshot_index=5), log(4, 5, commit=3), chunk())
    assert bench.core.copy is not None
    assert bench.core.copy.state.applied == 5
    after = BackupBench(store, 2, bench.core.copy, True)
    after.hear(accepted(4, E2, snapshot_index=6))
    assert after.core.has_lost_memory


# --- damage, refusal, silence -----------------------------------------------------------------------------------------


def test_a_damaged_disk_is_not_loaded_and_set_aside_only_when_told() -> None:
    store = MemoryStore("disk-b", *frames(1, 1, 3))
    store.damage = "a hole at 2"
    bench = BackupBench(store)
    assert bench.core.state is BackupState.DAMAGED
    assert not bench.core.is_loaded
    bench.pass_ms(2_000)
    assert bench.subscriptions() == []
    bench.perform(bench.core.set_aside())
    assert bench.subscriptions()[-1].disk == "disk-b-1"


def test_a_refusing_store_is_opened_again() -> None:
    bench = following()
    bench.store.is_failing = True
    bench.hear(log(4, 5))
    assert bench.core.state is BackupState.OPENING
    bench.store.is_failing = False
    bench.pass_ms(2_000)
    assert bench.subscriptions()[-1].log_end == bench.store.log_end == 5


def test_a_store_that_hangs_ends_the_subscription_although_the_broker_is_well() -> None:
    """History 21: whoever waits for this disk would wait as long as it hangs."""
    bench = following()
    bench.is_store_up = False
    for index in range(4, 30):
        bench.hear(log(index, index))
        bench.pass_ms(100)
    assert bench.core.state is not BackupState.FOLLOWING
    assert "store silent" in bench.notes()
    bench.is_store_up = True
    bench.pass_ms(2_000)
    assert bench.subscriptions()[-1].log_end == bench.store.log_end


def test_a_store_that_gets_on_with_a_big_frame_is_not_silent() -> None:
    """It says again what it had, behind each piece that it has written."""
    bench = following()
    bench.is_store_up = False
    bench.hear(log(4, 30))
    for tenth in range(50):
        bench.pass_ms(100)
        bench.hear(log(1, 0))
        if tenth % 10 == 9:
            bench.feed(StoreSaid(SET, Appended(SET, E1, Incarnation("b.0"), LogIndex(3))))
    assert bench.core.state is BackupState.FOLLOWING and "store silent" not in bench.notes()
    for _ in range(20):
        bench.pass_ms(100)
        bench.hear(log(1, 0))
    assert "store silent" in bench.notes()


def test_the_primary_hears_the_backup_while_nothing_happens() -> None:
    bench = BackupBench(MemoryStore("disk-b"), settings=BackupSettings(heartbeat_ms=100))
    bench.hear(accepted(0), log(1, 1))
    before = len([message for message in bench.said() if isinstance(message, Acknowledge)])
    for _ in range(5):
        bench.pass_ms(100)
        bench.hear(log(1, 0))
    after = len([message for message in bench.said() if isinstance(message, Acknowledge)])
    assert after >= before + 4


def test_a_store_that_goes_on_refusing_takes_the_memory_with_it() -> None:
    """R5: a member that cannot stand must not keep restarted ones from standing."""
    bench = following()
    bench.store.is_failing = True
    bench.hear(log(4, 5))
    bench.pass_ms(4_000)
    assert not bench.core.has_lost_memory
    bench.pass_ms(3_000)
    assert bench.core.has_lost_memory


@pytest.mark.parametrize(
    ("epoch", "incarnation", "acknowledged"), [(E1, "b.0", 9), (E2, "b.0", 0), (E1, "b.1", 0)]
)
def test_what_the_store_says_to_another_memory_or_in_another_epoch_is_ignored(
    epoch: Epoch, incarnation: str, acknowledged: int
) -> None:
    bench = following(3)
    bench.feed(StoreSaid(SET, Appended(SET, epoch, Incarnation(incarnation), LogIndex(9))))
    assert bench.acknowledged() == acknowledged
