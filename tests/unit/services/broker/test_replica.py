"""A replica's roles: when it leads, stops and begins again (R5, R6, R7, R9, R10, histories 1, 10, 13, 24, 27)."""

import dataclasses

import pytest
from msgspec.structs import replace

from lockstep.core.cluster_map import Member
from lockstep.core.effects import (
    CloseClientStream,
    DropLeaseKey,
    MarkSetBack,
    OpenSubscription,
    PromoteSelf,
    PutPresence,
    RestoreLeaseKey,
    SwapMap,
    TellBackup,
    TellClient,
    TellStore,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SessionId, SessionKey, TimeMs
from lockstep.core.inputs import (
    AcceptDataLoss,
    BackupSaid,
    BackupStreamClosed,
    ClientSaid,
    ClientStreamClosed,
    HandOver,
    LeaseLost,
    MapSeen,
    PrimarySaid,
    StoreLost,
    StoreSaid,
    SwapAnswered,
    Tick,
    Verdict,
    Woken,
)
from lockstep.core.pieces import PIECE_COST
from lockstep.core.records import DeclareExchange
from lockstep.core.replication import Acknowledge, Frames, HandedOver, Subscribe, SubscriptionAccepted
from lockstep.core.requests import AttachSession
from lockstep.core.server_messages import AttachRefused
from lockstep.core.stamps import NO_STAMPS, Stamp
from lockstep.core.store_protocol import RememberMap, StateItem, StoreRefused
from services.backup.core.backup_memory import BackupState
from services.broker.core.map_rebuilding import EPOCHS_LEFT_FREE
from services.broker.core.parting import Parting
from services.broker.core.set_facts import SetFacts
from tests.unit.services.replicas import (
    SET,
    MemoryStore,
    ReplicaBench,
    at,
    copy_of,
    entry,
    frame,
    frames,
    leading,
    member,
    seen,
)

OLD = Member(BrokerId("a"), DiskId("disk-a"), Incarnation("p0.0"))
B, C = member("b"), member("c")


def asking(*others: Member, primary: Member = OLD, min_in_sync: int = 1) -> ReplicaBench:
    """Nobody leads; this replica, named in epoch 1 by its disk and just loaded, has asked to be promoted."""
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3), commit=2))
    bench.hold_lease()
    members = [each for each in (OLD, *others) if each != primary]
    bench.feed(seen(entry(1, primary, *members, min_in_sync=min_in_sync), 10))
    bench.see_presences()
    bench.see_key(None)
    assert len(bench.wanted(PromoteSelf)) == 1
    return bench


# --- promotion --------------------------------------------------------------------------------------------------------


def test_a_disk_that_the_map_names_begins_a_new_epoch_and_serves_when_its_record_is_committed() -> None:
    bench = asking()
    (asked,) = bench.wanted(PromoteSelf)
    assert (asked.set_map.epoch, asked.set_map.in_sync, asked.expected.revision) == (2, (bench.own(),), 10)
    assert bench.replica.primary is None
    bench.answer(Verdict.DONE, 11)
    assert bench.replica.is_serving
    assert bench.store.content()[-1] == (2, 4)


def test_a_disk_that_the_map_does_not_name_never_asks() -> None:
    """History 24: the volume is new."""
    bench = ReplicaBench(MemoryStore("new-disk"))
    bench.hold_lease()
    bench.feed(seen(entry(1, OLD, B), 10))
    bench.see_presences()
    bench.see_key(None)
    bench.pass_ms(2_000)
    assert bench.wanted(PromoteSelf) == []


def test_nobody_asks_while_the_lease_key_is_there_or_was_never_read() -> None:
    bench = ReplicaBench(MemoryStore("disk-a"))
    bench.hold_lease()
    bench.feed(seen(entry(1, OLD), 10))
    bench.pass_ms(500)
    bench.see_key("p0.0")
    bench.pass_ms(500)
    assert bench.wanted(PromoteSelf) == []
    bench.see_key(None)
    assert len(bench.wanted(PromoteSelf)) == 1


def test_a_restarted_member_waits_for_one_that_kept_its_memory() -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.hold_lease()
    bench.feed(seen(entry(1, C, OLD, B), 10))
    bench.see_presences(B)
    bench.see_key(None)
    assert bench.wanted(PromoteSelf) == []
    bench.see_presences(member("b", 1))
    (asked,) = bench.wanted(PromoteSelf)
    assert asked.presences == (("b", "b.1", 5), ("c", "", 0))


def test_what_a_member_joined_with_is_committed_when_it_is_promoted() -> None:
    """R8: nobody comes into the set before all of it has what its snapshot holds, whether he heard of that or not."""
    store = MemoryStore("disk-a")
    store.snapshot_index, store.snapshot_epochs = LogIndex(5), ((Epoch(1), LogIndex(1)),)
    state = copy_of(*frames(1, 1, 5), commit=5).state
    store.items = [StateItem(item.key, item.value, item.is_durable) for item in state.items()]
    bench = ReplicaBench(store)
    bench.hold_lease()
    bench.feed(seen(entry(1, OLD, B, min_in_sync=2), 10))
    assert bench.replica.commit_index == 0
    bench.see_presences()
    bench.see_key(None)
    bench.answer(Verdict.DONE, 11)
    assert bench.replica.primary is not None
    assert bench.replica.commit_index == 5


def test_a_promotion_in_doubt_is_confirmed_by_the_entry_that_it_wrote() -> None:
    bench = asking()
    (asked,) = bench.wanted(PromoteSelf)
    bench.answer(Verdict.IN_DOUBT)
    bench.feed(seen(asked.set_map, 11))
    assert bench.replica.is_serving


def test_a_promotion_that_another_one_superseded_is_not_led() -> None:
    """Its answer comes behind the entry of a later epoch: this process would never hear of that again."""
    bench = asking(B)
    (asked,) = bench.wanted(PromoteSelf)
    bench.feed(seen(entry(3, B), 12))
    bench.feed(SwapAnswered(SET, asked.request, Verdict.DONE, 11))
    assert bench.replica.primary is None
    assert bench.replica.set_map is not None
    assert bench.replica.set_map.epoch == 3
    assert bench.wanted(OpenSubscription)[-1].broker == "b"


def test_a_promotion_won_by_a_memory_that_is_gone_is_not_led_and_the_next_epoch_begins() -> None:
    bench = asking()
    (asked,) = bench.wanted(PromoteSelf)
    bench.answer(Verdict.IN_DOUBT)
    for damage in ("a hole, for a moment", ""):
        bench.lose_store()
        bench.store.damage = damage
        bench.find_store()
    assert bench.replica.incarnation != asked.set_map.primary_incarnation
    bench.feed(seen(asked.set_map, 11))
    assert bench.replica.primary is None
    assert DropLeaseKey(SET, asked.set_map.primary_incarnation) in bench.effects
    bench.pass_ms(200)
    again = bench.wanted(PromoteSelf)[-1]
    assert (again.set_map.epoch, again.set_map.in_sync) == (3, (bench.own(),))


def test_an_earlier_promotion_in_doubt_is_not_taken_for_the_one_that_was_asked_later() -> None:
    """The lease key of the earlier one may hang on a lease that is gone by now (R6)."""
    bench = asking()
    bench.answer(Verdict.IN_DOUBT)
    bench.feed(LeaseLost(SET))
    bench.hold_lease(8)
    bench.pass_ms(200)
    first, second = bench.wanted(PromoteSelf)
    bench.feed(seen(first.set_map, 11))
    assert bench.replica.primary is None
    bench.answer(Verdict.FAILED)
    bench.see_key(str(first.set_map.primary_incarnation))
    assert bench.wanted(DropLeaseKey)
    bench.see_key(None)
    bench.pass_ms(200)
    assert bench.wanted(PromoteSelf)[-1].set_map.epoch == 3
    assert second.set_map.epoch == 2


