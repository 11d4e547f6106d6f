"""Sessions: what outlives a stream, what ends with the session, and when that is."""

import pytest

from lockstep.core.commands import BeginCommand
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import SessionId
from lockstep.core.inputs import LeaseExtended
from lockstep.core.requests import (
    CloseConsumer,
    Describe,
    DetachSession,
    Heartbeat,
)
from lockstep.core.server_messages import (
    AttachRefused,
    ConsumerClosed,
    ConsumerOpened,
    HeartbeatAnswered,
    PushedBack,
    SessionEnded,
)
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import LEASE_MS, SET, Rig, RigClient, publish


def test_what_a_client_has_in_hand_stays_its_own_through_a_lost_stream() -> None:
    rig = Rig()
    client, other = rig.client(), rig.client()
    client.declare("q")
    client.publish("q", b"1", b"2", b"3")
    client.consume("q", credit=2)
    client.lose_stream()
    other.consume("q")
    assert other.bodies("q") == [b"3"]
    client.resume()
    assert client.settle("q").value == 2
    assert rig.bodies("q") == [b"3"]


def test_deliveries_that_got_lost_with_the_stream_go_out_again_as_never_delivered() -> None:
    rig = Rig()
    client, other = rig.client(), rig.client()
    client.declare("q")
    client.publish("q", b"1", b"2")
    client.consume("q")
    del client.in_hand["q", client.positions("q")[0]]
    client.resume()
    other.consume("q")
    assert other.bodies("q") == [b"1"]
    assert other.in_hand["q", other.positions("q")[0]].delivery_count == 0
    assert client.settle("q").code is ErrorCode.NONE


def test_a_session_that_stays_away_ends_and_everything_of_it_comes_back() -> None:
    rig = Rig()
    client, other = rig.client(timeout_ms=1000), rig.client()
    client.declare("q")
    client.publish("q", b"held", b"accepted")
    client.declare("own", is_exclusive=True)
    client.consume("q")
    transaction = client.begin()
    client.settle("q", client.positions("q")[1], transaction=transaction, sequence=1)
    client.ok(publish("q", b"never", transaction=transaction, sequence=2))
    client.lose_stream()
    rig.pass_time(999)
    assert len(rig.state.sessions.by_key) == 2
    rig.pass_time(1)
    assert len(rig.state.sessions.by_key) == 1
    assert "own" not in rig.state.queues.by_name
    other.consume("q")
    assert other.bodies("q") == [b"held", b"accepted"]
    assert [delivered.delivery_count for delivered in other.in_hand.values()] == [1, 1]
    client.resume()
    assert client.heard_of(AttachRefused)[0].code is ErrorCode.UNKNOWN_SESSION
    rig.check_log()


@pytest.mark.parametrize(
    ("asked_ms", "granted_ms"), [(4_999, 4_999), (5_000, 5_000), (5_001, 5_000), (1 << 60, 5_000)]
)
def test_a_session_is_kept_no_longer_than_the_set_allows(asked_ms: int, granted_ms: int) -> None:
    rig = Rig(settings=PrimarySettings(session_timeout_ms_max=5_000))
    client = rig.client(timeout_ms=asked_ms)
    client.lose_stream()
    rig.pass_time(granted_ms - 1)
    assert rig.state.sessions.by_key
    rig.pass_time(1)
    assert not rig.state.sessions.by_key


@pytest.mark.parametrize("asked_ms", [0, -1])
def test_a_session_without_a_time_out_ends_with_its_stream(asked_ms: int) -> None:
    rig = Rig()
    client = rig.client(timeout_ms=asked_ms)
    (session,) = rig.state.sessions.by_key.values()
    assert session.timeout_ms == 0
    rig.pass_time(1_000)
    assert rig.state.sessions.by_key, "it is attached"
    client.lose_stream()
    rig.pass_time(0)
    assert not rig.state.sessions.by_key


def test_a_session_that_is_resumed_keeps_the_time_out_that_it_was_opened_with() -> None:
    rig = Rig()
    client = rig.client(timeout_ms=1_000)
    client.lose_stream()
    client.attach(timeout_ms=100_000)
    client.lose_stream()
    rig.pass_time(1_000)
    assert not rig.state.sessions.by_key


