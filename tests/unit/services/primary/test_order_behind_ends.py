"""What a session that ends in pieces gives back is delivered before what lies behind all of it."""

import pytest

from lockstep.core.inputs import Tick
from lockstep.core.requests import DetachSession
from lockstep.core.server_messages import Deliveries
from tests.unit.services.primary.primary_rig import SET, Rig, take_turns
from tests.unit.services.primary.test_alone import SMALL

HELD, BEHIND = 12, 4


@pytest.mark.parametrize("is_lost", [True, False])
def test_nothing_overtakes_what_the_next_piece_gives_back(is_lost: bool) -> None:
    rig = Rig(SMALL)
    first, second, publisher = rig.client(timeout_ms=1000), rig.client(), rig.client()
    publisher.declare("q")
    publisher.publish("q", *[bytes([number]) for number in range(HELD)])
    first.consume("q", credit=HELD)
    publisher.publish("q", *[bytes([number]) for number in range(HELD, HELD + BEHIND)])
    if is_lost:
        first.lose_stream()
        rig.boottime_ms += 1000
        rig.feed(Tick(SET))
    else:
        first.say(DetachSession())
    assert rig.core.is_alone
    second.consume("q", credit=HELD + BEHIND)
    take_turns(rig)
    for _ in range(10):
        rig.pass_time(50)
    bodies = [message.body[0] for told in second.heard_of(Deliveries) for message in told.messages]
    assert bodies == list(range(HELD + BEHIND))
