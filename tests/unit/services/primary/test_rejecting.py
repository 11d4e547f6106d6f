"""Rejects and worn-out messages whose bodies are away: nothing is said before it is recorded, and nobody else gets them."""

from dataclasses import replace

import pytest

from lockstep.core.commands import AnyCommand, BindCommand, DeleteQueueCommand, Disposition, SettleCommand
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, Epoch, QueuePosition
from lockstep.core.inputs import MessagesRead, StoreConnected, StoreLost, Woken
from lockstep.core.pieces import at_once
from lockstep.core.records import AcceptCommand, Dequeue
from lockstep.core.replication import HandedOver
from lockstep.core.requests import CloseConsumer, GetOutcome, Heartbeat, HeldDeliveries
from lockstep.core.routing import SELECTOR_ARGUMENT
from lockstep.core.server_messages import HeartbeatAnswered
from services.primary.core import handing_on
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish

SMALL = PrimarySettings(reading_messages_max=4, delivery_batch_max=3)
COUNT = 10


@pytest.fixture
def rig() -> Rig:
    """One in whose memory hardly any body stays."""
    return Rig(SMALL, resident_bytes_max=1)


@pytest.fixture
def client(rig: Rig) -> RigClient:
    """Has messages in hand whose bodies are away, for dead letters are copied to a queue that is not durable."""
    client = rig.client("client", outlives_hand_over=True)
    client.declare("dead", is_durable=False)
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead", delivery_count_max=1)
    client.publish("q", *numbered(COUNT))
    client.consume("q")
    assert len(client.in_hand) == COUNT
    rig.holds_readings = True
    return client


def numbered(count: int) -> list[bytes]:
    return [b"body %d" % number for number in range(count)]


def settle(client: RigClient, *positions: QueuePosition, disposition: int = Disposition.REJECT) -> int:
    """Of what stays in hand until it is answered; the number of the command."""
    named = positions or client.positions("q")
    return client.command(SettleCommand(0, "q", Epoch(1), named, disposition))


def length(rig: Rig, queue: str) -> int:
    return rig.state.queues.by_name[queue].length


def read_all(rig: Rig) -> None:
    while rig.readings:
        rig.read()


def handed_over(rig: Rig) -> HandedOver:
    """What the rig's primary tells its successor."""
    return at_once(handing_on.handed_over(rig.core.context, rig.core.attachments, BrokerId("b2")))


def resume(rig: Rig, client: RigClient, *again: int) -> None:
    """On a new stream, perhaps of another reign, with all that is in hand, and these commands sent again."""
    client.rig, client.stream = rig, 0
    held = HeldDeliveries("q", Epoch(1), client.positions("q"))
    client.attach(held=(held,), outlives_hand_over=True)
    client.say(*(client.sent[number] for number in again))


def test_a_reject_is_answered_when_all_its_bodies_are_here_and_its_dead_letters_recorded(
    rig: Rig, client: RigClient
) -> None:
    number, log_end = settle(client), rig.core.log_end
    readings = 0
    while rig.readings:
        assert number not in client.answers
        assert rig.core.log_end == log_end and length(rig, "q") == COUNT
        rig.read()
        readings += 1
    assert readings == 3
    assert client.answers[number].code is ErrorCode.NONE
    assert length(rig, "q") == 0 and rig.bodies("dead") == numbered(COUNT)
    assert rig.core.context.dispatch.held_count(rig.state.queues.by_name["q"].id) == 0
    assert isinstance(rig.records()[-1], AcceptCommand) and isinstance(rig.records()[-2], Dequeue)
    rig.check_log()


def test_what_is_said_behind_a_reject_that_waits_is_heard_behind_it(rig: Rig, client: RigClient) -> None:
    client.declare("next")
    number = settle(client)
    behind = client.command(publish("next", b"1"))
    client.say(GetOutcome(1, (rig.core.log_end, Epoch(1)), False), Heartbeat())
    assert isinstance(client.heard[-1], HeartbeatAnswered), "its connection lives"
    rig.read()
    assert behind not in client.answers and rig.bodies("next") == []
    read_all(rig)
    assert [client.answers[each].code for each in (number, behind)] == [ErrorCode.NONE] * 2
    rig.check_log()


def test_a_reject_whose_bodies_are_here_waits_for_nothing(rig: Rig, client: RigClient) -> None:
    client.declare("durable")
    client.declare("r", dead_letter_exchange="", dead_letter_key="durable")
    client.publish("r", *numbered(3))
    rig.holds_readings = False
    client.consume("r")
    rig.holds_readings = True
    assert client.settle("r", disposition=Disposition.REJECT).code is ErrorCode.NONE
    assert length(rig, "durable") == 3


