"""A command that is not done at once, and that primaries die over when its turn comes: it is found as any other is (P7)."""

import pytest

from lockstep.client import session_events as e
from lockstep.core.commands import DeclareQueueCommand, QueueOptions
from lockstep.core.errors import ErrorCode
from tests.unit.services.primary.client_core import CoreClient
from tests.unit.services.primary.primary_rig import Rig, publish

STEP_MS = 50
REIGNS_MAX = 8


def refused(client: CoreClient) -> list[object]:
    return [
        event.ticket
        for event in client.heard_events
        if isinstance(event, e.CommandRejected) and event.code is ErrorCode.POISON
    ]


def done(client: CoreClient) -> set[object]:
    return {event.ticket for event in client.heard_events if isinstance(event, e.CommandDone)}


@pytest.mark.parametrize("claim_ms", [50, 100, 150, 200, 1000])
def test_a_declaration_that_primaries_die_over_behind_its_claim_is_refused_and_what_is_behind_it_is_done(
    claim_ms: int,
) -> None:
    """`claim_ms`: what the cluster's directory takes to answer; heartbeats are answered meanwhile."""
    rig = Rig(holds_claims=True)
    client = CoreClient(rig, "c")
    client.submit("q", DeclareQueueCommand(0, "q", QueueOptions()))
    client.write()
    rig.claimed()
    client.hear_all()
    client.submit("poison", DeclareQueueCommand(0, "poison", QueueOptions()))
    for text in ("a", "b"):
        client.submit(text, publish("q", text.encode()))
    reigns = waited_ms = 0
    while reigns < REIGNS_MAX and not {"a", "b"} <= done(client) | set(refused(client)):
        client.hear_all()
        client.pass_time(STEP_MS)
        client.rig.pass_time(STEP_MS)
        waited_ms = waited_ms + STEP_MS if client.rig.claims else 0
        if waited_ms >= claim_ms:
            reigns, waited_ms = reigns + 1, 0
            client.turn_to(Rig(holds_claims=True, predecessor=client.rig))
    assert (refused(client), done(client) - {"q"}, reigns) == (["poison"], {"a", "b"}, 3)
