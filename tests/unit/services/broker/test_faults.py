"""A core that raises: its set's part of this process is over as if the process had died, and begins anew from its disk."""

from typing import NoReturn

import pytest

from lockstep.core.commands import BeginCommand
from lockstep.core.effects import (
    AnyEffect,
    CloseSubscription,
    DropLeaseKey,
    EndBackupStreams,
    EndClientStreams,
    OpenSubscription,
    PromoteSelf,
    PutPresence,
    TellClient,
)
from lockstep.core.frames import Frame
from lockstep.core.ids import BrokerId, DiskId, Epoch, LogIndex, SessionId, SessionKey, TransactionKey
from lockstep.core.inputs import AcceptDataLoss, AnyInput, ClientSaid, PrimarySaid, Verdict
from lockstep.core.log_copy import CannotApply
from lockstep.core.records import DeclareExchange
from lockstep.core.replication import Frames, SnapshotChunk, SubscriptionAccepted, ToBackup
from lockstep.core.requests import AttachSession
from lockstep.core.store_protocol import SetOpened, StateItem, StoreAnswer
from services.backup.core.backup_memory import BackupState
from services.backup.core.faults import FORGOTTEN_MS, REST_MS, REST_MS_MAX, Faults
from services.backup.core.follower import Follower
from services.backup.core.settings import BackupSettings
from services.broker.core.map_rebuilding import EPOCHS_LEFT_FREE
from tests.unit.services.broker.test_replica import OLD, B
from tests.unit.services.replicas import SET, MemoryStore, ReplicaBench, at, entry, frame, frames, seen

NONSENSE = DeclareExchange(None, "e", "nonsense", True), True
GARBAGE = b"\xff"


class Raising:
    """A factory of observers; what is in hand then is applied, and not told to anybody."""

    hears_whole = False

    def create(self, key: TransactionKey) -> NoReturn:
        raise KeyError(key)


class FaultyBench(ReplicaBench):
    """What the core raises ends it as in the driver."""

    def __init__(self, store: MemoryStore) -> None:
        self.raised: list[Exception] = []
        self.raises_over: type[StoreAnswer] | None = None
        """It raises over the next answer of this kind, before it has heard it."""
        super().__init__(store)

    def feed(self, given: AnyInput) -> None:
        try:
            answer, wanted = getattr(given, "answer", None), self.raises_over
            if wanted is not None and isinstance(answer, wanted):
                self.raises_over = None
                raise ValueError(given)
            effects = self.replica.handle(given, self.now)
        except Exception as error:
            self.raised.append(error)
            effects = self.replica.end_by_fault(error, self.now)
        self.perform(effects)

    def state(self) -> BackupState | None:
        return self.replica.backup.state if self.replica.backup is not None else None

    def hear(self, *messages: ToBackup) -> None:
        """Of the primary, on the last subscription."""
        for message in messages:
            stream = self.wanted(OpenSubscription)[-1].stream
            self.feed(PrimarySaid(SET, stream, message))


def following(commit: int = 2) -> FaultyBench:
    """Frames 1 and 2 are on its disk; b leads."""
    bench = FaultyBench(MemoryStore("disk-a", *frames(1, 1, 2), commit=commit))
    bench.hold_lease(for_ms=600_000)
    bench.see_key(str(B.incarnation))
    bench.feed(seen(entry(1, B, OLD), 10))
    assert bench.state() is BackupState.SUBSCRIBING
    accept(bench, 2)
    return bench


def accept(bench: FaultyBench, agreed: int) -> None:
    bench.hear(SubscriptionAccepted(SET, Epoch(1), LogIndex(agreed), LogIndex(0), False, (), 0))
    assert bench.state() is BackupState.FOLLOWING


def say(bench: FaultyBench, *said: Frame, commit: int) -> None:
    parts = tuple((each.durable, each.transient) for each in said)
    bench.hear(Frames(SET, Epoch(1), parts, LogIndex(commit)))
    bench.pass_ms(50)