def test_a_reject_waits_for_bodies_that_a_selector_is_asked_about(rig: Rig, client: RigClient) -> None:
    rig.holds_readings = False
    client.declare("high")
    client.exchange("x", kind="direct")
    client.ok(BindCommand(0, "x", "high", "r", ((SELECTOR_ARGUMENT, "TRUE"),)))
    client.declare("r", dead_letter_exchange="x", dead_letter_key="r")
    client.publish("r", *numbered(3))
    client.consume("r")
    rig.holds_readings = True
    number = client.command(SettleCommand(0, "r", Epoch(1), client.positions("r"), Disposition.REJECT))
    assert number not in client.answers
    read_all(rig)
    assert client.answers[number].code is ErrorCode.NONE
    assert length(rig, "high") == 3 and length(rig, "r") == 0
    rig.check_log()


def test_a_reject_that_waited_when_the_set_was_handed_over_is_done_by_the_successor(
    rig: Rig, client: RigClient
) -> None:
    number = settle(client)
    rig.read()
    successor = Rig(predecessor=rig, handed=handed_over(rig), resident_bytes_max=1)
    resume(successor, client)
    other = successor.client("other")
    other.consume("q")
    assert not other.in_hand and number not in client.answers
    client.say(client.sent[number])
    assert client.answers[number].code is ErrorCode.NONE
    assert length(successor, "q") == 0 and successor.bodies("dead") == numbered(COUNT)
    successor.check_log()


def test_a_reject_that_waited_when_its_primary_died_was_not_answered(rig: Rig, client: RigClient) -> None:
    number = settle(client)
    rig.read()
    successor = Rig(predecessor=rig)
    other = successor.client("other")
    other.consume("q")
    assert number not in client.answers
    assert other.bodies("q") == numbered(COUNT)


def test_a_reject_whose_stream_was_lost_is_done_once_when_it_comes_again(rig: Rig, client: RigClient) -> None:
    number = settle(client)
    client.lose_stream()
    rig.read()
    resume(rig, client, number)
    assert number not in client.answers
    read_all(rig)
    assert client.answers[number].code is ErrorCode.NONE
    assert rig.bodies("dead") == numbered(COUNT) and length(rig, "q") == 0
    rig.check_log()


def test_a_session_may_end_while_its_reject_waits(rig: Rig, client: RigClient) -> None:
    """Its messages have failed, and are worn out by that."""
    settle(client)
    client.lose_stream()
    rig.pass_time(10_000)
    rig.pass_time(1)
    assert client.session not in rig.state.sessions.by_key
    read_all(rig)
    assert rig.bodies("dead") == numbered(COUNT) and length(rig, "q") == 0
    rig.check_log()


def test_a_queue_may_be_deleted_while_a_reject_waits(rig: Rig, client: RigClient) -> None:
    number = settle(client)
    rig.client("other").ok(DeleteQueueCommand(0, "q"))
    read_all(rig)
    rig.pass_time(1)
    assert client.answers[number].code is ErrorCode.NOT_FOUND
    assert client.publish("dead", b"goes on").code is ErrorCode.NONE
    rig.check_log()


def test_what_the_store_does_not_answer_is_asked_again_for_a_reject(rig: Rig, client: RigClient) -> None:
    number = settle(client)
    rig.feed(MessagesRead(SET, rig.readings.popleft().request, None))
    rig.pass_time(SMALL.store_retry_ms)
    rig.read()
    late = rig.readings.popleft()
    rig.feed(StoreLost(SET))
    rig.feed(StoreConnected(SET))
    rig.feed(MessagesRead(SET, late.request, ((b"", b"wrong"),) * len(late.messages)))
    assert number not in client.answers
    read_all(rig)
    assert client.answers[number].code is ErrorCode.NONE and rig.bodies("dead") == numbered(COUNT)
    rig.check_log()


def test_rejects_of_several_clients_are_done_one_after_the_other(rig: Rig, client: RigClient) -> None:
    """One whose stream is gone holds nobody up."""
    others = [rig.client(name) for name in ("gone", "there")]
    for other in others:
        other.declare(other.session_id, dead_letter_exchange="", dead_letter_key="dead")
        rig.holds_readings = False
        other.publish(other.session_id, *numbered(COUNT))
        other.consume(other.session_id)
        rig.holds_readings = True
    number = settle(client)
    numbers = []
    for other in others:
        queue = str(other.session_id)
        command: AnyCommand = SettleCommand(0, queue, Epoch(1), other.positions(queue), Disposition.REJECT)
        numbers.append(other.command(command))
    others[0].lose_stream()
    for _ in range(3):
        assert number not in client.answers and len(rig.readings) == 1
        rig.read()
    read_all(rig)
    rig.pass_time(1)
    read_all(rig)
    assert client.answers[number].code is ErrorCode.NONE
    assert numbers[0] not in others[0].answers and others[1].answers[numbers[1]].code is ErrorCode.NONE
    assert [length(rig, queue) for queue in ("q", "gone", "there", "dead")] == [0, COUNT, 0, 2 * COUNT]
    rig.check_log()


