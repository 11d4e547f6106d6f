"""Long purges: in parts, between which others have their turn, and of what was there when they were asked for."""

import pytest

from lockstep.core.clearing import CLEARED_IN_ONE
from lockstep.core.commands import DeleteQueueCommand, PurgeQueueCommand
from lockstep.core.errors import ErrorCode
from lockstep.core.inputs import Tick
from lockstep.core.records import AcceptCommand, Dequeue
from lockstep.core.requests import Heartbeat
from lockstep.core.server_messages import HeartbeatAnswered
from services.broker.core.lease_keeper import LeaseSettings
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish, wake
from tests.unit.services.primary.test_alone import SLACK, Longest
from tests.unit.services.primary.test_many_targets import say

PART = 3
COUNT = 10
SMALL = PrimarySettings(command_messages_max=PART)
PURGE = PurgeQueueCommand(0, "q")
RECORD_MICROSECONDS = 10
"""What one operation of a transaction costs in the record that commits it, if it came by itself."""


@pytest.fixture
def rig() -> Rig:
    return Rig(SMALL)


@pytest.fixture
def client(rig: Rig) -> RigClient:
    client = rig.client()
    client.declare("q")
    fill(client)
    return client


def fill(client: RigClient) -> None:
    for number in range(COUNT):
        client.publish("q", b"%d" % number)


def left(rig: Rig) -> int:
    return rig.state.queues.by_name["q"].length


def finish(rig: Rig) -> None:
    rig.feed(Tick(SET))
    while wake(rig):
        pass


def test_a_long_purge_is_done_in_parts_and_answered_behind_the_last(rig: Rig, client: RigClient) -> None:
    number = client.command(PURGE)
    rig.feed(Tick(SET))
    assert set(rig.wakes) == {rig.boottime_ms + 1}
    lengths = []
    while wake(rig):
        assert number not in client.answers
        lengths.append(left(rig))
    assert lengths == [7, 4, 1] and left(rig) == 0
    assert client.answers[number].code is ErrorCode.NONE and client.answers[number].value == COUNT
    assert isinstance(rig.records()[-1], AcceptCommand)
    assert max(len(one.positions) for one in rig.records() if isinstance(one, Dequeue)) == PART
    rig.check_log()


def test_a_purge_of_as_much_as_a_command_names_is_done_at_once(rig: Rig) -> None:
    client = rig.client()
    client.declare("q")
    client.publish("q", *[b""] * PART)
    assert client.ok(PURGE) == PART


def test_others_have_their_turn_and_what_comes_meanwhile_stays(rig: Rig, client: RigClient) -> None:
    number, other = client.command(PURGE), rig.client()
    assert other.publish("q", b"new").code is ErrorCode.NONE
    rig.feed(Tick(SET))
    wake(rig)
    assert other.publish("q", b"newer").code is ErrorCode.NONE
    finish(rig)
    assert client.answers[number].value == COUNT and rig.bodies("q") == [b"new", b"newer"]
    rig.check_log()


def test_what_is_said_behind_it_is_heard_behind_it(rig: Rig, client: RigClient) -> None:
    number = client.command(PURGE)
    behind = client.command(publish("q", b"behind"))
    client.say(Heartbeat())
    assert isinstance(client.heard[-1], HeartbeatAnswered), "its connection lives"
    assert behind not in client.answers
    finish(rig)
    assert [client.answers[each].code for each in (number, behind)] == [ErrorCode.NONE] * 2
    assert rig.bodies("q") == [b"behind"]
    rig.check_log()


def test_what_somebody_has_stays(rig: Rig, client: RigClient) -> None:
    holder = rig.client()
    holder.consume("q", credit=4)
    transaction = holder.begin()
    held = holder.positions("q")
    holder.settle("q", *held[:1], transaction=transaction, sequence=1)
    number = client.command(PURGE)
    finish(rig)
    assert client.answers[number].value == COUNT - 4 and left(rig) == 4
    rig.check_log()