def test_a_backup_that_cannot_apply_a_frame_is_over_for_this_set_and_reads_its_disk_anew() -> None:
    """Here the disk is good: what could not be applied was on the stream, or in memory, only."""
    bench = following()
    before, stream = bench.replica.incarnation, bench.wanted(OpenSubscription)[-1].stream
    say(bench, frame(1, 3)._replace(transient=GARBAGE), commit=3)
    (error,) = bench.raised
    assert isinstance(error, CannotApply) and str(error).startswith("frame 3..3 cannot be applied: BadFrame(")
    assert bench.state() is None and bench.replica.is_half_done is False
    assert bench.replica.faults.last == str(error)
    assert len(bench.wanted(EndClientStreams)) == len(bench.wanted(EndBackupStreams)) == 1
    assert bench.wanted(CloseSubscription)[-1].stream == stream
    assert bench.replica.incarnation != before, "others may still believe in the memory that is gone"
    assert bench.wanted(PutPresence)[-1].incarnation == bench.replica.incarnation
    told = len(bench.effects)
    bench.pass_ms(REST_MS - 100)
    assert bench.state() is None and not [e for e in bench.effects[told:] if isinstance(e, OpenSubscription)]
    bench.pass_ms(200)
    assert bench.state() is BackupState.SUBSCRIBING and not bench.replica.faults.last
    subscribe = bench.wanted(OpenSubscription)[-1].subscribe
    assert (subscribe.log_end, subscribe.is_memory_whole, subscribe.applied) == (3, False, 3)
    accept(bench, 3)
    say(bench, frame(1, 4), commit=4)
    assert bench.replica.log_end == 4 and len(bench.raised) == bench.replica.faults.count == 1


def test_a_frame_that_cannot_be_applied_and_is_on_the_disk_is_damage_and_is_named() -> None:
    bench = following()
    say(bench, frame(1, 3, NONSENSE), frame(1, 4), commit=4)
    assert len(bench.raised) == 1
    bench.pass_ms(5_000)
    assert bench.state() is BackupState.DAMAGED and len(bench.raised) == 1
    opened = bench.replica.backup.opened if bench.replica.backup is not None else None
    assert opened is not None and opened.is_unusable and bench.replica.is_disk_unusable
    assert opened.damage.startswith("what the disk has cannot be loaded: frame 3..3 cannot be applied: ")
    assert bench.store.disk == "disk-a", "the map has no member to spare yet"
    bench.feed(seen(entry(1, B), 11))
    assert bench.store.disk == "disk-a-1" and not bench.replica.is_disk_unusable


def test_what_is_committed_is_not_said_to_a_store_that_may_have_missed_a_cut() -> None:
    """Frame 3 of epoch 1 was given up: what another log has at that index is committed, and this disk has not got it."""
    bench = FaultyBench(MemoryStore("disk-a", *frames(1, 1, 3), commit=2))
    bench.hold_lease(for_ms=600_000)
    bench.see_key(str(B.incarnation))
    bench.feed(seen(entry(2, B), 10))
    bench.is_store_up = False
    bench.hear(SubscriptionAccepted(SET, Epoch(2), LogIndex(2), LogIndex(0), False, (), 0))
    third = frame(2, 3)
    bench.hear(Frames(SET, Epoch(2), ((third.durable, third.transient),), LogIndex(3)))
    bench.lose_store()
    assert bench.replica.commit_index == 3 and bench.store.content()[-1] == (1, 3)
    bench.raises_over = SetOpened
    bench.find_store()
    assert len(bench.raised) == 1 and bench.state() is None
    assert bench.store.commit_index == 2
    bench.pass_ms(2_000)
    assert bench.wanted(OpenSubscription)[-1].subscribe.commit_index == 2
    bench.hear(SubscriptionAccepted(SET, Epoch(2), LogIndex(2), LogIndex(0), False, (), 0))
    bench.hear(Frames(SET, Epoch(2), ((third.durable, third.transient),), LogIndex(3)))
    assert bench.store.content()[-1] == (2, 3), "it has the log of the others"


