"""Numbered commands of a session: executed once, answered again, pushed back at a gap (DESIGN 6, histories 8 and 25)."""

from msgspec.structs import replace

from lockstep.core.commands import (
    DeclareQueueCommand,
    DeleteQueueCommand,
    QueueOptions,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch
from lockstep.core.inputs import ClientSaid
from lockstep.core.server_messages import (
    Answers,
    AttachRefused,
    PushedBack,
    SessionAttached,
    SessionEnded,
)
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, publish


def test_a_command_is_answered_when_it_is_committed_and_not_before() -> None:
    rig = Rig(holds_store=True)
    rig.acknowledge()
    client = rig.client()
    rig.acknowledge()
    number = client.command(DeclareQueueCommand(0, "q", QueueOptions()))
    assert number not in client.answers
    rig.acknowledge()
    assert client.answers[number].code is ErrorCode.NONE


def test_a_repeated_command_takes_effect_once_and_gets_its_first_answer() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1", b"2")
    first = client.answers.pop(2)
    client.say(client.sent[2])
    assert client.answers[2] == first
    assert rig.bodies("q") == [b"1", b"2"]


def test_a_retry_on_another_stream_of_what_is_not_yet_committed_runs_once() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    rig.holds_store = True
    number = client.command(publish("q", b"1"))
    client.resume(heard=1)
    client.say(client.sent[number])
    rig.acknowledge()
    assert client.answers[number].value == 1
    assert rig.bodies("q") == [b"1"]


def test_answers_that_were_not_heard_come_again_behind_the_attachment() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    client.publish("nowhere", b"1")
    client.heard.clear()
    client.resume(heard=1)
    attached, *answers = client.heard
    assert isinstance(attached, SessionAttached) and attached.next_number == 4
    said = [answered for message in answers if isinstance(message, Answers) for answered in message.answers]
    assert [(answered.number, answered.code) for answered in said] == [
        (2, ErrorCode.NONE),
        (3, ErrorCode.NOT_FOUND),
    ]


def test_a_command_behind_a_gap_is_pushed_back_and_takes_no_number() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.number = 2
    number = client.command(publish("q", b"too early"))
    (pushed,) = client.heard_of(PushedBack)
    assert (pushed.number, pushed.code) == (2, ErrorCode.SEQUENCE_GAP)
    client.number = 1
    client.publish("q", b"first")
    client.say(client.sent[number])
    assert rig.bodies("q") == [b"first", b"too early"]


def test_what_was_sent_behind_a_push_back_is_dropped_until_its_first_command_comes_again() -> None:
    rig = Rig(PrimarySettings(uncommitted_bytes_max=100))
    client = rig.client()
    client.declare("q")
    rig.holds_store = True
    client.command(publish("q", bytes(1000)))
    for body in (b"3", b"4"):
        client.command(publish("q", body))
    assert [(pushed.number, pushed.code) for pushed in client.heard_of(PushedBack)] == [
        (3, ErrorCode.UNAVAILABLE)
    ]
    rig.holds_store = False
    rig.acknowledge()
    client.say(client.sent[4])
    client.say(client.sent[3], client.sent[4])
    assert rig.bodies("q")[1:] == [b"3", b"4"]


def test_a_rejected_command_consumes_its_number() -> None:
    rig = Rig()
    client = rig.client()
    assert client.publish("nowhere", b"1").code is ErrorCode.NOT_FOUND
    client.declare("nowhere")
    client.answers.clear()
    client.say(client.sent[1])
    assert client.answers[1].code is ErrorCode.NOT_FOUND
    assert rig.bodies("nowhere") == []


def test_a_session_goes_on_in_a_later_epoch_where_its_commands_are_known() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    rig = client.rig = Rig(predecessor=rig)
    client.stream = 0
    client.answers.clear()
    client.resume(heard=1)
    assert client.answers[2].value == 1
    client.say(client.sent[2])
    client.publish("q", b"2")
    assert rig.bodies("q") == [b"1", b"2"]


def test_a_session_that_a_restart_forgot_is_refused_and_its_commands_are_not_executed() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    rig = client.rig = Rig(predecessor=rig, is_restarted=True)
    client.stream = 0
    client.resume()
    (refused,) = client.heard_of(AttachRefused)
    assert refused.code is ErrorCode.UNKNOWN_SESSION and client.session_id in refused.message
    client.command(DeleteQueueCommand(0, "q"))
    assert client.heard_of(SessionEnded)[-1].code is ErrorCode.UNKNOWN_SESSION
    assert "q" in rig.state.queues.by_name


def test_a_session_of_another_epoch_with_the_same_index_is_not_this_one() -> None:
    rig = Rig()
    client = rig.client()
    client.lose_stream()
    client.session_epoch = Epoch(7)
    client.resume()
    assert client.heard_of(AttachRefused)[0].code is ErrorCode.UNKNOWN_SESSION


def test_an_opening_whose_answer_was_lost_opens_one_session() -> None:
    rig = Rig()
    client = rig.client()
    first = client.session
    client.session = type(first)(0)
    client.resume()
    assert client.session == first
    assert len(rig.state.sessions.by_key) == 1


def test_a_second_stream_of_a_session_ends_the_first() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    old = client.stream
    client.attach(heard=1)
    assert client.is_closed
    late = replace(publish("q", b"from the old stream"), number=2)
    rig.feed(ClientSaid(SET, old, (late,)))
    client.publish("q", b"from the new one")
    assert rig.bodies("q") == [b"from the new one"]