def test_one_whose_client_comes_back_takes_what_is_left(rig: Rig, client: RigClient) -> None:
    number = client.command(PURGE)
    rig.feed(Tick(SET))
    wake(rig)
    client.resume()
    assert not wake(rig) and left(rig) == 7, "nobody waits for it any more"
    client.say(client.sent[number])
    finish(rig)
    assert client.answers[number].value == 7 and left(rig) == 0
    client.resume()
    client.say(client.sent[number])
    assert client.answers[number].value == 7, "it is answered as before"
    rig.check_log()


def test_whoever_leads_next_takes_what_is_left(rig: Rig, client: RigClient) -> None:
    number = client.command(PURGE)
    rig.feed(Tick(SET))
    wake(rig)
    successor = Rig(SMALL, predecessor=rig)
    client.rig, client.stream = successor, 0
    client.attach()
    client.say(client.sent[number])
    finish(successor)
    assert client.answers[number].value == 7 and left(successor) == 0
    successor.check_log()


def test_a_queue_that_is_deleted_meanwhile_holds_nothing_any_more(rig: Rig, client: RigClient) -> None:
    number, other = client.command(PURGE), rig.client()
    rig.feed(Tick(SET))
    wake(rig)
    assert other.ok(DeleteQueueCommand(0, "q")) == 7
    other.declare("q")
    other.publish("q", b"of another queue")
    finish(rig)
    assert client.answers[number].code is ErrorCode.NONE and client.answers[number].value == PART
    assert rig.bodies("q") == [b"of another queue"]
    rig.check_log()


def test_long_purges_are_done_one_after_the_other(rig: Rig, client: RigClient) -> None:
    other = rig.client()
    numbers = client.command(PURGE), other.command(PURGE)
    finish(rig)
    assert (client.answers[numbers[0]].value, other.answers[numbers[1]].value) == (COUNT, 0)
    rig.check_log()


def test_a_long_purge_waits_while_too_much_is_uncommitted() -> None:
    rig = Rig(PrimarySettings(command_messages_max=PART, uncommitted_bytes_max=100))
    client = rig.client()
    client.declare("q")
    fill(client)
    number = client.command(PURGE)
    rig.holds_store = True
    client.say(Heartbeat())
    finish(rig)
    assert 0 < left(rig) < COUNT
    rig.holds_store = False
    rig.acknowledge()
    finish(rig)
    finish(rig)
    assert client.answers[number].value == COUNT
    rig.check_log()


def test_the_longest_transaction_and_the_longest_part_leave_time_to_renew_the_lease() -> None:
    """R6: one record is applied in one go, on every replica, and is as long on the next primary."""
    settings = PrimarySettings()
    longest = max(settings.transaction_operations_max, settings.command_messages_max)
    assert longest * RECORD_MICROSECONDS <= LeaseSettings().lease_seconds * 1_000_000 / 3


def test_what_a_long_queue_held_is_cleared_behind_its_deletion_between_other_commands() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.declare("other")
    count = 3 * CLEARED_IN_ONE
    for _ in range(3):
        client.publish("q", *[b"x"] * CLEARED_IN_ONE)
    assert client.ok(DeleteQueueCommand(0, "q")) == count
    assert rig.state.queues.get("q") is None and len(rig.state.contents) == count
    client.declare("q")
    client.publish("other", b"y")
    assert rig.state.queues.by_name["q"].length == 0
    while rig.state.clearing.queues:
        assert rig.wakes
        wake(rig)
    assert len(rig.state.contents) == 1
    rig.check_log()


def test_many_purges_that_come_together_take_many_steps() -> None:
    """As many messages in all as are too much for one, though each queue has few."""
    longest = []
    for queues in (8, 40):
        rig = Rig()
        client = rig.client()
        for number in range(queues):
            client.declare(f"q{number}")
            client.publish(f"q{number}", *[b"x"] * 300, priority=9)
        measured = Longest(rig)
        numbers = say(client, *[PurgeQueueCommand(0, f"q{number}") for number in range(queues)])
        while rig.wakes:
            wake(rig)
        assert [client.answers[number].value for number in numbers] == [300] * queues
        longest.append(measured.calls)
        rig.check_log()
    assert longest[1] < SLACK * longest[0]