def test_a_frame_that_is_no_frame_ends_the_stream_and_nothing_else() -> None:
    bench = following()
    good, torn = frame(1, 3), frame(1, 4)
    before = bench.replica.incarnation
    say(bench, good, torn._replace(durable=torn.durable[:-1] + b"?"), frame(1, 5), commit=3)
    assert not bench.raised and bench.state() is BackupState.READY
    assert bench.replica.incarnation == before and bench.replica.log_end == bench.store.log_end == 3
    assert bench.wanted(CloseSubscription)
    (note,) = bench.notes_of("bad frame")
    assert note.startswith("of b in epoch 1, behind index 3: frame 4..4 has a wrong checksum")
    bench.pass_ms(2_000)
    assert bench.state() is BackupState.SUBSCRIBING
    accept(bench, 3)
    say(bench, frame(1, 5), commit=5)
    assert bench.notes_of("bad frame")[-1].endswith("frame 5..5 does not follow 3")


def test_a_snapshot_that_is_no_state_ends_this_sets_part_each_time_and_later_each_time() -> None:
    bench = FaultyBench(MemoryStore("disk-a"))
    bench.hold_lease(for_ms=600_000)
    bench.see_key(str(B.incarnation))
    bench.feed(seen(entry(1, B), 10))
    waits = []
    for number in range(3):
        bench.hear(
            SubscriptionAccepted(SET, Epoch(1), LogIndex(0), LogIndex(7), True, ((Epoch(1), LogIndex(1)),), 0)
        )
        bench.hear(SnapshotChunk(SET, Epoch(1), (StateItem(b"?1", b"", True),), True))
        assert bench.state() is None and len(bench.raised) == number + 1
        since = bench.ms
        while bench.state() is not BackupState.SUBSCRIBING:
            bench.pass_ms(50)
        waits.append(bench.ms - since)
    assert waits == [REST_MS, 2 * REST_MS, 4 * REST_MS]
    assert bench.store.disk != "disk-a", "an installation that was begun leaves an empty disk"


def test_a_log_that_whoever_is_promoted_cannot_apply_is_led_by_nobody_until_an_operator_ends_it_there() -> (
    None
):
    """Any of the suffix may have been acknowledged: nothing of it is passed over. Which index it is, and why, is said."""
    store = MemoryStore("disk-a", *frames(1, 1, 2), frame(1, 3, NONSENSE), frame(1, 4), commit=2)
    bench = FaultyBench(store)
    bench.hold_lease(for_ms=600_000)
    bench.feed(seen(entry(1, OLD), 10))
    bench.see_presences()
    bench.see_key(None)
    for epoch in (2, 3):
        assert bench.wanted(PromoteSelf)[-1].set_map.epoch == epoch
        won = bench.replica.incarnation
        bench.answer(Verdict.DONE, 10 + epoch)
        assert len(bench.raised) == epoch - 1 and bench.replica.primary is None
        assert bench.wanted(DropLeaseKey)[-1].incarnation == won
        bench.see_key(None)
        bench.pass_ms(3_000)
    asked = len(bench.wanted(PromoteSelf))
    assert asked == 2 and bench.state() is BackupState.DAMAGED
    bench.pass_ms(60_000)
    assert len(bench.wanted(PromoteSelf)) == asked and len(bench.raised) == 2, (
        "it does not begin again and again"
    )
    opened = bench.replica.backup.opened if bench.replica.backup is not None else None
    assert opened is not None and opened.damage.startswith("frame 3..3 cannot be applied: ")
    assert bench.store.content()[-1] == (1, 4), "nothing of the disk was changed"
    assert not bench.replica.obstacle_to_accepted_loss
    bench.feed(AcceptDataLoss(SET))
    bench.pass_ms(1_000)
    bench.answer(Verdict.DONE, 20)
    assert bench.replica.is_serving
    assert bench.store.content() == [(1, 1), (1, 2), (3 + EPOCHS_LEFT_FREE, 3)]


def test_a_snapshot_that_its_broker_cannot_load_is_an_obstacle_and_says_so() -> None:
    """Nothing is before it: there is another version, or an empty disk."""
    store = MemoryStore("disk-a", *frames(1, 1, 2), commit=2)
    store.items.append(StateItem(b"?1", b"", True))
    bench = FaultyBench(store)
    bench.hold_lease(for_ms=600_000)
    bench.feed(seen(entry(1, OLD), 10))
    bench.pass_ms(4_000)
    assert bench.state() is BackupState.DAMAGED
    obstacle = bench.replica.obstacle_to_accepted_loss
    assert (
        "cannot use of the disk of a is in its snapshot, up to index 0, and nothing lies before" in obstacle
    )
    assert "Accept the loss of another broker" in obstacle and "give a an empty disk" in obstacle