# --- lease ------------------------------------------------------------------------------------------------------------


def test_a_primary_without_its_lease_serves_again_when_its_key_is_back_under_a_new_one() -> None:
    bench = leading()
    bench.feed(LeaseLost(SET))
    assert bench.wanted(RestoreLeaseKey) == []
    bench.hold_lease(8)
    (restore,) = bench.wanted(RestoreLeaseKey)
    assert restore.expected.revision == 11
    assert bench.replica.primary is not None
    assert bench.replica.primary.streams.serve_until_ms <= bench.now.boottime_ms
    bench.answer(Verdict.DONE, 11)
    assert bench.replica.primary.streams.serve_until_ms > bench.now.boottime_ms


def test_a_restoration_that_is_in_doubt_or_fails_is_repeated() -> None:
    bench = leading()
    bench.feed(LeaseLost(SET))
    bench.hold_lease(8)
    bench.answer(Verdict.IN_DOUBT)
    bench.pass_ms(200)
    bench.answer(Verdict.FAILED)
    bench.pass_ms(200)
    assert len(bench.wanted(RestoreLeaseKey)) == 3
    bench.answer(Verdict.DONE, 11)
    assert bench.replica.primary is not None
    assert bench.replica.primary.streams.serve_until_ms > bench.now.boottime_ms


def test_a_restoration_under_a_lease_that_is_gone_gives_no_right() -> None:
    bench = leading()
    bench.feed(LeaseLost(SET))
    bench.hold_lease(8)
    (restore,) = bench.wanted(RestoreLeaseKey)
    bench.feed(LeaseLost(SET))
    bench.hold_lease(9)
    bench.feed(SwapAnswered(SET, restore.request, Verdict.DONE, 11))
    assert bench.replica.primary is not None
    assert bench.replica.primary.streams.serve_until_ms <= bench.now.boottime_ms


def test_a_stray_key_of_this_process_is_given_up() -> None:
    bench = ReplicaBench(MemoryStore("new-disk"))
    bench.hold_lease()
    bench.feed(seen(entry(1, OLD, B), 10))
    bench.see_key("p1.0")
    assert bench.wanted(DropLeaseKey) == [DropLeaseKey(SET, Incarnation("p1.0"))]


# --- presence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [None, "of-before.0"])
def test_a_presence_that_was_changed_under_the_lease_is_put_again(shown: str | None) -> None:
    """Whoever is not there by its presence is given no set, and a restarted one is promoted beside its memory."""
    bench = ReplicaBench()
    bench.hold_lease()
    own = bench.own()
    bench.see_presences(own, B)
    before = len(bench.wanted(PutPresence))
    bench.see_presences(own)
    assert len(bench.wanted(PutPresence)) == before, "others come and go"
    changed = [own._replace(incarnation=Incarnation(shown))] if shown is not None else []
    bench.see_presences(*changed, B)
    assert bench.wanted(PutPresence)[before:] == [PutPresence(SET, bench.replica.incarnation)]
    bench.see_presences(*changed)
    assert len(bench.wanted(PutPresence)) == before + 1, "it was asked for once"


# --- the end of a reign -----------------------------------------------------------------------------------------------


def test_a_deposed_primary_comes_back_with_another_memory_and_follows() -> None:
    bench = leading()
    before = bench.replica.incarnation
    bench.feed(seen(entry(3, B), 12))
    assert not bench.replica.is_serving
    assert bench.wanted(DropLeaseKey)[-1].incarnation == before
    assert bench.wanted(PutPresence)[-1].incarnation == bench.replica.incarnation != before
    assert not bench.wanted(OpenSubscription)[-1].subscribe.is_memory_whole


def asks_for_a_session(stream: int) -> ClientSaid:
    attach = AttachSession(SET, SessionId(f"session-{stream}"), SessionKey(0), Epoch(0), 1_000, 0)
    return ClientSaid(SET, stream, (attach,))


def turned_away(bench: ReplicaBench) -> list[int]:
    """Streams that were told so, and closed."""
    told = [each.stream for each in bench.wanted(TellClient) if isinstance(each.message, AttachRefused)]
    assert told == [each.stream for each in bench.wanted(CloseClientStream)]
    return told


def test_a_reign_that_ends_before_it_serves_turns_away_who_waited_for_that() -> None:
    bench = asking(B, min_in_sync=2)
    bench.answer(Verdict.DONE, 11)
    assert bench.replica.primary is not None and not bench.replica.is_serving
    bench.feed(asks_for_a_session(5))
    assert not turned_away(bench)
    bench.feed(seen(entry(3, B, min_in_sync=2), 12))
    assert turned_away(bench) == [5]


def test_a_reign_that_a_backups_word_ends_is_followed_at_once() -> None:
    """What backups say is routine, but for this."""
    bench = leading()
    before = bench.replica.incarnation
    later = Subscribe(
        SET, Epoch(9), B.broker, B.disk, B.incarnation, LogIndex(0), (), LogIndex(0), False, LogIndex(0)
    )
    bench.feed(BackupSaid(SET, 1, later))
    assert bench.replica.primary is None
    assert bench.replica.backup is not None
    assert bench.replica.incarnation != before


def test_a_set_was_without_a_primary_since_the_last_frames_that_were_heard() -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3), commit=2))
    bench.hold_lease(for_ms=60_000)
    bench.feed(seen(entry(1, C, OLD), 10))
    bench.see_key("c.0")
    bench.see_presences(C)
    stream = bench.wanted(OpenSubscription)[-1].stream
    accepted = SubscriptionAccepted(SET, Epoch(1), LogIndex(3), LogIndex(0), False, (), TimeMs(0))
    bench.feed(PrimarySaid(SET, stream, accepted))
    assert bench.replica.backup is not None
    bench.ms += 200
    assert bench.replica.backup.state is BackupState.FOLLOWING
    bench.feed(PrimarySaid(SET, stream, Frames(SET, Epoch(1), (), LogIndex(3))))
    bench.ms += 300
    bench.see_presences()
    bench.see_key(None)
    bench.answer(Verdict.DONE, 11)
    bench.feed(Tick(SET))
    assert bench.replica.is_serving
    assert bench.replica.reigns.failover_seconds.sum == 0.3


def test_who_comes_right_behind_the_end_of_a_reign_is_turned_away() -> None:
    """The two were read together, and the reign was told that more follow."""
    bench = leading()
    primary, own = bench.replica.primary, bench.own()
    assert primary is not None
    deposed = StoreRefused(
        SET, primary.epoch, own.incarnation, ErrorCode.WRONG_EPOCH, "another has opened it", Epoch(9)
    )
    assert bench.replica.handle(StoreSaid(SET, deposed), bench.now, more_follow=True) == []
    bench.feed(asks_for_a_session(5))
    assert turned_away(bench) == [5]
    assert bench.replica.primary is not primary


def test_a_hand_over_stops_the_primary_for_a_member_that_is_in_sync_only() -> None:
    bench = leading()
    bench.feed(HandOver(SET, BrokerId("b")))
    assert bench.replica.is_serving


