"""A real client that comes back while its session ends: what it still has is its own, or it hears that it is void."""

from lockstep.client import session_events as e
from lockstep.core.inputs import Tick
from tests.unit.services.primary.client_core import CoreClient
from tests.unit.services.primary.primary_rig import SET, Rig, take_turns
from tests.unit.services.primary.test_alone import SMALL

HELD = 12


def test_a_message_is_in_the_hands_of_one_consumer() -> None:
    """As those of two clients of one proxy."""
    rig = Rig(SMALL)
    other = rig.client()
    other.declare("q")
    other.publish("q", *[bytes([number]) for number in range(HELD)])
    client = CoreClient(rig, "real")
    for number in (1, 2):
        client.feed(e.StartConsuming(number, "q", 1))
        client.hear_all()
    client.core.grant(1, HELD)
    client.feed(e.Turn())
    client.hear_all()
    client.lose()
    rig.boottime_ms += rig.state.sessions.by_key[client.session].timeout_ms
    rig.feed(Tick(SET))
    assert rig.core.is_alone
    client.pass_time(100)
    client.write()
    take_turns(rig)
    client.core.grant(2, HELD)
    client.come_back()
    for _ in range(10):
        rig.pass_time(50)
        client.hear_all()
    hands: dict[int, int] = {}
    for event in client.heard_events:
        if isinstance(event, e.DeliveriesVoided):
            for position in event.positions:
                hands.pop(position, None)
        elif isinstance(event, e.Delivered):
            for message in event.messages:
                had = hands.setdefault(message.position, event.consumer)
                assert had == event.consumer, (
                    f"{message.position} is in the hands of {had} and {event.consumer}"
                )