# --- in parts ---------------------------------------------------------------------------------------------------------

IN_PARTS = PrimarySettings(
    reading_messages_max=2, command_bytes_max=18, frame_bytes_max=1, delivery_batch_max=3
)
"""A command brings three of the bodies."""


@pytest.fixture
def slow() -> tuple[Rig, RigClient]:
    """A primary that does rejects in parts, and a client that has messages in hand whose bodies are away."""
    rig = Rig(IN_PARTS, resident_bytes_max=1)
    client = rig.client("client", outlives_hand_over=True)
    client.declare("dead", is_durable=False)
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead", delivery_count_max=1)
    for body in numbered(COUNT):
        client.publish("q", body)
    client.consume("q")
    assert len(client.in_hand) == COUNT
    rig.holds_readings = True
    return rig, client


def read_until(rig: Rig, dead: int) -> None:
    """Let the store answer until so many are dead letters."""
    while length(rig, "dead") < dead:
        rig.read()


def test_a_reject_of_more_than_a_command_may_bring_is_answered_when_the_log_has_all_of_it(
    slow: tuple[Rig, RigClient],
) -> None:
    rig, client = slow
    number = settle(client)
    for done in range(3, COUNT, 3):
        read_until(rig, done)
        assert (
            length(rig, "q") == COUNT - done == COUNT - length(rig, "dead") and number not in client.answers
        )
    read_until(rig, COUNT)
    assert client.answers[number].code is ErrorCode.NONE and client.answers[number].value == COUNT
    assert rig.bodies("dead") == numbered(COUNT) and length(rig, "q") == 0
    successor = Rig(predecessor=rig, resident_bytes_max=1)
    other = successor.client("other")
    other.consume("q")
    assert not other.in_hand
    rig.check_log()


def test_what_is_left_of_a_reject_goes_to_nobody_else_in_the_same_reign(slow: tuple[Rig, RigClient]) -> None:
    rig, client = slow
    number = settle(client)
    read_until(rig, 3)
    other = rig.client()
    other.consume("q", selector="TRUE")
    read_all(rig)
    assert not other.in_hand and client.answers[number].code is ErrorCode.NONE
    assert rig.bodies("dead") == numbered(COUNT)
    rig.check_log()


def test_a_reject_whose_primary_died_between_two_parts_was_not_answered_and_the_rest_is_free(
    slow: tuple[Rig, RigClient],
) -> None:
    rig, client = slow
    number = settle(client)
    read_until(rig, 3)
    successor = Rig(predecessor=rig)
    resume(successor, client, number)
    assert client.answers[number].code is ErrorCode.STALE_DELIVERY
    other = successor.client("other")
    other.consume("q")
    assert other.bodies("q") == numbered(COUNT)[3:] and successor.bodies("dead") == numbered(3)


def test_what_is_left_of_a_reject_is_done_by_a_successor_to_whom_the_set_was_handed_over(
    slow: tuple[Rig, RigClient],
) -> None:
    rig, client = slow
    number = settle(client)
    read_until(rig, 3)
    successor = Rig(IN_PARTS, predecessor=rig, handed=handed_over(rig), resident_bytes_max=1)
    resume(successor, client, number)
    assert client.answers[number].code is ErrorCode.NONE
    assert length(successor, "q") == 0 and successor.bodies("dead") == numbered(COUNT)
    successor.check_log()