def test_a_hand_over_to_whom_it_is_led_by_is_none() -> None:
    bench = leading()
    bench.feed(HandOver(SET, BrokerId("a")))
    assert bench.replica.is_serving and "hand over refused" not in bench.notes()


def leading_with_a_backup() -> ReplicaBench:
    """As `leading`, with b in sync on stream 1; the entry has revision 12."""
    bench = leading()
    bench.hold_lease(for_ms=60_000)
    primary = bench.replica.primary
    assert primary is not None
    subscribe = Subscribe(
        SET, primary.epoch, B.broker, B.disk, B.incarnation, LogIndex(0), (), LogIndex(0), False, LogIndex(0)
    )
    bench.feed(BackupSaid(SET, 1, subscribe))
    bench.pass_ms(100)
    acknowledge = Acknowledge(SET, primary.epoch, B.broker, B.incarnation, primary.log_end)
    bench.feed(BackupSaid(SET, 1, acknowledge))
    (swap,) = bench.wanted(SwapMap)
    bench.feed(SwapAnswered(SET, swap.request, Verdict.DONE, 12))
    assert [each.broker for each in primary.membership.set_map.in_sync] == ["a", "b"]
    return bench


def test_in_an_etcd_that_was_set_back_a_key_is_restored_only_for_who_is_followed_by_all() -> None:
    """Another may have led since, which this etcd has forgotten."""
    bench = leading_with_a_backup()
    primary = bench.replica.primary
    assert primary is not None
    entry_now = primary.membership.set_map
    bench.feed(replace(seen(entry_now, 12), is_set_back=True))
    bench.feed(LeaseLost(SET))
    bench.hold_lease(8, for_ms=60_000)
    assert len(bench.wanted(RestoreLeaseKey)) == 1, "b would have refused this epoch"
    bench.answer(Verdict.FAILED)
    bench.feed(BackupStreamClosed(SET, 1))
    swaps = len(bench.wanted(SwapMap))
    bench.pass_ms(3_000)
    assert len(bench.wanted(RestoreLeaseKey)) == 1 and len(bench.wanted(SwapMap)) == swaps
    bench.feed(seen(entry_now, 12))
    bench.pass_ms(200)
    assert [one.is_mark_compared for one in bench.wanted(RestoreLeaseKey)] == [False, True]
    bench.answer(Verdict.DONE, 12)
    bench.pass_ms(200)
    assert len(bench.wanted(SwapMap)) == swaps + 1


def test_a_primary_whose_lease_is_over_by_the_clock_takes_nobody_out() -> None:
    """It slept, say, and hears first that its backup has left: etcd may have been set back to the entry that it knows."""
    bench = leading_with_a_backup()
    swaps = len(bench.wanted(SwapMap))
    bench.ms += 70_000
    bench.feed(BackupStreamClosed(SET, 1))
    assert len(bench.wanted(SwapMap)) == swaps
    bench.hold_lease()
    bench.feed(Woken(SET))
    assert len(bench.wanted(SwapMap)) == swaps + 1, "nobody else had the key meanwhile"


def test_who_stood_still_is_followed_by_nobody_for_a_moment() -> None:
    """What he hears first was said to him since, by backups that may have left him behind that."""
    bench = leading_with_a_backup()
    primary = bench.replica.primary
    assert primary is not None
    patience_ms = primary.context.settings.heartbeat_ms * primary.context.settings.heartbeat_misses
    bench.ms += 70_000
    bench.feed(LeaseLost(SET))
    said = Acknowledge(SET, primary.epoch, B.broker, B.incarnation, primary.log_end)
    bench.feed(BackupSaid(SET, 1, said))
    bench.hold_lease(8, for_ms=60_000)
    for _ in range(2 * patience_ms // 250):
        assert not bench.wanted(RestoreLeaseKey)
        bench.pass_ms(250)
        bench.feed(BackupSaid(SET, 1, said))
    bench.pass_ms(100)
    assert bench.wanted(RestoreLeaseKey), "but he who is still followed then"


def test_the_only_broker_of_a_set_has_its_key_again_as_soon_as_it_has_a_lease() -> None:
    """Also behind a sleep: nobody else can have led since."""
    bench = leading()
    primary = bench.replica.primary
    assert primary is not None
    membership = primary.membership
    membership.set_map = dataclasses.replace(membership.set_map, brokers=(primary.membership.own.broker,))
    bench.ms += 70_000
    bench.feed(LeaseLost(SET))
    bench.hold_lease(8, for_ms=60_000)
    assert bench.wanted(RestoreLeaseKey)


@pytest.mark.parametrize("is_followed", [True, False])
def test_who_is_not_followed_by_all_leaves_others_the_time_to_say_that_etcd_was_set_back(
    is_followed: bool,
) -> None:
    """Who knows that may reach it later."""
    bench = leading_with_a_backup()
    swaps, wait_ms = len(bench.wanted(SwapMap)), bench.replica.settings.regain_wait_ms
    bench.feed(LeaseLost(SET))
    if not is_followed:
        bench.feed(BackupStreamClosed(SET, 1))
        bench.pass_ms(2 * wait_ms)
    bench.hold_lease(8, for_ms=60_000)
    for passed_ms in (0, wait_ms - 200):
        bench.pass_ms(passed_ms)
        assert bool(bench.wanted(RestoreLeaseKey)) is is_followed
        if not is_followed:
            assert len(bench.wanted(SwapMap)) == swaps, "nor is anybody taken out"
    bench.pass_ms(400)
    bench.answer(Verdict.DONE, 12)
    bench.pass_ms(2_000)
    assert len(bench.wanted(SwapMap)) == swaps + 1


@pytest.mark.parametrize(
    ("present", "is_handed_over"), [((), False), ((member("b", 1),), False), ((member("b"),), True)]
)
def test_a_set_is_handed_over_only_to_whom_is_there_to_be_promoted(
    present: tuple[Member, ...], is_handed_over: bool
) -> None:
    """A backup alone has no presence and never stands: the reign would end for nobody, and take what is in memory with it."""
    bench = leading_with_a_backup()
    bench.see_presences(bench.own(), *present)
    bench.feed(HandOver(SET, B.broker))
    assert ("hand over refused" not in bench.notes()) == is_handed_over
    assert bench.replica.is_serving != is_handed_over


def test_a_set_is_handed_over_between_two_things_that_are_done_alone_however_much_waits() -> None:
    """Clients may see to it that something always does."""
    bench = leading_with_a_backup()
    bench.see_presences(bench.own(), member("b"))
    primary = bench.replica.primary
    assert primary is not None
    primary.is_alone = True
    primary._held_back.extend([ClientStreamClosed(SET, 7)] * 10_000)
    bench.feed(HandOver(SET, B.broker))
    assert not bench.replica.is_serving and "hand over refused" not in bench.notes()


def test_a_set_is_not_handed_over_to_a_member_whose_stream_was_lost() -> None:
    """It would not hear what is in no log; the map names it until the swap that takes it out."""
    bench = leading_with_a_backup()
    bench.see_presences(bench.own(), member("b"))
    bench.feed(BackupStreamClosed(SET, 1))
    bench.feed(HandOver(SET, B.broker))
    assert "hand over refused" in bench.notes() and bench.replica.is_serving


def test_who_has_handed_a_set_over_leaves_it_to_the_others_for_a_moment() -> None:
    bench = leading_with_a_backup()
    bench.see_presences(bench.own(), member("b"))
    entry_then = bench.replica.primary.membership.set_map if bench.replica.primary is not None else None
    assert entry_then is not None
    bench.feed(HandOver(SET, B.broker))
    bench.feed(BackupStreamClosed(SET, 1))
    bench.feed(seen(entry_then, 12))
    before = len(bench.wanted(PromoteSelf))
    bench.see_key(None)
    bench.see_presences(bench.own())  # b died with it.
    bench.pass_ms(900)
    assert len(bench.wanted(PromoteSelf)) == before
    bench.pass_ms(200)
    assert len(bench.wanted(PromoteSelf)) == before + 1


@pytest.mark.parametrize(
    ("to", "epoch", "asked_at_once"),
    [
        pytest.param("a", 1, 1, id="to this one"),
        pytest.param("b", 1, 0, id="to another"),
        pytest.param("b", 0, 1, id="to another, in an earlier epoch"),
    ],
)
def test_what_is_handed_over_is_left_to_whom_it_was_handed_for_a_moment(
    to: str, epoch: int, asked_at_once: int
) -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3), commit=2))
    bench.hold_lease()
    bench.feed(seen(entry(1, C, OLD, B), 10))
    bench.see_presences(member("b", 1))
    bench.see_key("c1")
    bench.feed(PrimarySaid(SET, 1, HandedOver(SET, Epoch(epoch), BrokerId(to))))
    bench.see_key(None)
    bench.pass_ms(500)
    assert min(len(bench.wanted(PromoteSelf)), 1) == asked_at_once
    bench.pass_ms(1_000)
    assert bench.wanted(PromoteSelf)


