"""Queues longer than memory: what is delivered, browsed and dead-lettered when bodies are away."""

import pytest

from lockstep.core.commands import DeleteQueueCommand, Disposition, PurgeQueueCommand
from lockstep.core.content import DroppedMessage
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import QueuePosition
from lockstep.core.inputs import MessagesRead, StoreConnected, StoreLost
from lockstep.core.records import Dequeue, Move, Publish
from lockstep.core.requests import Browse, GrantCredit
from lockstep.core.server_messages import BrowseAnswer
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, is_ascending, publish, take_turns

SMALL = PrimarySettings(reading_messages_max=4, delivery_batch_max=3)


@pytest.fixture
def rig() -> Rig:
    """One in whose memory hardly any body stays."""
    return Rig(SMALL, resident_bytes_max=1)


def numbered(count: int) -> list[bytes]:
    return [b"body %d" % number for number in range(count)]


def away(rig: Rig) -> int:
    return sum(isinstance(content, DroppedMessage) for content in rig.state.contents.values())


def test_everything_is_delivered_in_order_and_intact(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(50))
    assert away(rig) == 49
    client.consume("q")
    assert client.bodies("q") == numbered(50)
    assert is_ascending(client.positions("q"))


def test_nothing_overtakes_a_message_whose_body_is_away(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(10))
    rig.holds_readings = True
    client.consume("q")
    assert client.bodies("q") == numbered(1) and len(rig.readings) == 1
    client.publish("q", b"new")
    rig.pass_time(100)
    assert client.bodies("q") == numbered(1) and len(rig.readings) == 1
    while rig.readings:
        rig.read()
    assert client.bodies("q") == [*numbered(10), b"new"]


def test_the_next_bodies_are_asked_for_while_the_last_ones_are_delivered(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(20))
    rig.holds_readings = True
    consumer = client.consume("q", credit=1)
    client.say(GrantCredit(consumer, 1))
    rig.read()
    assert len(client.in_hand) == 2 and len(rig.readings) == 1, (
        "one is delivered of four, four more are on their way"
    )
    rig.pass_time(100)
    assert len(rig.readings) == 1, "and no more than that"


def test_what_a_session_gives_back_goes_out_again_in_its_old_place(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(12))
    client.consume("q", credit=6)
    client.settle("q", disposition=Disposition.RELEASE)
    rig.pass_time(1)
    other = rig.client()
    other.consume("q", credit=12)
    assert other.bodies("q") == numbered(12)


def test_a_message_that_is_gone_when_the_answer_comes_is_nobodys(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(10))
    rig.holds_readings = True
    consumer = client.consume("q", credit=1)
    client.say(GrantCredit(consumer, 1000))
    purged = client.do(PurgeQueueCommand(0, "q"))
    assert purged.code is ErrorCode.NONE and purged.value == 9
    lost = list(rig.readings[0].messages)
    rig.read(lost)
    client.publish("q", b"after")
    assert client.bodies("q") == [*numbered(1), b"after"] and not rig.core.stopped


def test_a_queue_that_is_gone_when_the_answer_comes_is_nobodys(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(10))
    rig.holds_readings = True
    client.consume("q")
    client.ok(DeleteQueueCommand(0, "q"))
    rig.read()
    assert client.bodies("q") == numbered(1) and not rig.core.stopped


def test_what_the_store_did_not_answer_is_asked_again(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(3))
    rig.holds_readings = True
    client.consume("q")
    rig.feed(MessagesRead(SET, rig.readings.popleft().request, None))
    assert not rig.readings
    rig.pass_time(SMALL.store_retry_ms)
    rig.read()
    assert client.bodies("q") == numbered(3)


def test_a_lost_store_is_asked_again_and_its_late_answer_is_not_heard(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(3))
    rig.holds_readings = True
    client.consume("q")
    late = rig.readings.popleft()
    rig.feed(StoreLost(SET))
    rig.feed(StoreConnected(SET))
    rig.feed(MessagesRead(SET, late.request, ((b"", b"wrong"),) * len(late.messages)))
    rig.read()
    assert client.bodies("q") == numbered(3)


def test_a_store_that_lost_a_message_is_damaged(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(3))
    rig.holds_readings = True
    client.consume("q")
    rig.read(lost=rig.readings[0].messages[1:])
    assert "damaged" in rig.core.stopped
    assert client.bodies("q") == numbered(1)


def test_a_store_that_has_another_content_is_damaged(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(3))
    rig.holds_readings = True
    client.consume("q")
    reading = rig.readings.popleft()
    rig.feed(MessagesRead(SET, reading.request, ((b"", b""),) * len(reading.messages)))
    assert "damaged" in rig.core.stopped


