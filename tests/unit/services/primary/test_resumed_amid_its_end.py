"""A client that comes back to a session that is amid its end: it has all that it has in hand, or hears otherwise."""

import pytest

from lockstep.core.inputs import Tick
from lockstep.core.server_messages import AttachRefused, SessionAttached
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, take_turns
from tests.unit.services.primary.test_alone import SMALL
from tests.unit.services.primary.test_handing_on import resume

HELD = 12


def take_all(rig: Rig, client: RigClient) -> None:
    """It has all messages of a queue in hand."""
    publisher = rig.client()
    publisher.declare("q")
    publisher.publish("q", *[bytes([number]) for number in range(HELD)])
    client.consume("q", credit=HELD)


def time_out(rig: Rig, client: RigClient) -> None:
    """Its session begins to end."""
    client.lose_stream()
    rig.boottime_ms += 1000
    rig.feed(Tick(SET))
    client.heard.clear()
    assert rig.core.is_alone


def come_back(client: RigClient) -> None:
    client.resume()
    take_turns(client.rig)
    assert any(isinstance(message, AttachRefused | SessionAttached) for message in client.heard)


@pytest.mark.parametrize("is_consuming", [False, True])
def test_what_is_in_hand_behind_a_resumption_is_held(is_consuming: bool) -> None:
    rig = Rig(SMALL)
    client = rig.client(timeout_ms=1000)
    take_all(rig, client)
    time_out(rig, client)
    come_back(client)
    if client.heard_of(AttachRefused):
        return
    if is_consuming:
        # The rig sees to it that nothing is delivered to whoever has it.
        client.consume("q", credit=HELD)
        rig.pass_time(50)
    queue = rig.state.queues.by_name["q"]
    held = rig.core.context.dispatch.held_by(client.session).get(queue.id, [])
    assert set(client.positions("q")) == set(held)


def test_what_one_consumer_of_a_session_has_in_hand_goes_to_no_other_one_of_it() -> None:
    """As of a proxy, whose session has the consumers of many clients."""
    rig = Rig(SMALL)
    worker = rig.client(timeout_ms=1000)
    take_all(rig, worker)
    first = dict(worker.in_hand)
    time_out(rig, worker)
    come_back(worker)
    if worker.heard_of(AttachRefused):
        return
    worker.in_hand = {}
    worker.consume("q", credit=HELD)
    rig.pass_time(50)
    assert not first.keys() & worker.in_hand.keys()


@pytest.mark.parametrize("exclusive", [3])
def test_a_session_that_goes_on_has_its_exclusive_queues(exclusive: int) -> None:
    rig = Rig(SMALL)
    client = rig.client(timeout_ms=1000)
    names = {f"q{number}" for number in range(exclusive)}
    for name in names:
        client.declare(name, is_exclusive=True)
    time_out(rig, client)
    come_back(client)
    if not client.heard_of(AttachRefused):
        assert names <= rig.state.queues.by_name.keys()


def test_a_session_that_is_handed_over_amid_its_end_holds_what_its_client_has() -> None:
    rig = Rig(SMALL)
    client = rig.client(timeout_ms=1000, outlives_hand_over=True)
    take_all(rig, client)
    time_out(rig, client)
    take_turns(rig)  # Nothing is handed over before.
    successor = rig.next_reign("hand-over")
    resume(successor, client)
    if client.heard_of(AttachRefused):
        return
    queue = successor.state.queues.by_name["q"]
    held = successor.core.context.dispatch.held_by(client.session).get(queue.id, [])
    assert set(client.positions("q")) == set(held)
