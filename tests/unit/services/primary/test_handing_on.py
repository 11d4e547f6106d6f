"""What a primary hands on: transactions stay open and deliveries in hand behind the very log that it belongs to (T6, T8)."""

import msgspec
import pytest

from lockstep.core.clock import Now
from lockstep.core.commands import (
    CommitBranchCommand,
    Disposition,
    EndCommand,
    PrepareBranchCommand,
    SelectDtxCommand,
    SettleCommand,
    StartCommand,
)
from lockstep.core.effects import WakeAt
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, Epoch, LogIndex, QueuePosition, SessionKey, TransactionKey
from lockstep.core.log_copy import LogCopy
from lockstep.core.records import EpochBegins, RollbackReason
from lockstep.core.replication import HELD_IN_ONE, Frames
from lockstep.core.requests import GetOutcome, HeldDeliveries
from lockstep.core.server_messages import OutcomeAnswer, OutcomeState, SessionAttached
from lockstep.core.set_state import SetState
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from services.primary.core.handing_on import fits, handed_over, take_up
from services.primary.core.settings import PrimarySettings
from services.primary.core.transacting import append_begin
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish
from tests.unit.services.replicas import PrimaryBench, entry, member

TO = BrokerId("b2")
XID = Xid(7, b"global", b"one").encode()


def copy_of(rig: Rig) -> LogCopy:
    copy = LogCopy(SetState(SET), LogIndex(0), 1 << 40, 1 << 40)
    for frame in rig.core.context.writer.log.frames_after(LogIndex(0)):
        copy.append(frame)
    copy.apply_to(copy.log_end)
    return copy


def succeeded(rig: Rig, *clients: RigClient) -> Rig:
    """The next reign, to which the rig's was handed over; its clients have resumed."""
    handed = rig.hand_on()
    assert fits(handed, Epoch(handed.epoch + 1), copy_of(rig))
    successor = Rig(predecessor=rig, handed=handed)
    for client in clients:
        resume(successor, client)
    return successor


def resume(rig: Rig, client: RigClient) -> None:
    client.rig, client.stream = rig, 0
    held = tuple(HeldDeliveries(queue, Epoch(1), (position,)) for queue, position in client.in_hand)
    client.attach(held=held, outlives_hand_over=True)


def accept(
    client: RigClient, queue: str, epoch: Epoch, transaction: TransactionKey | None = None, sequence: int = 0
) -> ErrorCode:
    positions: tuple[QueuePosition, ...] = client.positions(queue)
    command = SettleCommand(0, queue, epoch, positions, Disposition.ACCEPT, transaction, sequence)
    return client.do(command).code


@pytest.fixture
def client(rig: Rig) -> RigClient:
    client = rig.client(outlives_hand_over=True)
    client.declare("q")
    client.declare("r")
    return client


