"""A promotion behind a long log: it is applied in pieces, and nobody is led before all of it is."""

from collections.abc import Callable

from lockstep.core.apply_epochs import GIVEN_BACK_IN_ONE
from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member
from lockstep.core.effects import DropLeaseKey, PromoteSelf, TellStore, WakeAt
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SessionKey
from lockstep.core.inputs import MapSeen, Tick, Verdict, Woken
from lockstep.core.log_copy import LogCopy
from lockstep.core.records import OpenSession
from lockstep.core.replication import HELD_IN_ONE, HandedOver, HeldMessages
from lockstep.core.store_protocol import AnyStoreAnswer, AnyStoreRequest, RememberMap, StoreRefused
from services.backup.core.settings import BackupSettings
from services.broker.core.promotion import Candidacy
from services.broker.core.settings import ReplicaSettings
from services.broker.core.taking_over import TakingOver
from services.primary.core.primary import PrimaryCore
from services.primary.core.settings import PrimarySettings
from tests.unit.lockstep.core.history import Log, message, replay
from tests.unit.services.replicas import SET, MemoryStore, ReplicaBench, entry, frames, member, seen

FRAMES, COMMITTED = 20, 2
OLD = Member(BrokerId("a"), DiskId("disk-a"), Incarnation("p0.0"))


def promoted() -> ReplicaBench:
    """Its promotion is answered; most of its log is not applied yet."""
    settings = ReplicaSettings(PrimarySettings(piece_cost=1), BackupSettings(piece_cost=1))
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, FRAMES), commit=COMMITTED), settings)
    bench.hold_lease()
    bench.feed(seen(entry(1, OLD), 10))
    bench.see_presences()
    bench.see_key(None)
    turns(bench, until=lambda: bool(bench.wanted(PromoteSelf)))
    bench.answer(Verdict.DONE, 11)
    assert bench.replica.primary is None
    return bench


def turns(bench: ReplicaBench, until: Callable[[], bool]) -> int:
    """The turns that it asks for, until something holds; answers how many."""
    for count in range(10 * FRAMES):
        if until():
            return count
        bench.ms += 1
        assert any(isinstance(effect, WakeAt) for effect in bench.effects)
        bench.feed(Woken(SET))
    raise AssertionError("it does not come to its end")


def test_a_long_log_is_applied_in_as_many_turns_as_it_needs_before_anybody_is_led() -> None:
    bench = promoted()
    assert turns(bench, until=lambda: bench.replica.primary is not None) >= FRAMES - COMMITTED - 1
    assert bench.replica.is_serving
    assert bench.replica.primary is not None
    assert bench.replica.primary.context.state.applied == FRAMES + 1


def test_the_lease_is_renewed_in_between_and_holds_for_the_primary() -> None:
    bench = promoted()
    bench.feed(Woken(SET))
    bench.hold_lease(for_ms=9_000)
    turns(bench, until=lambda: bench.replica.primary is not None)
    assert bench.replica.primary is not None
    assert bench.replica.primary.streams.serve_until_ms > bench.ms


def test_an_epoch_that_is_lost_in_between_is_not_led_and_the_memory_takes_a_new_name() -> None:
    bench = promoted()
    bench.feed(Woken(SET))
    before = bench.replica.incarnation
    bench.feed(seen(entry(3, member("b")), 12))
    assert bench.replica.primary is None
    assert bench.replica.incarnation != before
    assert DropLeaseKey(SET, before) in bench.effects
    assert "promotion_lost" in [note.replace(" ", "_") for note in bench.notes()]
    bench.ms += 1
    bench.feed(Woken(SET))
    assert bench.replica.primary is None


def test_loss_that_is_accepted_elsewhere_takes_no_promotion_back() -> None:
    """The generation is seen to change before the entry is, which this process has written (R5, R7)."""
    bench = promoted()
    bench.feed(Woken(SET))
    before, earlier = bench.replica.incarnation, entry(1, OLD)
    bench.feed(MapSeen(SET, earlier, 10, earlier.encode(), "g2", ("g",)))
    turns(bench, until=lambda: bench.replica.primary is not None)
    assert bench.replica.is_serving and bench.replica.incarnation == before
    told = [each.request for each in bench.wanted(TellStore) if isinstance(each.request, RememberMap)][-1]
    assert (told.revision, told.generation) == (11, "g2"), "and the disk remembers both"


