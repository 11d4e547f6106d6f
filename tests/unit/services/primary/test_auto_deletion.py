"""When auto-delete queues end: with their last consumer, also where its stream, its primary or the set was lost with it (P7)."""

from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest

from lockstep.core.commands import (
    AnyCommand,
    CommitBranchCommand,
    DeclareQueueCommand,
    DeleteQueueCommand,
    Disposition,
    EndCommand,
    PrepareBranchCommand,
    QueueOptions,
    RollbackBranchCommand,
    SelectDtxCommand,
    SettleCommand,
    StartCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.inputs import Woken
from lockstep.core.records import Consume, UseQueue
from lockstep.core.requests import CloseConsumer, DetachSession, Heartbeat
from lockstep.core.server_messages import PushedBack
from lockstep.core.xid import Xid
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish, take_turns

XID = Xid(7, b"global", b"one").encode()
SETTINGS = PrimarySettings(client_silence_ms=10_000, session_timeout_ms_max=20_000)
SMALL_LOG = replace(SETTINGS, uncommitted_bytes_max=100)
SMALL_BACKLOG = replace(SETTINGS, command_bytes_max=1000)
WAYS = ["failover", "hand-over"]


def is_there(rig: Rig) -> bool:
    return "auto" in rig.state.queues.by_name


def pass_seconds(rig: Rig, seconds: int, *alive: RigClient) -> None:
    for _ in range(seconds):
        for client in alive:
            client.say(Heartbeat())
        rig.pass_time(1000)


def come_back(rig: Rig, client: RigClient) -> None:
    client.rig, client.stream = rig, 0
    client.resume()


def consumer_of(rig: Rig, name: str = "", is_durable: bool = True) -> tuple[RigClient, int]:
    """A client that has declared the queue and consumes it; its session outlives its stream by two seconds."""
    client = rig.client(name, timeout_ms=2000, outlives_hand_over=True)
    client.declare("auto", is_auto_delete=True, is_durable=is_durable)
    return client, client.consume("auto")


def prepared_and_gone(rig: Rig) -> RigClient:
    """A client that consumes the queue no more, and has a prepared branch that accepts its message."""
    client, consumer = consumer_of(rig)
    client.publish("auto", b"1")
    client.ok(SelectDtxCommand(0))
    key = LogIndex(client.ok(StartCommand(0, XID))), Epoch(1)
    client.settle("auto", transaction=key, sequence=1)
    client.ok(EndCommand(0, XID, 1))
    client.ok(PrepareBranchCommand(0, XID))
    client.say(CloseConsumer(consumer))
    return client


@pytest.fixture
def rig() -> Rig:
    return Rig(SETTINGS)


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_it_ends_with_the_session_of_its_consumer_that_was_lost_with_the_primary(
    rig: Rig, how: str, is_durable: bool
) -> None:
    consumer_of(rig, is_durable=is_durable)
    rig = rig.next_reign(how)
    pass_seconds(rig, 2)
    assert is_there(rig)
    pass_seconds(rig, 2)
    assert not rig.state.sessions.by_key and not is_there(rig)
    rig.check_log()


@pytest.mark.parametrize("how", WAYS)
def test_it_stays_for_a_consumer_that_came_back_to_the_next_primary_and_ends_with_that(
    rig: Rig, how: str
) -> None:
    client, _ = consumer_of(rig)
    rig = rig.next_reign(how)
    come_back(rig, client)
    consumer = client.consume("auto")
    pass_seconds(rig, 60, client)
    assert is_there(rig)
    client.say(CloseConsumer(consumer))
    assert not is_there(rig)
    rig.check_log()


def test_it_ends_a_moment_behind_a_consumer_that_leaves_before_all_is_looked_through(rig: Rig) -> None:
    client, _ = consumer_of(rig)
    rig = rig.next_reign("failover")
    come_back(rig, client)
    client.say(CloseConsumer(client.consume("auto")))
    rig.pass_time(50)
    assert not is_there(rig)
    rig.check_log()


@pytest.mark.parametrize("how", WAYS)
def test_it_ends_though_its_consumers_session_goes_on_without_it(rig: Rig, how: str) -> None:
    """The client wanted no more of it while there was no stream, and cannot say so."""
    client, _ = consumer_of(rig)
    rig = rig.next_reign(how)
    come_back(rig, client)
    pass_seconds(rig, 9)
    assert is_there(rig)
    pass_seconds(rig, 3)
    assert not is_there(rig) and rig.state.sessions.by_key


def test_it_ends_where_a_session_came_back_to_the_same_primary_without_it(rig: Rig) -> None:
    client, _ = consumer_of(rig)
    client.resume()
    pass_seconds(rig, 5)
    client.resume()
    pass_seconds(rig, 9)
    assert is_there(rig)
    pass_seconds(rig, 3)
    assert not is_there(rig)


def with_a_message(rig: Rig, timeout_ms: int = 10_000) -> tuple[RigClient, int, SettleCommand]:
    """A client that has a message of the queue in hand, its consumer, and what makes a dead letter of that message."""
    client = rig.client(timeout_ms=timeout_ms)
    client.declare("dead")
    client.declare("auto", is_auto_delete=True, dead_letter_key="dead")
    client.publish("auto", b"1")
    consumer = client.consume("auto")
    return client, consumer, SettleCommand(0, "auto", Epoch(1), client.positions("auto"), Disposition.REJECT)


def leave_early(client: RigClient, consumer: int, command: AnyCommand) -> int:
    """The command is pushed back, for too much waits for the store, and its client closes the consumer behind it; its number."""
    rig = client.rig
    rig.holds_store = True
    client.command(publish("dead", bytes(1000)))
    number = client.command(command)
    client.say(CloseConsumer(consumer))
    assert client.heard_of(PushedBack)[-1].number == number
    rig.holds_store = False
    rig.acknowledge()
    return number


def say_again(client: RigClient, *numbers: int) -> None:
    """One command a few seconds behind the other; the queue stays until the last of them is done, and ends then."""
    for number in numbers:
        pass_seconds(client.rig, 3, client)
        assert is_there(client.rig)
        client.say(client.sent[number])
        assert client.answers[number].code is ErrorCode.NONE, client.answers[number]
    pass_seconds(client.rig, 2, client)
    assert not is_there(client.rig)
    client.rig.check_log()


@pytest.mark.parametrize("is_resumed", [False, True])
def test_it_stays_until_commands_are_done_that_were_pushed_back_in_front_of_its_consumers_end(
    is_resumed: bool,
) -> None:
    """However long that takes, and on whichever stream they come again."""
    rig = Rig(SMALL_LOG)
    client, consumer, reject = with_a_message(rig)
    number = leave_early(client, consumer, reject)
    if is_resumed:
        client.resume()
    pass_seconds(rig, 30, client)
    assert is_there(rig)
    client.say(client.sent[number])
    assert rig.bodies("dead")[1:] == [b"1"]
    pass_seconds(rig, 2, client)
    assert not is_there(rig)
    rig.check_log()


def test_it_stays_for_the_last_command_that_was_dropped_behind_one_that_was_pushed_back() -> None:
    rig = Rig(SMALL_LOG)
    client, consumer, reject = with_a_message(rig)
    rig.holds_store = True
    client.command(publish("dead", bytes(1000)))
    pushed_back, dropped = client.command(publish("dead", b"first")), client.command(reject)
    client.say(CloseConsumer(consumer))
    assert [heard.number for heard in client.heard_of(PushedBack)] == [pushed_back]
    rig.holds_store = False
    rig.acknowledge()
    say_again(client, pushed_back, dropped)
    assert rig.bodies("dead")[1:] == [b"first", b"1"]


def test_it_stays_for_the_last_command_that_was_dropped_behind_a_gap() -> None:
    rig = Rig(SETTINGS)
    client, consumer, reject = with_a_message(rig)
    client.number += 1
    missing = client.number
    client.sent[missing] = msgspec.structs.replace(publish("dead", b"first"), number=missing)
    dropped = client.command(reject)
    client.say(CloseConsumer(consumer))
    assert [heard.number for heard in client.heard_of(PushedBack)] == [missing]
    say_again(client, missing, dropped)
    assert rig.bodies("dead") == [b"first", b"1"]


@pytest.mark.parametrize("is_one_dropped", [False, True])
def test_it_stays_for_the_last_command_that_a_backlog_did_not_take(is_one_dropped: bool) -> None:
    rig = Rig(SMALL_BACKLOG)
    client, consumer, reject = with_a_message(rig)
    rig.holds_claims = True
    client.command(DeclareQueueCommand(0, "x", QueueOptions()))
    client.command(publish("dead", bytes(600)))
    numbers = [client.command(publish("dead", bytes(600)))]
    if is_one_dropped:
        numbers.append(client.command(reject))
    client.say(CloseConsumer(consumer))
    assert [heard.number for heard in client.heard_of(PushedBack)] == numbers[:1]
    rig.claimed()
    say_again(client, *numbers)


def test_it_ends_at_once_where_all_is_done_that_was_pushed_back() -> None:
    rig = Rig(SMALL_LOG)
    client, consumer, reject = with_a_message(rig)
    other = client.consume("auto")
    number = leave_early(client, other, reject)
    client.say(client.sent[number])
    pass_seconds(rig, 2, client)
    client.say(CloseConsumer(consumer))
    assert not is_there(rig)
    rig.check_log()


def test_it_stays_for_a_command_once_however_many_consumers_left_behind_it() -> None:
    rig = Rig(SMALL_LOG)
    client, consumer, reject = with_a_message(rig)
    other = client.consume("auto")
    number = leave_early(client, consumer, reject)
    client.say(CloseConsumer(other))
    say_again(client, number)
    assert not rig.core.attachments.auto_deletion._early


def test_it_ends_with_a_session_that_does_not_say_again_what_was_pushed_back() -> None:
    rig = Rig(SMALL_LOG)
    client, consumer, reject = with_a_message(rig, timeout_ms=2000)
    leave_early(client, consumer, reject)
    client.lose_stream()
    pass_seconds(rig, 1)
    assert is_there(rig)
    pass_seconds(rig, 2)
    assert not is_there(rig) and not rig.state.sessions.by_key
    rig.check_log()


def test_it_stays_for_what_comes_again_of_a_session_though_the_last_consumer_is_of_another() -> None:
    rig = Rig(SMALL_LOG)
    client, consumer, reject = with_a_message(rig)
    other = rig.client()
    last = other.consume("auto")
    number = leave_early(client, consumer, reject)
    other.say(CloseConsumer(last))
    assert is_there(rig)
    client.say(client.sent[number])
    assert rig.bodies("dead")[1:] == [b"1"]
    pass_seconds(rig, 2, client, other)
    assert not is_there(rig)
    rig.check_log()


def test_it_stays_for_what_was_pushed_back_though_that_comes_again_while_its_consumers_end_waits() -> None:
    """What was said before that end then stands behind it."""
    rig = Rig(SMALL_BACKLOG)
    client, consumer, reject = with_a_message(rig)
    rig.holds_claims = True
    client.command(DeclareQueueCommand(0, "x", QueueOptions()))
    client.command(publish("dead", bytes(600)))
    client.command(DeclareQueueCommand(0, "y", QueueOptions()))
    pushed_back = client.command(publish("dead", bytes(600)))
    dropped = client.command(reject)
    client.say(CloseConsumer(consumer))
    assert [heard.number for heard in client.heard_of(PushedBack)] == [pushed_back]
    rig.claimed()
    assert is_there(rig) and rig.claims, "the next declaration waits"
    client.say(client.sent[pushed_back], client.sent[dropped])
    rig.claimed()
    assert client.answers[dropped].code is ErrorCode.NONE, client.answers[dropped]
    assert sorted(rig.bodies("dead"), key=len)[0] == b"1"
    pass_seconds(rig, 2, client)
    assert not is_there(rig)
    rig.check_log()


def test_it_stays_for_what_is_pushed_back_in_its_turn_while_its_consumers_end_waits_behind_that() -> None:
    rig = Rig(SMALL_LOG)
    client, consumer, reject = with_a_message(rig)
    other = rig.client()
    rig.holds_claims = rig.holds_store = True
    client.command(DeclareQueueCommand(0, "x", QueueOptions()))
    number = client.command(reject)
    client.say(CloseConsumer(consumer))
    other.command(publish("dead", bytes(1000)))
    rig.claimed()
    assert [heard.number for heard in client.heard_of(PushedBack)] == [number] and is_there(rig)
    rig.holds_store = False
    rig.acknowledge()
    client.say(client.sent[number])
    assert rig.bodies("dead")[1:] == [b"1"]
    pass_seconds(rig, 2, client, other)
    assert not is_there(rig)
    rig.check_log()


def test_it_waits_for_nothing_that_was_pushed_back_behind_its_consumers_end() -> None:
    rig = Rig(SMALL_BACKLOG)
    client, consumer, _ = with_a_message(rig)
    rig.holds_claims = True
    client.command(DeclareQueueCommand(0, "x", QueueOptions()))
    client.say(CloseConsumer(consumer))
    client.command(publish("dead", bytes(600)))
    number = client.command(publish("dead", bytes(600)))
    assert [heard.number for heard in client.heard_of(PushedBack)] == [number]
    rig.claimed()
    assert not is_there(rig)
    client.say(client.sent[number])
    rig.check_log()


def test_queues_end_though_other_consumers_of_their_session_leave_early_again_and_again() -> None:
    """A proxy has one session for all of its clients."""
    rig = Rig(SMALL_LOG)
    client, _ = consumer_of(rig)
    client.declare("dead")
    client.resume()
    for number in range(4):
        client.declare(f"auto {number}", is_auto_delete=True)
        consumer = client.consume(f"auto {number}")
        pushed_back = leave_early(client, consumer, publish("dead", b"1"))
        client.say(client.sent[pushed_back])
        pass_seconds(rig, 4, client)
    assert rig.state.queues.by_name.keys() == {"dead"}
    rig.check_log()


def test_however_many_stay_for_one_command_they_are_ended_a_few_at_a_time_when_it_is_done() -> None:
    rig = Rig(PrimarySettings(piece_cost=100, uncommitted_bytes_max=100))
    client, count = rig.client(), 300
    client.declare("dead")
    consumers = []
    for number in range(count):
        client.declare(f"q{number}", is_auto_delete=True)
        consumers.append(client.consume(f"q{number}"))
    last = consumers.pop()
    pushed_back = leave_early(client, last, publish("dead", b"1"))
    client.say(*map(CloseConsumer, consumers))
    assert len(rig.state.queues.by_id) == count + 1
    client.say(client.sent[pushed_back])
    rig.pass_time(1000)
    left = [len(rig.state.queues.by_id)]
    while left[-1] > 1:
        rig.boottime_ms += 1
        rig.feed(Woken(SET))
        left.append(len(rig.state.queues.by_id))
    assert len(left) > 10 and max(one - after for one, after in pairwise(left)) <= 10
    rig.check_log()


def test_what_fails_too_often_as_its_last_consumers_session_is_lost_is_a_dead_letter(rig: Rig) -> None:
    """A message that its consumer dies over."""
    client = rig.client(timeout_ms=2000)
    client.declare("dead")
    client.declare("auto", is_auto_delete=True, dead_letter_key="dead", delivery_count_max=1)
    client.publish("auto", b"1")
    client.consume("auto")
    assert client.bodies("auto") == [b"1"]
    client.lose_stream()
    pass_seconds(rig, 3)
    assert not is_there(rig) and not rig.state.sessions.by_key
    assert rig.bodies("dead") == [b"1"]
    rig.check_log()


def test_what_fails_too_often_as_a_transaction_times_out_is_a_dead_letter_of_a_queue_that_may_end(
    rig: Rig,
) -> None:
    """It stayed for a prepared branch, and both are noticed at one tick."""
    client = rig.client()
    client.declare("dead")
    client.declare("auto", is_auto_delete=True, dead_letter_key="dead", delivery_count_max=1)
    client.publish("auto", b"1", b"2")
    consumer = client.consume("auto")
    first, second = client.positions("auto")
    client.ok(SelectDtxCommand(0))
    branch = LogIndex(client.ok(StartCommand(0, XID))), Epoch(1)
    client.settle("auto", first, transaction=branch, sequence=1)
    client.ok(EndCommand(0, XID, 1))
    client.ok(PrepareBranchCommand(0, XID))
    client.settle("auto", second, transaction=client.begin(timeout_ms=1500), sequence=1)
    client.say(CloseConsumer(consumer))
    client.ok(RollbackBranchCommand(0, XID))
    assert rig.bodies("dead") == [b"1"] and is_there(rig)
    rig.pass_time(2000)
    assert rig.bodies("dead") == [b"1", b"2"] and not is_there(rig)
    rig.check_log()


@pytest.mark.parametrize("how", WAYS)
def test_the_last_consumer_that_is_there_leaves_it_to_one_that_may_come_back(rig: Rig, how: str) -> None:
    away, _ = consumer_of(rig, "away")
    client, _ = consumer_of(rig, "back")
    rig = rig.next_reign(how)
    come_back(rig, client)
    client.say(CloseConsumer(client.consume("auto")))
    assert is_there(rig)
    come_back(rig, away)
    consumer = away.consume("auto")
    pass_seconds(rig, 30, client, away)
    assert is_there(rig)
    away.say(CloseConsumer(consumer))
    assert not is_there(rig)


@pytest.mark.parametrize("how", [*WAYS, "restart"])
def test_it_waits_for_its_first_consumer(rig: Rig, how: str) -> None:
    client = rig.client(timeout_ms=2000)
    client.declare("auto", is_auto_delete=True)
    client.browse("auto")
    rig = rig.next_reign(how)
    pass_seconds(rig, 60)
    assert is_there(rig)


def test_after_a_restart_a_durable_one_waits_as_long_as_any_session_is_waited_for(rig: Rig) -> None:
    consumer_of(rig)
    rig = rig.next_reign("restart")
    pass_seconds(rig, 20)
    assert is_there(rig)
    pass_seconds(rig, 2)
    assert not is_there(rig)
    rig.check_log()


def test_after_a_restart_it_ends_with_whoever_consumed_it_again(rig: Rig) -> None:
    consumer_of(rig)
    rig = rig.next_reign("restart")
    client, consumer = consumer_of(rig, "another")
    pass_seconds(rig, 60, client)
    assert is_there(rig)
    client.say(CloseConsumer(client.consume("auto")))
    assert is_there(rig), "it has another consumer"
    client.say(CloseConsumer(consumer))
    assert not is_there(rig)


def test_a_hand_over_soon_after_a_restart_leaves_it_the_whole_time(rig: Rig) -> None:
    consumer_of(rig)
    rig = rig.next_reign("restart")
    pass_seconds(rig, 10)
    rig = rig.next_reign("hand-over")
    pass_seconds(rig, 20)
    assert is_there(rig)
    pass_seconds(rig, 2)
    assert not is_there(rig)


@pytest.mark.parametrize("how", ["", *WAYS, "restart"])
def test_it_ends_with_the_prepared_branch_for_which_it_stayed(rig: Rig, how: str) -> None:
    client = prepared_and_gone(rig)
    client.say(DetachSession())
    if how:
        rig = rig.next_reign(how)
    pass_seconds(rig, 60)
    assert is_there(rig)
    other = rig.client()
    other.ok(SelectDtxCommand(0))
    other.ok(CommitBranchCommand(0, XID))
    pass_seconds(rig, 2)
    assert not is_there(rig)
    rig.check_log()


def test_it_may_be_deleted_before_it_is_looked_at_whether_it_is_to_end(rig: Rig) -> None:
    """It stayed for a prepared branch, and somebody deletes it as soon as that has ended."""
    client = prepared_and_gone(rig)
    client.ok(RollbackBranchCommand(0, XID))
    client.ok(DeleteQueueCommand(0, "auto"))
    pass_seconds(rig, 2, client)
    assert not is_there(rig)
    client.publish("auto", b"2")
    rig.check_log()


def test_a_browser_that_falls_silent_as_the_queue_ends_harms_nobody(rig: Rig) -> None:
    client, _ = consumer_of(rig)
    silent = rig.client(timeout_ms=2000)
    silent.browse("auto")
    pass_seconds(rig, 8)
    client.say(Heartbeat())
    client.lose_stream()
    rig.pass_time(1000)
    rig.pass_time(1000)
    assert not is_there(rig) and silent.is_closed
    rig.check_log()


def test_the_log_hears_of_the_first_consumer_of_each_session_and_of_auto_delete_queues_alone(
    rig: Rig,
) -> None:
    client, consumer = consumer_of(rig)
    client.declare("q")
    client.consume("q")
    client.consume("auto")
    client.say(CloseConsumer(consumer))
    client.resume()
    client.consume("auto")
    other = rig.client()
    other.browse("auto")
    other.consume("auto")
    other.publish("auto", b"1")
    rig.check_log()
    queue = rig.state.queues.by_name["auto"]
    told = [record for record in rig.records() if isinstance(record, UseQueue | Consume)]
    assert told == [
        UseQueue(None, queue.id),
        Consume(None, client.session, queue.id),
        Consume(None, other.session, queue.id),
    ]


def test_it_can_be_declared_again_as_it_was_when_it_has_been_consumed(rig: Rig) -> None:
    consumer_of(rig)
    assert rig.client().declare("auto", is_auto_delete=True) == rig.state.queues.by_name["auto"].id


def test_however_many_queues_may_end_they_are_found_and_ended_a_few_at_a_time() -> None:
    before = Rig()
    client, count = before.client(), 300
    for number in range(count):
        client.declare(f"q{number}", is_auto_delete=True)
        client.consume(f"q{number}")
    rig = Rig(PrimarySettings(piece_cost=100), predecessor=before, is_restarted=True)
    assert len(list(rig.core.get_ready())) >= count, "each is a step"
    rig.pass_time(1000)
    take_turns(rig)  # What the last reign left is looked through before.
    rig.pass_time(rig.core.context.settings.session_timeout_ms_max)
    left = [len(rig.state.queues.by_id)]
    while left[-1]:
        rig.boottime_ms += 1
        rig.feed(Woken(SET))
        left.append(len(rig.state.queues.by_id))
    assert len(left) > 10 and max(one - after for one, after in pairwise(left)) <= 10
    rig.check_log()