@pytest.mark.parametrize(
    ("to", "is_chosen", "led_since", "expected"),
    [
        pytest.param("a", True, 1, True, id="somebody said so"),
        pytest.param("a", False, 1, False, id="the last primary stopped"),
        pytest.param("b", True, 1, False, id="another was meant"),
        pytest.param("a", True, 2, False, id="and another has led since"),
    ],
)
def test_who_leads_knows_whether_somebody_said_that_it_should(
    to: str, is_chosen: bool, led_since: int, expected: bool
) -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3), commit=2))
    bench.hold_lease(for_ms=60_000)
    bench.feed(seen(entry(1, C, OLD, B), 10))
    bench.see_key("c1")
    bench.feed(PrimarySaid(SET, 1, HandedOver(SET, Epoch(1), BrokerId(to), is_chosen=is_chosen)))
    if led_since > 1:
        bench.feed(seen(entry(led_since, C, OLD, B), 11))
    bench.see_key(None)
    bench.pass_ms(1_200)
    bench.answer(Verdict.DONE, 12)
    assert bench.replica.primary is not None
    assert bench.replica.is_chosen == expected


def test_a_deleted_set_is_followed_no_more() -> None:
    bench = leading()
    bench.feed(replace(seen(entry(2, OLD), 12), set_map=None))
    assert bench.replica.primary is None
    assert bench.replica.backup is None


# --- etcd that was set back, other generations, data loss ---------------------------------------------------------------


def test_whoever_is_ahead_of_etcd_starts_nothing() -> None:
    """History 13."""
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3), epoch=6))
    bench.hold_lease()
    bench.feed(seen(entry(4, OLD), 10))
    bench.see_presences()
    bench.see_key(None)
    bench.pass_ms(3_000)
    assert bench.wanted(PromoteSelf) == []


def test_a_disk_that_knows_a_later_revision_starts_nothing() -> None:
    store = MemoryStore("disk-a", *frames(1, 1, 3))
    store.map_revision, store.generation = 99, "g"
    bench = ReplicaBench(store)
    bench.hold_lease()
    bench.feed(seen(entry(1, OLD), 10))
    bench.see_presences()
    bench.see_key(None)
    bench.pass_ms(3_000)
    assert bench.wanted(PromoteSelf) == []
    assert bench.notes().count("ahead of etcd") <= 4


def test_a_disk_of_another_generation_starts_nothing_however_often_it_restarts() -> None:
    store = MemoryStore("disk-a", *frames(1, 1, 3))
    store.generation = "before the accepted loss"
    for _ in range(3):
        bench = ReplicaBench(store)
        bench.hold_lease()
        bench.feed(seen(entry(1, OLD), 10))
        bench.see_presences()
        bench.see_key(None)
        bench.pass_ms(500)
        assert bench.wanted(PromoteSelf) == []


def test_a_replica_that_was_there_when_the_generation_changed_may_lead_its_set() -> None:
    """Data loss was accepted in another set: this one lost nothing."""
    store = MemoryStore("disk-a", *frames(1, 1, 3))
    store.generation = "g"
    bench = ReplicaBench(store)
    bench.hold_lease()
    bench.see_presences()
    set_map = entry(1, B, OLD)
    bench.see_key("b.0")
    bench.feed(seen(set_map, 10))
    bench.feed(seen(set_map, 10, "g2"))
    bench.see_key(None)
    assert len(bench.wanted(PromoteSelf)) == 1
    assert store.generation == "g2"


def test_a_disk_of_an_earlier_generation_of_the_lineage_stands_unless_it_is_ahead() -> None:
    """Data loss was accepted in another set while nobody of this one was there: this one lost nothing."""
    for revision, is_asked in ((10, True), (11, False)):
        store = MemoryStore("disk-a", *frames(1, 1, 3))
        store.generation, store.map_revision = "g", revision
        bench = ReplicaBench(store)
        bench.hold_lease()
        bench.feed(replace(seen(entry(1, OLD), 10, "g3"), earlier_generations=("g", "g2")))
        bench.see_presences()
        bench.see_key(None)
        bench.pass_ms(500)
        assert bool(bench.wanted(PromoteSelf)) is is_asked
        assert store.generation == ("g3" if is_asked else "g")


def test_a_disk_that_knows_more_of_etcd_starts_nothing_has_it_told_and_forgets_nothing() -> None:
    """History 26: the entry is as it was, and decisions are lost."""
    store = MemoryStore("disk-a", *frames(1, 1, 3))
    store.map_revision, store.generation, store.etcd_revision = 10, "g", 50
    bench = ReplicaBench(store)
    bench.hold_lease()
    old = replace(seen(entry(1, OLD), 10, "g"), etcd_revision=49)
    bench.feed(old)
    bench.see_presences()
    bench.see_key(None)
    bench.pass_ms(3_000)
    marks = bench.wanted(MarkSetBack)
    assert bench.wanted(PromoteSelf) == [] and 1 < len(marks) <= 4
    assert (marks[0].revision, marks[0].disk) == (50, "disk-a")
    bench.feed(replace(old, etcd_revision=60, is_set_back=True))
    bench.pass_ms(3_000)
    assert bench.wanted(PromoteSelf) == [] and len(bench.wanted(MarkSetBack)) == len(marks)
    bench.feed(replace(seen(entry(1, OLD), 10, "g2"), earlier_generations=("g",), etcd_revision=30))
    assert store.generation == "g", "another generation would take the place of what it knows"