def damaged_from_3() -> FaultyBench:
    """Nobody leads, and this version cannot use what begins at index 3; so much is known of it here alone."""
    bench = FaultyBench(MemoryStore("disk-a", *frames(1, 1, 2), frame(1, 3, NONSENSE), frame(1, 4), commit=4))
    bench.hold_lease(for_ms=600_000)
    bench.feed(seen(entry(1, OLD), 10))
    bench.see_presences()
    bench.see_key(None)
    bench.pass_ms(4_000)
    assert bench.state() is BackupState.DAMAGED
    return bench


@pytest.mark.parametrize("reaches", [2, 3, 4])
def test_an_index_that_the_snapshot_has_is_refused_before_anybody_asks_the_store(reaches: int) -> None:
    bench = damaged_from_3()
    bench.store.snapshot_index = LogIndex(reaches)
    bench.lose_store()
    bench.find_store()
    obstacle = bench.replica.obstacle_to_accepted_loss
    assert bool(obstacle) == (reaches >= 3)
    if obstacle:
        assert f"is in its snapshot, up to index {reaches}, and nothing lies before that: " in obstacle
        assert "frame 3..3 cannot be applied" in obstacle


def test_a_store_that_had_the_index_in_its_snapshot_by_then_refuses_and_the_reason_is_known_behind_that() -> (
    None
):
    bench = damaged_from_3()
    before = bench.replica.obstacle_to_accepted_loss
    bench.store.snapshot_index = LogIndex(3)
    asked = len(bench.wanted(PromoteSelf))
    assert not before
    bench.feed(AcceptDataLoss(SET))
    bench.pass_ms(6_000)
    assert "is in its snapshot, up to index 3, " in bench.replica.obstacle_to_accepted_loss
    assert len(bench.wanted(PromoteSelf)) == asked and bench.store.content()[-1] == (1, 4)


def test_a_primary_that_raises_ends_without_a_word_to_its_clients() -> None:
    """As one that died: a command that it raises over has to be found out, and those who fell with it are not (`poison`)."""
    bench = FaultyBench(MemoryStore("disk-a"))
    bench.replica.factories = (Raising(),)
    bench.hold_lease(for_ms=600_000)
    bench.feed(seen(entry(1, OLD), 10))
    bench.see_key(None)
    bench.answer(Verdict.DONE, 11)
    primary, led = bench.replica.primary, bench.replica.incarnation
    assert primary is not None and primary.is_serving
    bench.feed(ClientSaid(SET, 1, (AttachSession(SET, SessionId("s"), SessionKey(0), Epoch(0), 60_000, 0),)))
    bench.pass_ms(100)
    end = bench.store.log_end
    told = len(bench.effects)
    bench.feed(ClientSaid(SET, 1, (BeginCommand(1),)))
    assert len(bench.raised) == 1 and not bench.replica.is_serving
    after = bench.effects[told:]
    assert [each for each in after if isinstance(each, EndClientStreams)]
    assert not [each for each in after if isinstance(each, TellClient)]
    assert [each.incarnation for each in after if isinstance(each, DropLeaseKey)] == [led]
    assert bench.store.log_end == end, "nothing of it has left"
    bench.see_key(None)
    bench.pass_ms(2_000)
    bench.answer(Verdict.DONE, 12)
    assert bench.store.content()[-1][0] == 3, "it leads again"


def fault(bench: FaultyBench) -> None:
    """Of a core, whatever it was that raised."""
    bench.perform(bench.replica.end_by_fault(ValueError("x"), bench.now))


def unled() -> FaultyBench:
    """It has asked to be promoted to epoch 2."""
    bench = FaultyBench(MemoryStore("disk-a", *frames(1, 1, 2), commit=2))
    bench.hold_lease(for_ms=600_000)
    bench.feed(seen(entry(1, OLD), 10))
    bench.see_presences()
    bench.see_key(None)
    assert bench.wanted(PromoteSelf)[-1].set_map.epoch == 2
    return bench