def test_an_attached_session_does_not_time_out() -> None:
    rig = Rig()
    client = rig.client(timeout_ms=1000)
    rig.pass_time(100_000)
    client.declare("q")


def test_the_time_out_begins_when_the_new_primary_serves() -> None:
    rig = Rig()
    client = rig.client(timeout_ms=1000)
    client.lose_stream()
    rig = client.rig = Rig(predecessor=rig, holds_store=True)
    rig.pass_time(5000)
    rig.acknowledge()
    rig.pass_time(50)
    rig.pass_time(949)
    client.resume()
    rig.acknowledge()
    assert not client.heard_of(AttachRefused)
    client.lose_stream()
    rig.pass_time(1000)
    assert not rig.state.sessions.by_key


def test_a_detached_session_gives_back_what_it_holds_uncounted() -> None:
    rig = Rig()
    client, other = rig.client(), rig.client()
    client.declare("q")
    client.publish("q", b"1")
    client.consume("q")
    client.say(DetachSession())
    assert client.heard_of(SessionEnded)[0].code is ErrorCode.NONE and client.is_closed
    other.consume("q")
    assert [delivered.delivery_count for delivered in other.in_hand.values()] == [0]
    rig.check_log()


def test_anybody_answers_on_an_exclusive_queue_that_only_its_session_reads() -> None:
    rig = Rig()
    owner, other = rig.client(), rig.client()
    owner.declare("reply", is_exclusive=True)
    owner.consume("reply")
    assert other.publish("reply", b"answer").code is ErrorCode.NONE
    assert owner.bodies("reply") == [b"answer"]
    other.consume("reply")
    assert other.heard_of(ConsumerClosed)[0].code is ErrorCode.LOCKED


def test_an_auto_delete_queue_ends_with_its_last_consumer() -> None:
    rig = Rig()
    first, second = rig.client(), rig.client()
    first.declare("auto", is_auto_delete=True)
    one, two = first.consume("auto"), second.consume("auto")
    first.say(CloseConsumer(one))
    assert "auto" in rig.state.queues.by_name
    second.say(CloseConsumer(two))
    assert "auto" not in rig.state.queues.by_name
    rig.check_log()


def test_an_auto_delete_queue_waits_for_a_client_that_lost_its_stream() -> None:
    rig = Rig()
    away, other = rig.client(timeout_ms=1000), rig.client()
    other.declare("auto", is_auto_delete=True)
    away.consume("auto")
    consumer = other.consume("auto")
    other.publish("auto", b"1")
    away.lose_stream()
    other.say(CloseConsumer(consumer))
    assert "auto" in rig.state.queues.by_name
    rig.pass_time(1000)
    assert "auto" not in rig.state.queues.by_name


def test_an_auto_delete_queue_ends_with_a_session_that_came_back_and_did_not_consume_again() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("auto", is_auto_delete=True)
    client.consume("auto")
    client.resume()
    assert "auto" in rig.state.queues.by_name
    client.say(DetachSession())
    assert "auto" not in rig.state.queues.by_name


def test_who_asks_on_a_stream_without_a_session_is_not_left_waiting() -> None:
    rig = Rig()
    client = RigClient(rig, SessionId("nobody"))
    client.stream = rig.new_stream(client)
    client.say(Describe(1))
    (ended,) = client.heard_of(SessionEnded)
    assert ended.code is ErrorCode.UNAVAILABLE, "it says nothing of the session"
    assert client.is_closed


def test_the_number_of_sessions_is_limited() -> None:
    rig = Rig(PrimarySettings(sessions_max=1))
    rig.client()
    assert rig.client().heard_of(AttachRefused)[0].code is ErrorCode.UNAVAILABLE


def test_nothing_is_said_without_the_right_to_serve_and_all_of_it_when_that_is_back() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.heard.clear()
    rig.lose_lease()
    client.command(BeginCommand(0))
    client.command(publish("q", b"1"))
    client.consume("q")
    client.say(Heartbeat())
    assert client.heard == []
    rig.feed(LeaseExtended(SET, 1, LEASE_MS))
    assert client.answers[2].code is ErrorCode.NONE
    assert client.heard_of(ConsumerOpened)
    assert not client.heard_of(HeartbeatAnswered) and not client.heard_of(PushedBack)
    assert client.bodies("q") == [b"1"]