def test_a_disk_with_a_stamp_that_etcd_lacks_starts_nothing_however_far_etcd_has_come() -> None:
    """Those who start write to etcd before any disk is compared."""
    stamps = NO_STAMPS.stamped(Stamp("p", 1, 20))
    for remembered, is_lost in (
        (Stamp("p", 1, 20), False),
        (Stamp("p", 2, 48), True),
        (Stamp("q", 1, 48), True),
    ):
        store = MemoryStore("disk-a", *frames(1, 1, 3))
        store.map_revision, store.generation, store.etcd_revision = 10, "g", 50
        store.stamp = remembered.encode()
        bench = ReplicaBench(store)
        bench.hold_lease()
        bench.feed(replace(seen(entry(1, OLD), 10, "g"), etcd_revision=60, stamps=stamps))
        bench.see_presences()
        bench.see_key(None)
        assert bench.replica.has_compared is not is_lost
        bench.pass_ms(500)
        marks = bench.wanted(MarkSetBack)
        assert bool(bench.wanted(PromoteSelf)) is not is_lost and bool(marks) is is_lost
        if is_lost:
            assert (marks[0].stamp, marks[0].disk, marks[0].generation) == (remembered, "disk-a", "g")
            newer = stamps.stamped(Stamp("r", 1, 61))
            bench.feed(replace(seen(entry(1, OLD), 10, "g"), etcd_revision=70, stamps=newer))
            bench.pass_ms(500)
            assert store.stamp == remembered.encode() and bench.wanted(PromoteSelf) == []
            bench.feed(replace(seen(entry(1, OLD), 10, "g2"), earlier_generations=("g",), etcd_revision=30))
            assert bench.wanted(PromoteSelf) == [], "after an accepted loss, too"


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("has_passed", [True, False])
@pytest.mark.parametrize("is_rebuilt", [True, False])
def test_a_disk_that_knows_more_of_etcd_follows_nobody_before_that_is_back_or_the_map_is_rebuilt(
    is_named: bool, has_passed: bool, is_rebuilt: bool
) -> None:
    """The epoch may have begun twice, and its two logs be taken for one."""
    stamps = NO_STAMPS.stamped(Stamp("p", 1, 20))
    store = MemoryStore("disk-a", *frames(1, 1, 3), *frames(2, 4, 9), commit=9)
    before = store.content()
    store.map_revision, store.generation, store.etcd_revision, store.stamp = 10, "g", 50, "p/2/48"
    members = (C, OLD) if is_named else (C,)
    old = replace(seen(entry(2, *members), 12, "g"), etcd_revision=90 if has_passed else 30, stamps=stamps)
    bench = ReplicaBench(store)
    bench.hold_lease()
    bench.see_key("c.0")
    bench.feed(old)
    bench.pass_ms(3_000)
    bench.feed(replace(old, is_set_back=True))
    bench.pass_ms(3_000)
    assert bench.wanted(OpenSubscription) == [] and store.content() == before
    assert bench.notes().count("kept back") == 1
    newer = replace(old, etcd_revision=91, stamps=stamps.stamped(Stamp("p", 2, 48)))
    bench.feed(seen(entry(3, *members), 5, "g2") if is_rebuilt else newer)
    bench.pass_ms(1_000)
    assert bench.wanted(OpenSubscription)


def test_a_disk_that_knows_another_primary_of_the_epoch_follows_nobody_and_has_it_told() -> None:
    """Whatever etcd has put since: it shows the entry that it had before only where the newer state is back."""
    own, anothers = entry(2, OLD), entry(2, C)
    for generation, is_lost in (("g", True), ("g2", False)):
        store = MemoryStore("disk-a", *frames(1, 1, 3), *frames(2, 4, 9), commit=9)
        store.map_bytes, store.map_revision, store.generation = own.encode(), 10, "g"
        bench = ReplicaBench(store)
        bench.hold_lease()
        bench.see_key("c.0")
        bench.feed(replace(seen(anothers, 30, generation), etcd_revision=90))
        bench.pass_ms(1_500)
        assert bool(bench.wanted(OpenSubscription)) is not is_lost
        marks = bench.wanted(MarkSetBack)
        assert bool(marks) is is_lost and all(mark.rival == own for mark in marks)
        assert bench.replica.has_compared is False


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_disk_that_knows_more_of_etcd_goes_on_saying_so_when_others_begin_an_epoch(is_marked: bool) -> None:
    """The set is opened anew for it, which takes a while."""
    store = MemoryStore("disk-a", *frames(1, 1, 3))
    store.generation, store.stamp = "g", "p/2/48"
    bench = ReplicaBench(store)
    bench.hold_lease()
    bench.see_key("c.0")
    stamps = NO_STAMPS.stamped(Stamp("p", 1, 20))
    old = replace(seen(entry(2, C, B), 12, "g"), etcd_revision=90, stamps=stamps, is_set_back=is_marked)
    bench.feed(old)
    bench.pass_ms(1_500)
    effects = bench.replica.handle(replace(old, set_map=entry(3, C, B), mod_revision=13), bench.now)
    assert [effect for effect in effects if isinstance(effect, TellStore)], "it is being opened"
    bench.perform(effects)
    bench.pass_ms(1_500)
    assert bool(bench.wanted(MarkSetBack)) is not is_marked
    assert not bench.wanted(OpenSubscription)


def test_a_disk_that_a_rebuilt_map_left_out_is_compared_by_nothing_where_an_epoch_may_have_begun_twice() -> (
    None
):
    for is_forked, is_named, is_told in ((True, False, False), (True, True, True), (False, False, True)):
        store = MemoryStore("disk-a", *frames(1, 1, 3), *frames(2, 4, 9), commit=9)
        store.map_revision, store.generation = 10, "g"
        bench = ReplicaBench(store)
        bench.hold_lease()
        bench.see_key("c.0")
        set_map = entry(4, C, OLD) if is_named else entry(4, C)
        bench.feed(seen(dataclasses.replace(set_map, is_forked=is_forked), 5, "g2"))
        (opened,) = bench.wanted(OpenSubscription)
        said = opened.subscribe
        assert (said.log_end, said.epochs) == ((9, ((1, 1), (2, 4))) if is_told else (0, ()))
        assert said.commit_index == 9 and store.generation == "g"
        accepted = SubscriptionAccepted(SET, Epoch(4), LogIndex(9), LogIndex(0), False, (), TimeMs(0))
        bench.feed(PrimarySaid(SET, opened.stream, accepted))
        bench.feed(Tick(SET))
        assert store.generation == "g2"


def test_a_damaged_disk_that_knows_more_of_etcd_is_not_set_aside() -> None:
    for stamp, is_set_aside in (("p/1/20", True), ("p/2/48", False)):
        store = MemoryStore("disk-a", *frames(1, 1, 3))
        store.damage, store.generation, store.stamp = "a hole", "g", stamp
        bench = ReplicaBench(store)
        bench.hold_lease()
        bench.see_key("c.0")
        stamps = NO_STAMPS.stamped(Stamp("p", 1, 20))
        bench.feed(replace(seen(entry(2, C, B), 12, "g"), etcd_revision=90, stamps=stamps))
        bench.pass_ms(3_000)
        assert (store.disk != "disk-a") is is_set_aside


def test_a_disk_answers_for_itself_again_where_the_newer_state_of_etcd_is_back() -> None:
    """Any other one may have come as far: it lacks the stamp, and lacks it still when it says no more that it was set back."""
    stamps = NO_STAMPS.stamped(Stamp("p", 1, 20))
    newer, other = stamps.stamped(Stamp("p", 2, 48)), stamps.stamped(Stamp("r", 1, 61))
    for remembered, first_seen in (("p/2/48", 60), ("p/1/20", 49)):
        for back, has_all in ((other, remembered == "p/1/20"), (newer, True)):
            store = MemoryStore("disk-a", *frames(1, 1, 3))
            store.map_revision, store.generation, store.etcd_revision = 10, "g", 50
            store.stamp = remembered
            bench = ReplicaBench(store)
            bench.hold_lease()
            old = replace(seen(entry(1, OLD), 10, "g"), etcd_revision=first_seen, stamps=stamps)
            bench.feed(old)
            assert not bench.replica.has_compared
            bench.feed(replace(old, etcd_revision=70, stamps=other, is_set_back=True))
            bench.feed(replace(old, etcd_revision=71, stamps=other, is_set_back=True))
            assert not bench.replica.has_compared
            bench.feed(replace(old, etcd_revision=49, stamps=back))
            assert not bench.replica.has_compared, "it is older than what the disk knows"
            bench.feed(replace(old, etcd_revision=72, stamps=other, is_set_back=True))
            bench.feed(replace(old, etcd_revision=72, stamps=back))
            assert bench.replica.has_compared is has_all