def test_a_transaction_goes_on_with_the_next_operation_and_commits_whole(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    client.consume("q")
    key = client.begin()
    client.settle("q", transaction=key, sequence=1)
    client.ok(publish("r", b"2", transaction=key, sequence=2))
    rig = succeeded(rig, client)
    assert client.heard_of(SessionAttached)[-1].kept_from == 1
    assert client.do(publish("r", b"late", transaction=key, sequence=2)).code is ErrorCode.SEQUENCE_GAP
    rig.check_log()


def test_what_two_reigns_took_of_a_transaction_is_committed_together(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    client.consume("q")
    key = client.begin()
    client.settle("q", transaction=key, sequence=1)
    client.ok(publish("r", b"2", transaction=key, sequence=2))
    rig = succeeded(rig, client)
    client.ok(publish("r", b"3", transaction=key, sequence=3))
    assert (rig.bodies("q"), rig.bodies("r")) == ([b"1"], [])
    assert client.commit(key, 3).code is ErrorCode.NONE
    assert (rig.bodies("q"), rig.bodies("r")) == ([], [b"2", b"3"])
    rig.check_log()


def test_a_transaction_without_operations_goes_on_where_only_its_records_know_it(
    rig: Rig, client: RigClient
) -> None:
    """Its begin is transient: a disk hears of it by its first durable operation, in the next epoch."""
    key = client.begin()
    rig = succeeded(rig, client)
    client.ok(publish("r", b"1", transaction=key, sequence=1))
    assert client.commit(key, 1).code is ErrorCode.NONE
    assert rig.bodies("r") == [b"1"]
    rig.check_log()


def test_what_is_in_hand_stays_there_and_is_given_to_nobody_else(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    client.consume("q", credit=1)
    rig = succeeded(rig, client)
    other = rig.client()
    other.consume("q")
    assert other.bodies("q") == [b"2"]
    assert accept(client, "q", Epoch(1)) is ErrorCode.NONE
    assert rig.bodies("q") == [b"2"]


def test_what_got_lost_on_its_way_to_the_client_is_free_again(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    client.consume("q")
    client.in_hand.clear()
    rig = succeeded(rig, client)
    other = rig.client()
    other.consume("q")
    assert other.bodies("q") == [b"1"]


def test_a_time_out_has_what_was_left_of_it(rig: Rig, client: RigClient) -> None:
    key = client.begin(timeout_ms=1000)
    rig.pass_time(600)
    rig = succeeded(rig, client)
    rig.pass_time(300)
    assert outcome(client, key) == (OutcomeState.OPEN, 0)
    rig.pass_time(101)
    assert outcome(client, key) == (OutcomeState.ROLLED_BACK, RollbackReason.TIMED_OUT)


def test_a_client_that_does_not_go_on_hears_that_it_was_rolled_back_and_nothing_stays_locked(
    rig: Rig, client: RigClient
) -> None:
    client.publish("q", b"1", b"2")
    unfit = rig.client()
    unfit.consume("q")
    key = unfit.begin()
    taken = unfit.positions("q")[0]
    unfit.settle("q", taken, transaction=key, sequence=1)
    rig = succeeded(rig, client)
    assert outcome(client, key) == (OutcomeState.ROLLED_BACK, RollbackReason.FAILOVER)
    client.consume("q")
    assert client.bodies("q") == [b"1", b"2"]


def branch_of(client: RigClient) -> TransactionKey:
    client.ok(SelectDtxCommand(0))
    key = LogIndex(client.ok(StartCommand(0, XID))), client.rig.core.epoch
    client.ok(publish("r", b"1", transaction=key, sequence=1))
    return key


def test_a_branch_goes_on_and_is_prepared_with_what_two_reigns_took(rig: Rig, client: RigClient) -> None:
    key = branch_of(client)
    client.ok(EndCommand(0, XID, 1, is_suspended=True))
    rig = succeeded(rig, client)
    assert client.ok(StartCommand(0, XID, is_resume=True)) == key[0]
    client.ok(publish("r", b"2", transaction=key, sequence=2))
    assert client.ok(EndCommand(0, XID, 2)) == XaStatus.OK
    assert client.ok(PrepareBranchCommand(0, XID)) == XaStatus.OK
    rig.check_log()


def test_who_joins_a_branch_of_an_earlier_epoch_hears_its_name(rig: Rig, client: RigClient) -> None:
    key = branch_of(client)
    other = rig.client(outlives_hand_over=True)
    other.ok(SelectDtxCommand(0))
    rig = succeeded(rig, client, other)
    answered = other.do(StartCommand(0, XID, is_join=True))
    assert (answered.value, answered.message) == (key[0], str(key[1]))
    other.ok(publish("r", b"2", transaction=key, sequence=1))
    for one in (client, other):
        assert one.ok(EndCommand(0, XID, 1)) == XaStatus.OK
    assert client.ok(PrepareBranchCommand(0, XID)) == XaStatus.OK
    assert client.ok(CommitBranchCommand(0, XID)) == XaStatus.OK
    assert rig.bodies("r") == [b"1", b"2"]
    rig.check_log()


def test_what_many_hold_is_handed_on_by_holder_and_queue(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2", b"3")
    client.publish("r", b"4")
    other = rig.client(outlives_hand_over=True)
    other.consume("q", credit=1)
    client.consume("q", credit=2)
    client.consume("r")
    handed = rig.hand_on()
    held = [each for one in handed.held for each in one.by_holder()]
    assert [session for session, _, _ in held] == [client.session, client.session, other.session]
    for (_, queue_id, positions), holder in zip(held, (client, client, other), strict=True):
        queue = rig.core.context.state.queues.by_id[queue_id].name
        assert tuple(positions) == holder.positions(queue)


def test_an_epoch_that_was_not_handed_over_aborts_what_earlier_ones_left_open(
    rig: Rig, client: RigClient
) -> None:
    key = client.begin()
    client.ok(publish("r", b"1", transaction=key, sequence=1))
    rig = succeeded(rig, client)
    rig = Rig(predecessor=rig)
    resume(rig, client)
    assert client.heard_of(SessionAttached)[-1].kept_from == rig.core.epoch
    assert client.commit(key, 1).code is ErrorCode.ROLLED_BACK
    assert rig.bodies("r") == []


def test_it_holds_for_the_next_epoch_behind_the_same_log_only(rig: Rig, client: RigClient) -> None:
    key = client.begin()
    client.ok(publish("r", b"1", transaction=key, sequence=1))
    handed, copy = rig.hand_on(), copy_of(rig)
    assert fits(handed, Epoch(2), copy)
    assert not fits(handed, Epoch(3), copy)
    assert not fits(msgspec.structs.replace(handed, log_end=LogIndex(0)), Epoch(2), copy)
    assert not fits(msgspec.structs.replace(handed, log_end=LogIndex(handed.log_end + 1)), Epoch(2), copy)
    assert not fits(msgspec.structs.replace(handed, open=()), Epoch(2), copy)
    later = copy_of(Rig(predecessor=rig))
    assert not fits(msgspec.structs.replace(handed, log_end=later.log_end), Epoch(2), later)


def test_a_primary_that_stops_for_another_has_sent_all_of_its_log(rig: Rig, client: RigClient) -> None:
    client.begin()
    log = rig.core.context.writer.log
    assert log.framed_end < log.end, "begins wait for what comes behind them"
    rig.core.hand_over(TO, Now(rig.boottime_ms, rig.wall_ms))
    assert log.framed_end == log.end
    assert rig.core.stopped


def test_the_epochs_record_says_whether_it_was_handed_over(rig: Rig, client: RigClient) -> None:
    begins = [one for one in succeeded(rig, client).records() if isinstance(one, EpochBegins)]
    assert [one.is_handed_over for one in begins] == [False, True]


def outcome(client: RigClient, key: TransactionKey) -> tuple[int, int]:
    """(state, reason) as the primary says it."""
    client.say(GetOutcome(1, key, False))
    answer = client.heard_of(OutcomeAnswer)[-1]
    return answer.state, answer.reason


def test_what_is_in_hand_is_gathered_in_steps_that_look_at_few(rig: Rig, client: RigClient) -> None:
    held = 3 * HELD_IN_ONE + 1
    client.publish("q", *[b"x"] * held)
    client.consume("q", credit=held)
    steps = list(handed_over(rig.core.context, rig.core.attachments, TO))
    assert len(steps) >= 4
    assert [len(part.positions) for part in rig.hand_on().held] == [HELD_IN_ONE, HELD_IN_ONE, HELD_IN_ONE, 1]


def test_a_primary_that_stops_for_another_gathers_what_is_in_hand_in_turns() -> None:
    rig = Rig(PrimarySettings(piece_cost=1))
    client = rig.client(outlives_hand_over=True)
    client.declare("q")
    client.publish("q", *[b"x"] * (3 * HELD_IN_ONE))
    client.consume("q", credit=3 * HELD_IN_ONE)
    turns, effects = 0, rig.core.hand_over(TO, Now(rig.boottime_ms, rig.wall_ms))
    assert rig.core.stopped
    while not rig.core.has_handed_over:
        assert any(isinstance(effect, WakeAt) for effect in effects), "it asks for its next turn"
        turns += 1
        effects = rig.core.go_on_handing_over(Now(rig.boottime_ms + turns, rig.wall_ms))
    assert turns >= 3


def test_what_is_in_hand_is_taken_up_in_steps_that_look_at_few(rig: Rig, client: RigClient) -> None:
    held = 3 * HELD_IN_ONE + 1
    client.publish("q", *[b"x"] * held)
    client.consume("q", credit=held)
    handed = rig.hand_on()
    successor = Rig(predecessor=rig, handed=msgspec.structs.replace(handed, held=()))
    queue = successor.state.queues.by_name["q"]
    steps = list(take_up(successor.core.context, handed))
    assert len(steps) == 4 and max(steps) == HELD_IN_ONE
    assert successor.core.context.dispatch.held_count(queue.id) == held
    assert successor.core.context.dispatch.is_held_by(client.session, queue.id, queue.positions())


def test_followers_hear_that_a_primary_lives_while_its_last_word_is_gathered() -> None:
    """Who misses heartbeats goes, and does not hear the word that it was to stand with."""
    bench = PrimaryBench(entry(1, member("a")), settings=PrimarySettings(piece_cost=1))
    bench.subscribe(1, member("b"))
    for _ in range(20):
        append_begin(bench.core.context, SessionKey(1), None, 0)
    bench.perform(bench.core.hand_over(TO, bench.now))
    said = len(bench.told(1))
    for _ in range(4):
        bench.ms += 300
        bench.perform(bench.core.go_on_handing_over(bench.now))
    assert not bench.core.has_handed_over
    assert [type(message) for message in bench.told(1)[said:]] == [Frames] * 4