def test_a_reject_whose_stream_was_lost_between_two_parts_is_finished_when_it_comes_again(
    slow: tuple[Rig, RigClient],
) -> None:
    rig, client = slow
    number = settle(client)
    read_until(rig, 3)
    client.lose_stream()
    read_all(rig)
    assert length(rig, "dead") == 3
    resume(rig, client, number)
    read_all(rig)
    assert client.answers[number].code is ErrorCode.NONE
    assert rig.bodies("dead") == numbered(COUNT) and length(rig, "q") == 0
    rig.check_log()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_session_may_end_or_a_queue_be_deleted_between_two_parts(
    slow: tuple[Rig, RigClient], is_deleted: bool
) -> None:
    rig, client = slow
    number = settle(client)
    read_until(rig, 3)
    if is_deleted:
        rig.client("other").ok(DeleteQueueCommand(0, "q"))
    else:
        client.lose_stream()
        rig.pass_time(10_000)
    read_all(rig)
    rig.pass_time(1)
    read_all(rig)
    if is_deleted:
        assert client.answers[number].code is ErrorCode.NOT_FOUND and rig.bodies("dead") == numbered(3)
    else:
        assert sorted(rig.bodies("dead")) == numbered(COUNT), "they have failed, and are worn out by that"
        assert length(rig, "q") == 0
    assert rig.client("goes on").publish("dead", b"1").code is ErrorCode.NONE
    rig.check_log()


# --- worn out ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("selector", ["", "TRUE"])
def test_a_worn_out_message_is_offered_to_nobody_while_its_body_is_away(
    rig: Rig, client: RigClient, selector: str
) -> None:
    """Even if its body is read for others first."""
    worn_out, *others = client.positions("q")[3:]
    settle(client, worn_out, disposition=Disposition.FAIL)
    late = rig.readings.popleft()
    client.say(CloseConsumer(1))
    settle(client, *others, disposition=Disposition.RELEASE)
    other = rig.client()
    other.consume("q", selector=selector)
    read_all(rig)
    assert other.positions("q") == tuple(others)
    rig.readings.append(late)
    read_all(rig)
    assert other.positions("q") == tuple(others) and rig.bodies("dead") == [b"body 3"]
    rig.check_log()


def test_worn_out_messages_of_a_queue_go_in_the_order_in_which_they_came_whichever_bodies_are_here(
    rig: Rig, client: RigClient
) -> None:
    client.publish("q", b"here", is_durable=False)
    away, here = client.positions("q")[3], client.positions("q")[-1]
    for position in (away, here):
        settle(client, position, disposition=Disposition.FAIL)
    assert rig.bodies("dead") == []
    read_all(rig)
    assert rig.bodies("dead") == [b"body 3", b"here"]
    queue_id = rig.state.queues.by_name["q"].id
    assert not rig.core.context.dispatch._queues[queue_id].hands.leaving
    rig.check_log()


def test_a_queue_that_is_deleted_while_its_dead_letters_wait_leaves_none(rig: Rig, client: RigClient) -> None:
    settle(client, client.positions("q")[3], disposition=Disposition.FAIL)
    records = len(rig.records())
    client.ok(DeleteQueueCommand(0, "q"))
    read_all(rig)
    assert rig.bodies("dead") == [] and len(rig.records()) == records + 1
    client.declare("q")
    assert rig.bodies("q") == []
    rig.check_log()


def test_worn_out_messages_that_wait_are_found_a_second_time_by_a_new_reign_and_are_dead_letters_once(
    rig: Rig,
) -> None:
    """It looks through what was there when it began."""
    client = rig.client()
    client.declare("dead", is_durable=False)
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead", delivery_count_max=1)
    for body in numbered(COUNT):
        client.publish("q", body)
    successor = Rig(replace(SMALL, piece_cost=1), predecessor=rig, resident_bytes_max=1)
    other = successor.client("other")
    other.consume("q")
    successor.holds_readings = True
    other.command(SettleCommand(0, "q", Epoch(2), other.positions("q"), Disposition.FAIL))
    other.in_hand.clear()
    assert successor.core.context.pieces.works
    while successor.core.context.pieces.works:
        successor.boottime_ms += 1
        successor.feed(Woken(SET))
    assert successor.readings and length(successor, "q")
    while successor.readings or successor.wakes:
        read_all(successor)
        successor.boottime_ms += 1
        successor.wakes.clear()
        successor.feed(Woken(SET))
    assert successor.bodies("dead") == numbered(COUNT) and length(successor, "q") == 0
    successor.check_log()


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_a_worn_out_message_whose_body_was_away_is_a_dead_letter_in_the_next_reign(
    rig: Rig, client: RigClient, is_handed_over: bool
) -> None:
    worn_out = client.positions("q")[3]
    number = settle(client, worn_out, disposition=Disposition.FAIL)
    assert client.answers[number].code is ErrorCode.NONE
    handed = handed_over(rig) if is_handed_over else None
    successor = Rig(SMALL, predecessor=rig, handed=handed)
    assert successor.bodies("dead") == [b"body 3"]
    other = successor.client("other")
    other.consume("q")
    assert worn_out not in other.positions("q")
    successor.check_log()