def test_a_promotion_that_was_asked_for_before_a_fault_is_nobodys() -> None:
    """It names an incarnation that is gone; the next one asks for an epoch of its own, behind its rest."""
    bench = unled()
    fault(bench)
    bench.answer(Verdict.DONE, 11)
    bench.feed(seen(bench.wanted(PromoteSelf)[-1].set_map, 11))
    assert bench.replica.primary is None and not bench.raised and bench.state() is None
    bench.see_key(None)
    bench.pass_ms(REST_MS + 2_000)
    assert bench.wanted(PromoteSelf)[-1].set_map.epoch == 3
    bench.answer(Verdict.DONE, 12)
    assert bench.replica.is_serving and bench.store.content()[-1][0] == 3


def test_a_fault_of_another_kind_leaves_what_was_found_of_a_disk() -> None:
    bench = following()
    say(bench, frame(1, 3)._replace(transient=GARBAGE), commit=3)
    bench.pass_ms(REST_MS + 100)
    accept(bench, 3)
    bench.store.frames[-1] = bench.store.frames[-1]._replace(durable=frame(1, 3, NONSENSE).durable)
    fault(bench)
    bench.pass_ms(5_000)
    assert bench.state() is BackupState.DAMAGED
    fault(bench)
    bench.store.frames[-1] = frame(1, 3)
    bench.pass_ms(5_000)
    assert bench.state() is BackupState.DAMAGED, "for as long as this process lives"
    assert bench.replica.damage_found(DiskId("disk-a")) and not bench.replica.damage_found(DiskId("another"))


def test_what_is_committed_is_all_read_anew_behind_a_fault_though_the_store_had_not_heard_so() -> None:
    bench = following()
    bench.hear(Frames(SET, Epoch(1), ((frame(1, 3).durable, b""),), LogIndex(2)))
    bench.hear(Frames(SET, Epoch(1), (), LogIndex(3)))
    assert bench.store.commit_index == 2
    fault(bench)
    assert bench.store.commit_index == 3
    bench.pass_ms(REST_MS)
    assert bench.wanted(OpenSubscription)[-1].subscribe.commit_index == 3


@pytest.mark.parametrize("error", [ValueError("x"), CannotApply(frame(1, 3), KeyError(7))])
def test_who_faults_again_rests_longer_up_to_a_minute_and_after_a_while_it_is_the_first_time(
    error: Exception,
) -> None:
    faults, now, rests = Faults(), 0, []
    for _ in range(9):
        faults.found(error, None, at(now))
        begin = now
        while faults.is_resting(at(now)):
            now += 100
        rests.append(now - begin)
    assert rests == [min(REST_MS << number, REST_MS_MAX) for number in range(9)]
    faults.found(error, None, at(now + FORGOTTEN_MS + REST_MS_MAX))
    assert not faults.is_resting(at(now + FORGOTTEN_MS + REST_MS_MAX + REST_MS))


def test_only_the_same_frame_of_the_same_disk_is_damage() -> None:
    faults, disk = Faults(), DiskId("disk-a")
    third, fourth = CannotApply(frame(1, 3), KeyError(7)), CannotApply(frame(1, 4), KeyError(7))
    assert faults.found(third, disk, at(0)) is None
    assert faults.found(fourth, disk, at(0)) is None
    assert faults.found(third, DiskId("another"), at(0)) is None
    assert faults.found(third, disk, at(0)) is None
    assert faults.found(ValueError(), disk, at(0)) is None
    found = faults.found(third, disk, at(0))
    assert found is not None and (found.disk, found.first, found.is_unusable) == (disk, 3, True)


def test_a_process_that_is_a_backup_alone_begins_anew_too() -> None:
    follower = Follower(SET, BrokerId("a"), OLD.incarnation, BackupSettings())
    follower.handle(seen(entry(1, B, OLD), 10), at(0))
    before = follower.incarnation
    effects: list[AnyEffect] = follower.end_by_fault(ValueError("x"), at(0))
    assert [type(each) for each in effects] == [CloseSubscription]
    assert follower.backup is None and follower.incarnation != before
    follower.handle(seen(entry(1, B, OLD), 10), at(REST_MS - 1))
    assert follower.backup is None
    follower.handle(seen(entry(1, B, OLD), 10), at(REST_MS))
    assert follower.backup is not None