def test_a_browser_gets_all_pages_in_order(rig: Rig, client: RigClient) -> None:
    client.publish("q", *numbered(30))
    found: list[bytes] = []
    after, is_end = QueuePosition(0), False
    while not is_end:
        client.say(Browse(7, "q", after, 1000))
        answer = client.heard[-1]
        assert isinstance(answer, BrowseAnswer) and answer.code is ErrorCode.NONE and answer.messages
        found += [message.body for message in answer.messages]
        after, is_end = answer.messages[-1].position, answer.is_end
    assert found == numbered(30)
    assert away(rig) >= 29 - SMALL.reading_messages_max, "they do not stay"


def test_too_many_browsers_are_turned_away() -> None:
    rig = Rig(PrimarySettings(readings_in_flight_max=1, readings_waiting_max=2), resident_bytes_max=1)
    client = rig.client()
    client.declare("q")
    client.publish("q", *numbered(3))
    rig.holds_readings = True
    after = rig.state.queues.by_name["q"].positions()[0]
    for number in range(4):
        client.say(Browse(number, "q", after, 1000))
    codes = [answer.code for answer in client.heard if isinstance(answer, BrowseAnswer)]
    assert codes == [ErrorCode.UNAVAILABLE]
    assert [note.limit for note in rig.notes if note.limit] == ["readings_waiting_max"]
    while rig.readings:
        rig.read()
    codes = [answer.code for answer in client.heard if isinstance(answer, BrowseAnswer)]
    assert codes == [ErrorCode.UNAVAILABLE] + [ErrorCode.NONE] * 3


def test_a_dead_letter_keeps_its_name_in_the_store(rig: Rig, client: RigClient) -> None:
    client.declare("dead")
    client.declare("short", message_ttl_ms=100, dead_letter_exchange="", dead_letter_key="dead")
    client.publish("short", *numbered(10))
    rig.pass_time(100)
    assert any(isinstance(record, Move) for record in rig.records())
    client.consume("dead")
    assert client.bodies("dead") == numbered(10)
    rig.check_log()


def test_dead_letters_for_a_transient_queue_are_copied_when_their_bodies_are_here(
    rig: Rig, client: RigClient
) -> None:
    """The store drops what only a transient queue has: a reference would lead nowhere."""
    client.declare("fleeting", is_durable=False)
    client.declare("dead")
    client.exchange("x", "fleeting", "dead")
    client.declare("short", message_ttl_ms=100, dead_letter_exchange="x")
    client.publish("short", *numbered(10))
    rig.holds_readings = True
    rig.pass_time(100)
    assert rig.bodies("fleeting") == numbered(1), "the head is here"
    while rig.readings:
        rig.read()
    assert rig.state.queues.by_name["short"].length == 0
    assert rig.bodies("fleeting") == numbered(10)
    assert rig.state.queues.by_name["dead"].length == 10
    copies = [record for record in rig.records() if isinstance(record, Publish) and record.command is None]
    assert [message.body for record in copies for message in record.messages] == numbered(10)
    rig.check_log()


def test_a_dead_letter_without_any_durable_target_leaves_the_durable_state(
    rig: Rig, client: RigClient
) -> None:
    client.declare("fleeting", is_durable=False)
    client.declare("q2", dead_letter_exchange="", dead_letter_key="fleeting")
    client.publish("q2", *numbered(3))
    client.consume("q2")
    client.settle("q2", disposition=Disposition.REJECT)
    assert rig.bodies("fleeting") == numbered(3)
    assert rig.state.queues.by_name["q2"].length == 0
    assert any(isinstance(record, Dequeue) for record in rig.records())
    rig.check_log()


def test_nobody_takes_a_message_that_is_a_dead_letter_as_soon_as_its_body_is_here(
    rig: Rig, client: RigClient
) -> None:
    client.declare("fleeting", is_durable=False)
    client.declare("short", message_ttl_ms=100, dead_letter_exchange="", dead_letter_key="fleeting")
    client.publish("short", *numbered(2))
    rig.holds_readings = True
    rig.pass_time(100)
    assert rig.bodies("fleeting") == numbered(1) and len(rig.readings) == 1
    client.consume("short")
    while rig.readings:
        rig.read()
    assert client.bodies("short") == [] and rig.bodies("fleeting") == numbered(2)
    rig.check_log()


def test_bodies_stay_until_the_own_store_has_them(rig: Rig, client: RigClient) -> None:
    rig.holds_store = True
    for body in numbered(5):
        client.command(publish("q", body))
    assert away(rig) == 0
    rig.acknowledge()
    assert away(rig) > 0
    client.consume("q")
    assert client.bodies("q") == numbered(5)


def test_bodies_that_are_too_many_at_once_go_in_turns_that_are_asked_for() -> None:
    limit = 64 << 10
    rig = Rig(resident_bytes_max=limit)
    client = rig.client()
    client.declare("q")
    rig.holds_store = True
    for _ in range(20):
        client.command(publish("q", *[bytes(1024)] * 100))
    rig.acknowledge()
    assert rig.state.contents.resident_bytes > limit
    assert take_turns(rig) > 3
    assert rig.state.contents.resident_bytes <= limit