def test_the_newest_stamp_is_remembered_and_none_that_a_set_back_etcd_has_instead() -> None:
    bench = leading()
    set_map = bench.replica.set_map
    assert set_map is not None and bench.replica.has_compared
    stamps = NO_STAMPS.stamped(Stamp("p", 1, 20))
    newer = stamps.stamped(Stamp("p", 2, 70))
    bench.feed(replace(seen(set_map, 11), etcd_revision=77, stamps=newer))
    assert bench.store.stamp == "p/2/70"
    bench.feed(replace(seen(set_map, 11), etcd_revision=90, stamps=stamps.stamped(Stamp("q", 1, 88))))
    assert bench.store.stamp == "p/2/70"
    other = NO_STAMPS.stamped(Stamp("r", 1, 5))
    bench.feed(replace(seen(set_map, 11, "another"), etcd_revision=9, stamps=other))
    assert bench.store.stamp == "r/1/5"


def test_what_the_disk_knows_of_etcd_is_no_more_than_an_answer_that_is_as_new() -> None:
    for etcd_revision in (0, 50, 51):
        store = MemoryStore("disk-a", *frames(1, 1, 3))
        store.map_revision, store.generation, store.etcd_revision = 10, "g", 50
        bench = ReplicaBench(store)
        bench.hold_lease()
        bench.feed(replace(seen(entry(1, OLD), 10, "g"), etcd_revision=etcd_revision))
        bench.see_presences()
        bench.see_key(None)
        bench.pass_ms(500)
        assert len(bench.wanted(PromoteSelf)) == 1 and bench.wanted(MarkSetBack) == []


def test_who_leads_has_its_disk_remember_how_far_etcd_is() -> None:
    bench = leading()
    set_map = bench.replica.set_map
    assert set_map is not None
    bench.feed(replace(seen(set_map, 11), etcd_revision=77))
    assert bench.store.etcd_revision == 77


def test_a_replica_says_why_an_accepted_loss_would_not_make_it_the_set() -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    assert "does not have the set" in bench.replica.obstacle_to_accepted_loss
    bench.feed(seen(entry(1, B), 10))
    assert bench.replica.obstacle_to_accepted_loss == ""
    bench.feed(StoreLost(SET))
    assert "has not read its disk yet" in bench.replica.obstacle_to_accepted_loss
    damaged = MemoryStore("disk-a", *frames(1, 1, 3))
    damaged.damage = "a hole at 2"
    bench = ReplicaBench(damaged)
    bench.feed(seen(entry(1, OLD), 10))
    assert bench.replica.obstacle_to_accepted_loss == "", "a damaged last member waits for that word"
    damaged.has_no_state = True
    bench = ReplicaBench(damaged)
    bench.feed(seen(entry(1, OLD), 10))
    obstacle = bench.replica.obstacle_to_accepted_loss
    assert "of the disk of a no state is left that the set could go on from: a hole at 2" in obstacle
    assert "Accept the loss of another broker" in obstacle and "give a an empty disk" in obstacle


def test_accepted_data_loss_makes_this_disk_the_set_in_an_epoch_of_its_own() -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.hold_lease()
    bench.feed(seen(entry(4, B, C), 10))
    bench.see_presences()
    bench.see_key(None)
    bench.feed(AcceptDataLoss(SET))
    (asked,) = bench.wanted(PromoteSelf)
    assert (asked.set_map.epoch, asked.set_map.in_sync) == (4 + EPOCHS_LEFT_FREE, (bench.own(),))


def test_data_loss_is_accepted_of_the_entry_that_etcd_has_and_not_of_one_that_it_has_lost() -> None:
    """This process has lived through it: it knows an entry, and an epoch, that are not there any more (history 13)."""
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.hold_lease()
    bench.feed(seen(entry(5, C), 50))
    bench.see_presences()
    bench.feed(replace(seen(entry(4, B, C), 10), is_set_back=True))
    bench.see_key(None)
    bench.pass_ms(60_000)
    bench.hold_lease()
    assert bench.wanted(PromoteSelf) == [] and bench.replica.is_ahead_of_etcd
    bench.feed(AcceptDataLoss(SET))
    bench.pass_ms(1_000)
    (asked,) = bench.wanted(PromoteSelf)
    assert (asked.expected.revision, asked.set_map.epoch) == (10, 5 + EPOCHS_LEFT_FREE)
    bench.answer(Verdict.DONE, 11)
    assert bench.replica.is_serving


def test_data_loss_is_accepted_of_no_older_entry_than_the_last_that_was_seen_or_written() -> None:
    facts = SetFacts(SET)
    for revision in (50, 10, 60):
        facts.map_seen(seen(entry(4, B), revision))
    facts.take_shown()
    assert facts.revision == 60
    facts.map_seen(seen(entry(4, B), 10))
    facts.written(entry(5, B), 61)
    facts.take_shown()
    assert facts.revision == 61
    facts.map_seen(seen(entry(4, B), 10))
    facts.take_shown()
    assert facts.revision == 10


def test_how_far_etcd_is_counts_whatever_it_shows_of_the_entry() -> None:
    facts = SetFacts(SET)
    facts.map_seen(replace(seen(entry(5, B), 50), etcd_revision=50))
    facts.map_seen(replace(seen(entry(4, B), 10), etcd_revision=70, is_set_back=True))
    assert facts.is_set_back
    told = facts.remember(Epoch(5), Incarnation("p1.0"))
    assert told is not None
    assert isinstance(told.request, RememberMap)
    assert (told.request.revision, told.request.etcd_revision) == (50, 70)


def test_an_operators_word_that_is_refused_changes_nothing_of_what_is_known() -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.hold_lease()
    bench.feed(seen(entry(5, C), 50))
    bench.feed(seen(entry(4, B, C), 10))
    bench.see_key(str(C.incarnation))
    bench.feed(AcceptDataLoss(SET))
    assert "data loss refused" in bench.notes()
    assert bench.replica.set_map is not None and bench.replica.set_map.epoch == 5


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("fence", [5, 50, 1 << 62])
def test_data_loss_is_accepted_of_a_disk_that_was_fenced_above_the_map(
    fence: int, is_restarted: bool
) -> None:
    """Whoever has fenced it, and led nothing: the set goes on above that epoch."""
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.hold_lease()
    if not is_restarted:
        bench.feed(seen(entry(4, B, C), 10))
    bench.store.highest_epoch = Epoch(fence)
    bench.lose_store()
    bench.find_store()
    bench.feed(seen(entry(4, B, C), 10))
    bench.see_presences()
    bench.see_key(None)
    bench.pass_ms(60_000)
    bench.hold_lease()
    assert bench.wanted(PromoteSelf) == [], "nobody stands with a disk that knows more than etcd"
    assert bench.replica.obstacle_to_accepted_loss == ""
    bench.feed(AcceptDataLoss(SET))
    (asked,) = bench.wanted(PromoteSelf)
    assert (asked.set_map.epoch, asked.set_map.in_sync) == (fence + EPOCHS_LEFT_FREE, (bench.own(),))
    bench.answer(Verdict.DONE, 11)
    assert bench.replica.is_serving and bench.store.content()[-1] == (fence + EPOCHS_LEFT_FREE, 4)


