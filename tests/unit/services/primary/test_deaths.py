"""A dead letter says why it is one, to whoever receives it, through failovers and restarts."""

import pytest

from lockstep.core.amqp.sections import join
from lockstep.core.commands import Disposition
from lockstep.core.deaths import Death, DeathReason, Deaths
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from tests.unit.lockstep.core.amqp.amqp_messages import decoded
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient

REJECTED, EXPIRED, DELIVERY_LIMIT = DeathReason.REJECTED, DeathReason.EXPIRED, DeathReason.DELIVERY_LIMIT


def received(client: RigClient, queue: str) -> list[Deaths]:
    client.consume(queue)
    return [client.in_hand[queue, position].deaths for position in client.positions(queue)]


def declared(rig: Rig, **options: object) -> RigClient:
    client = rig.client()
    client.declare("dead")
    client.declare("q", dead_letter_key="dead", **options)
    return client


def test_what_was_rejected_expired_or_failed_too_often_says_so() -> None:
    rig = Rig()
    client = declared(rig, delivery_count_max=1)
    client.publish("q", b"expires", ttl_ms=100)
    rig.pass_time(100)
    client.publish("q", b"rejected")
    client.consume("q", credit=2)
    client.settle("q", disposition=Disposition.REJECT)
    client.publish("q", b"failed")
    client.settle("q", disposition=Disposition.FAIL)
    now_ms = rig.wall_ms
    assert received(client, "dead") == [
        (Death("q", reason, 1, now_ms, now_ms),) for reason in (EXPIRED, REJECTED, DELIVERY_LIMIT)
    ]
    rig.check_log()


def test_what_was_never_a_dead_letter_says_nothing() -> None:
    rig = Rig()
    client = declared(rig)
    client.publish("q", b"1")
    assert received(client, "q") == [()]


def test_a_message_that_goes_round_counts_how_often() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("work", dead_letter_key="wait")
    client.declare("wait", message_ttl_ms=1000, dead_letter_key="work")
    client.publish("work", b"1")
    client.consume("work")
    first_ms = rig.wall_ms
    for _ in range(3):
        client.settle("work", disposition=Disposition.REJECT)
        rig.pass_time(1000)
    (position,) = client.positions("work")
    assert client.in_hand["work", position].deaths == (
        Death("wait", EXPIRED, 3, first_ms + 1000, rig.wall_ms),
        Death("work", REJECTED, 3, first_ms, rig.wall_ms - 1000),
    )
    rig.check_log()


def test_a_dead_letter_says_it_after_a_restart_and_from_a_snapshot() -> None:
    rig = Rig()
    client = declared(rig)
    client.publish("q", b"1", ttl_ms=100)
    rig.pass_time(100)
    rig.check_log()
    died = (Death("q", EXPIRED, 1, rig.wall_ms, rig.wall_ms),)
    for in_blocks in (False, True):
        copy = SetState.from_items(SET, rig.state.items(in_blocks=in_blocks))
        assert state_hash(copy) == state_hash(rig.state)
        assert list(copy.queues.by_name["dead"].deaths.values()) == [died]
    rig = Rig(predecessor=rig, is_restarted=True)
    assert received(rig.client(), "dead") == [died]


def test_a_copy_in_a_transient_queue_says_it_as_well() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead", is_durable=False)
    client.declare("q", dead_letter_key="dead")
    client.publish("q", b"\x00\x53\x75\xa0\x01x", properties=b"\x00\x53\x70\x45")
    client.consume("q")
    client.settle("q", disposition=Disposition.REJECT)
    client.consume("dead")
    (message,) = [client.in_hand["dead", position] for position in client.positions("dead")]
    raw = join(message.properties, message.body, delivery_count=0, expires_ms=0, is_durable=True, now_ms=0)
    assert dict(decoded(raw).annotations or {})["x-last-death-reason"] == "rejected"
    rig.check_log()


def test_what_leaves_its_queue_takes_its_deaths_along() -> None:
    rig = Rig()
    client = declared(rig)
    client.publish("q", b"1", ttl_ms=100)
    rig.pass_time(100)
    client.consume("dead")
    client.settle("dead")
    assert rig.state.queues.by_name["dead"].deaths == {}
    rig.check_log()


@pytest.mark.parametrize("end", ["rolled back", "lost"])
def test_what_wears_out_says_so_whatever_has_failed(end: str) -> None:
    rig = Rig()
    client = declared(rig, delivery_count_max=1)
    client.publish("q", b"1")
    taker = rig.client(timeout_ms=1000)
    taker.consume("q")
    if end == "rolled back":
        key = taker.begin()
        taker.settle("q", transaction=key, sequence=1)
        taker.rollback(key)
    else:
        taker.lose_stream()
        rig.pass_time(1001)
        rig.pass_time(1)
    ((death,),) = received(client, "dead")
    assert (death.queue, death.reason, death.count) == ("q", DELIVERY_LIMIT, 1)
    rig.check_log()