def test_who_lost_its_store_while_it_read_its_disk_does_not_stand_and_drops_nobody_from_the_set() -> None:
    settings = ReplicaSettings(PrimarySettings(piece_cost=1), BackupSettings(piece_cost=1))
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, FRAMES), commit=FRAMES), settings)
    bench.feed(seen(entry(1, member("b"), OLD), 10))
    bench.see_presences()
    bench.see_key(None)
    bench.lose_store()
    bench.hold_lease()
    for _ in range(10 * FRAMES):
        bench.ms += 1
        bench.feed(Woken(SET))
    bench.hold_lease()
    bench.pass_ms(500)
    assert "loaded" in bench.notes()
    assert not bench.wanted(PromoteSelf), (
        "its disk may be gone, and the other one in sync would be a learner's"
    )
    bench.find_store()
    bench.pass_ms(500)
    assert bench.wanted(PromoteSelf)


class WithoutRoom(MemoryStore):
    """There is no room for the map."""

    def handle(self, request: AnyStoreRequest) -> list[AnyStoreAnswer]:
        if not isinstance(request, RememberMap):
            return super().handle(request)
        head = request.set_name, request.epoch, request.incarnation
        return [StoreRefused(*head, ErrorCode.STORE_FULL, "no room", self.highest_epoch)]


def test_a_disk_without_room_for_the_map_is_read_to_its_end_however_long_that_takes() -> None:
    settings = ReplicaSettings(PrimarySettings(piece_cost=1), BackupSettings(piece_cost=1))
    many = 40 * settings.backup.retry_ms
    bench = ReplicaBench(WithoutRoom("disk-a", *frames(1, 1, many), commit=many), settings)
    bench.feed(seen(entry(1, member("b"), OLD), 10))
    for turn in range(4 * many):
        bench.ms += 1
        bench.feed(Tick(SET) if turn % 50 == 0 else Woken(SET))
    assert bench.notes()[0] == "loaded" and "store refused" in bench.notes()


def test_open_transactions_are_aborted_in_pieces_unless_they_were_handed_over() -> None:
    log, operations = Log(), 4 * GIVEN_BACK_IN_ONE
    log.begin_epoch()
    queue = log.queue("q")
    key = log.begin()
    for _ in range(operations):
        log.publish(message((queue,)), transaction=key)
    log.flush()
    candidacy = Candidacy(entry(2, OLD), (), is_restarted=False)
    for handed in (None, HandedOver(SET, Epoch(1), OLD.broker)):
        copy = LogCopy(replay(log.frames), LogIndex(operations), 0)
        taking = TakingOver(candidacy, copy, OLD.disk, piece_cost=1)
        taking.pieces.go_on()
        taking.applied(handed)
        pieces = 0
        while taking.pieces.works:
            taking.pieces.go_on()
            pieces += 1
        assert (pieces, len(copy.state.contents)) == ((0, operations) if handed else (5, 0))
        assert copy.state.transactions.open_count == (1 if handed else 0)
        assert taking.gone.aborted == (0 if handed else 1)


def test_what_was_in_hand_is_taken_up_in_pieces_before_anybody_is_led() -> None:
    log = Log()
    log.begin_epoch()
    queue, session = log.queue("q"), SessionKey(log.append(OpenSession(None, "s", 1000), False))
    log.publish(*(message((queue,)),) * (4 * HELD_IN_ONE))
    log.flush()
    target = entry(2, OLD)
    held = [HeldMessages() for _ in range(4)]
    for place, part in enumerate(held):
        part.add(session, queue.id, queue.positions()[place * HELD_IN_ONE : (place + 1) * HELD_IN_ONE])
    handed = HandedOver(SET, Epoch(1), OLD.broker, log.state.applied, held=tuple(held))
    copy = LogCopy(replay(log.frames), log.state.applied, 0)
    taking = TakingOver(Candidacy(target, (), is_restarted=False), copy, OLD.disk, piece_cost=1)
    taking.pieces.go_on()
    taking.applied(handed)
    assert not taking.pieces.works
    primary = PrimaryCore(copy, OLD, target, 1, False, PrimarySettings(), Now(1, 1), is_handed_over=True)
    taking.lead(primary)
    counts = [primary.context.dispatch.held_count(queue.id)]
    while taking.pieces.works:
        taking.pieces.go_on()
        counts.append(primary.context.dispatch.held_count(queue.id))
    assert counts[:4] == [HELD_IN_ONE, 2 * HELD_IN_ONE, 3 * HELD_IN_ONE, 4 * HELD_IN_ONE]
    assert not primary.is_serving and taking.primary is primary