@pytest.mark.parametrize("fence", [(1 << 63) - 1, (1 << 64) - 1])
def test_a_disk_above_whose_epoch_there_is_none_is_an_obstacle_and_nothing_is_changed(fence: int) -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.hold_lease()
    bench.store.highest_epoch = Epoch(fence)
    bench.feed(seen(entry(4, B, C), 10))
    bench.see_key(None)
    assert f"has seen epoch {fence}, and there is none above" in bench.replica.obstacle_to_accepted_loss
    bench.feed(AcceptDataLoss(SET))
    assert bench.wanted(PromoteSelf) == [] and bench.store.log_end == 3


def test_a_store_that_was_fenced_above_the_map_is_not_written_for_a_primary_below() -> None:
    """R2: it was fenced so that no primary of before can write to it any more."""
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.hold_lease()
    bench.store.highest_epoch = Epoch(50)
    bench.feed(seen(entry(4, B, C), 10))
    bench.see_key(None)
    bench.feed(AcceptDataLoss(SET))
    bench.see_key("b.0")
    bench.pass_ms(60_000)
    assert bench.wanted(OpenSubscription) == [] and bench.store.log_end == 3


def test_data_loss_that_was_accepted_while_somebody_leads_is_not_remembered() -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.hold_lease()
    bench.feed(seen(entry(4, B, C), 10))
    bench.see_presences()
    bench.see_key("b.0")
    bench.feed(AcceptDataLoss(SET))
    bench.see_key(None)
    bench.pass_ms(500)
    assert bench.wanted(PromoteSelf) == []


def test_data_loss_that_was_accepted_is_forgotten_when_somebody_leads() -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.feed(seen(entry(4, B, C), 10))
    bench.see_presences()
    bench.see_key(None)
    bench.feed(AcceptDataLoss(SET))
    bench.see_key("c.0")
    bench.hold_lease()
    bench.see_key(None)
    bench.pass_ms(500)
    assert bench.wanted(PromoteSelf) == []


def test_data_loss_that_was_accepted_gives_up_nothing_of_an_epoch_that_was_not_seen_then() -> None:
    """C led meanwhile, and what it acknowledged is on its disk and B's."""
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.hold_lease()
    bench.feed(seen(entry(4, B, C), 10))
    bench.see_presences()
    bench.see_key(None)
    bench.feed(LeaseLost(SET))
    bench.feed(AcceptDataLoss(SET))
    bench.pass_ms(60_000)
    bench.feed(seen(entry(5, C, B), 50))
    bench.see_key(None)
    bench.hold_lease(8)
    bench.pass_ms(500)
    assert bench.wanted(PromoteSelf) == []


def damaged_last_member() -> ReplicaBench:
    store = MemoryStore("disk-a", *frames(1, 1, 3), commit=5)
    store.damage = "the log ends at 3, but 5 was acknowledged"
    bench = ReplicaBench(store)
    bench.hold_lease()
    bench.feed(seen(entry(1, OLD), 10))
    bench.see_presences()
    bench.see_key(None)
    return bench


def test_a_damaged_last_member_stands_only_by_an_operators_word_with_what_is_undamaged() -> None:
    """R10, R7: without the command it refuses for ever."""
    bench = damaged_last_member()
    bench.pass_ms(60_000)
    assert bench.wanted(PromoteSelf) == []
    assert bench.store.damage
    bench.hold_lease()
    bench.feed(AcceptDataLoss(SET))
    (asked,) = bench.wanted(PromoteSelf)
    assert (asked.set_map.epoch, asked.set_map.in_sync) == (1 + EPOCHS_LEFT_FREE, (bench.own(),))
    bench.answer(Verdict.DONE, 11)
    assert bench.replica.is_serving
    assert bench.store.content()[-1] == (1 + EPOCHS_LEFT_FREE, 4), (
        "the new epoch goes on behind the undamaged part"
    )


def test_one_command_accepts_damage_once() -> None:
    bench = damaged_last_member()
    bench.feed(AcceptDataLoss(SET))
    bench.lose_store()
    bench.store.damage = "another hole"
    bench.find_store()
    bench.pass_ms(60_000)
    assert bench.store.damage
    assert not bench.replica.is_serving


def test_damage_is_not_accepted_while_somebody_leads() -> None:
    bench = damaged_last_member()
    bench.see_key("b.0")
    bench.feed(AcceptDataLoss(SET))
    bench.see_key(None)
    bench.pass_ms(60_000)
    assert bench.store.damage
    assert bench.wanted(PromoteSelf) == []


def test_the_store_remembers_the_entry_that_a_promotion_wrote() -> None:
    bench = leading()
    assert bench.store.map_revision == 11
    assert b'"epoch":2' in bench.store.map_bytes


@pytest.mark.parametrize("leads", [True, False])
def test_an_entry_that_the_store_refused_is_told_again_when_it_is_open_again(leads: bool) -> None:
    if leads:
        bench = leading()
        primary = bench.replica.primary
        assert primary is not None
        newer = seen(primary.membership.set_map, 14)
    else:
        bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3), commit=2))
        bench.feed(seen(entry(1, B, OLD), 10))
        newer = seen(entry(1, B, OLD, C), 14)
    bench.store.is_failing = True
    bench.feed(newer)
    bench.pass_ms(200)
    assert bench.store.map_revision < 14
    bench.store.is_failing = False
    bench.pass_ms(2_000)
    assert bench.store.map_revision == 14


# --- damaged disks ----------------------------------------------------------------------------------------------------


def damaged(*others: Member, primary: Member = B, min_in_sync: int = 1) -> ReplicaBench:
    store = MemoryStore("disk-a", *frames(1, 1, 3))
    store.damage = "a hole"
    bench = ReplicaBench(store)
    bench.hold_lease()
    bench.see_key(str(primary.incarnation))
    members = [each for each in (OLD, *others) if each != primary]
    bench.feed(seen(entry(1, primary, *members, min_in_sync=min_in_sync), 10))
    return bench


def test_a_damaged_disk_is_set_aside_when_the_map_does_not_name_it_any_more() -> None:
    bench = damaged(B)
    assert bench.store.disk == "disk-a"
    bench.feed(seen(entry(1, B), 11))
    assert bench.store.disk == "disk-a-1"


def test_the_last_member_keeps_its_damaged_disk_and_does_not_stand() -> None:
    """History 17."""
    bench = damaged(primary=OLD)
    bench.see_key(None)
    bench.see_presences()
    bench.pass_ms(2_000)
    assert bench.store.disk == "disk-a"
    assert bench.wanted(PromoteSelf) == []
    assert bench.replica.backup is not None
    assert bench.replica.backup.state is BackupState.DAMAGED


def test_a_damaged_member_that_may_not_be_removed_comes_back_with_a_new_disk_while_the_primary_lives() -> (
    None
):
    """R4: its new incarnation replaces it; nothing completes before."""
    bench = damaged(B, min_in_sync=2)
    assert bench.store.disk == "disk-a-1"
    assert bench.wanted(OpenSubscription)[-1].subscribe.disk == "disk-a-1"


def test_a_damaged_member_that_may_not_be_removed_stays_while_nobody_leads() -> None:
    bench = damaged(B, min_in_sync=2)
    other = MemoryStore("disk-a", *frames(1, 1, 3))
    other.damage = "a hole"
    bench = ReplicaBench(other)
    bench.see_key(None)
    bench.feed(seen(entry(1, B, OLD, min_in_sync=2), 10))
    bench.pass_ms(1_000)
    assert other.disk == "disk-a"


def test_a_primary_whose_disk_lost_what_it_acknowledged_does_not_stand_with_the_rest() -> None:
    """Its store knows nothing of it: who is alone in the set waits for an operator's word (R7, R10)."""
    bench = leading()
    bench.lose_store()
    bench.store.frames.pop()
    bench.store.commit_index = min(bench.store.commit_index, bench.store.log_end)
    asked = len(bench.wanted(PromoteSelf))
    bench.find_store()
    assert bench.replica.primary is None
    bench.see_presences(bench.own())
    bench.see_key(None)
    for _ in range(20):
        bench.hold_lease()
        bench.pass_ms(200)
    assert len(bench.wanted(PromoteSelf)) == asked
    assert bench.replica.backup is not None
    assert bench.replica.backup.state is BackupState.DAMAGED


def test_a_primary_whose_disk_is_damaged_stops() -> None:
    bench = leading()
    bench.lose_store()
    bench.store.damage = "a hole"
    bench.find_store()
    assert bench.replica.primary is None
    assert bench.wanted(DropLeaseKey)
    assert Epoch(2) == (bench.replica.set_map.epoch if bench.replica.set_map else 0)


@pytest.mark.parametrize("is_found_by_store", [True, False])
def test_a_disk_that_is_no_good_to_this_version_stays_where_the_set_has_no_member_to_spare(
    is_found_by_store: bool,
) -> None:
    """Perhaps nobody else can use his, either; a later version may use all of it."""
    unusable = frame(1, 3, (DeclareExchange(None, "e", "nonsense", True), True))
    store = MemoryStore("disk-a", *frames(1, 1, 2), unusable, commit=3)
    if is_found_by_store:
        store.damage, store.is_unusable = "frame 3..3 cannot be applied", True
    bench = ReplicaBench(store)
    bench.hold_lease()
    bench.see_key(str(B.incarnation))
    bench.feed(seen(entry(1, B, OLD, min_in_sync=2), 10))
    bench.pass_ms(4_000)
    assert bench.replica.backup is not None and bench.replica.backup.state is BackupState.DAMAGED
    assert bench.store.disk == "disk-a"
    assert not bench.replica.obstacle_to_accepted_loss, (
        "whoever has found it knows where the log may be ended"
    )
    bench.feed(seen(entry(1, B, C, min_in_sync=2), 11))
    assert bench.store.disk == "disk-a-1", "nobody counts on it"


def test_a_primary_whose_disk_is_no_good_to_it_stops_and_goes_on_with_a_store_that_can_use_it() -> None:
    bench = leading()
    kept, bench.store.frames = bench.store.frames, []
    bench.lose_store()
    bench.store.damage, bench.store.is_unusable = "frame 1..1 cannot be applied", True
    bench.find_store()
    assert bench.replica.primary is None
    assert bench.replica.backup is not None and bench.replica.backup.state is BackupState.DAMAGED
    bench.lose_store()
    bench.store.damage, bench.store.is_unusable, bench.store.frames = "", False, kept
    bench.find_store()
    assert bench.replica.backup is not None and bench.replica.backup.is_loaded


def test_a_reign_that_is_over_is_taken_apart_and_what_is_loaded_then_is_not() -> None:
    bench = leading()
    assert bench.replica.primary is not None
    state = bench.replica.primary.context.state
    bench.feed(seen(entry(3, B, min_in_sync=1), 12))
    assert not bench.replica.is_serving and state.is_taken_apart
    assert bench.replica.backup is not None and bench.replica.backup.copy is not None
    assert not bench.replica.backup.copy.state.is_taken_apart


def test_the_memory_of_a_set_that_is_removed_is_taken_apart() -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3), commit=3))
    bench.feed(seen(entry(1, B, OLD, min_in_sync=1), 10))
    assert bench.replica.backup is not None and bench.replica.backup.copy is not None
    state = bench.replica.backup.copy.state
    bench.feed(MapSeen(SET, None, 12, b"", "g"))
    assert state.is_taken_apart


def test_a_set_is_handed_over_behind_what_its_primary_is_amid() -> None:
    bench = leading_with_a_backup()
    bench.see_presences(bench.own(), member("b"))
    primary, turns = bench.replica.primary, 5
    assert primary is not None
    primary.context.alone.do(iter([PIECE_COST] * turns))
    bench.feed(HandOver(SET, B.broker))
    bench.pass_ms(50)
    assert bench.replica.holds_back and bench.replica.is_serving
    for _ in range(turns):
        bench.ms += 1
        bench.feed(Woken(SET))
    bench.pass_ms(50)
    assert not bench.replica.is_serving


def test_a_key_is_not_restored_for_whom_a_member_has_left_whatever_the_primary_is_amid() -> None:
    """R6: it may lead by now, and etcd have forgotten that."""
    bench = leading_with_a_backup()
    primary = bench.replica.primary
    assert primary is not None
    bench.feed(replace(seen(primary.membership.set_map, 12), is_set_back=True))
    primary.context.alone.do(iter([PIECE_COST] * 100))
    bench.feed(LeaseLost(SET))
    bench.feed(BackupStreamClosed(SET, 1))
    bench.hold_lease(8)
    bench.pass_ms(100)
    assert bench.replica.holds_back and not primary.is_followed_by_all
    assert bench.wanted(RestoreLeaseKey) == []


def test_a_set_is_not_handed_over_to_whom_has_left_while_its_primary_prepares_to_leave() -> None:
    """It would hear nothing of that, and what is open would end for nobody."""
    bench = leading_with_a_backup()
    bench.see_presences(bench.own(), member("b"))
    primary = bench.replica.primary
    assert primary is not None
    primary.prepare_to_leave(bench.now)
    primary.context.alone.do(iter([PIECE_COST] * 5))
    bench.feed(HandOver(SET, B.broker))
    assert primary.is_leaving and not primary.may_leave
    bench.feed(BackupStreamClosed(SET, 1))
    for _ in range(5):
        bench.ms += 1
        bench.feed(Woken(SET))
    assert "hand over refused" in bench.notes()
    assert bench.replica.is_serving and not primary.is_leaving


def test_what_took_long_to_be_gathered_is_given_as_long_to_be_heard() -> None:
    parting = Parting(Epoch(1), [7], at(0))
    parting.told(200, at(1_000))
    assert not parting.is_over(at(2_199)) and parting.is_over(at(2_200))


def test_backups_hear_that_a_primary_lives_and_are_heard_whatever_it_is_amid() -> None:
    bench = leading_with_a_backup()
    primary = bench.replica.primary
    assert primary is not None
    primary.context.alone.do(iter([PIECE_COST] * 100))
    before = len(bench.wanted(TellBackup))
    for _ in range(20):
        bench.feed(BackupSaid(SET, 1, Acknowledge(SET, primary.epoch, B.broker, B.incarnation, LogIndex(1))))
        bench.pass_ms(100)
    assert bench.replica.holds_back
    assert len(bench.wanted(TellBackup)) >= before + 7
    assert primary.is_followed_by_all
