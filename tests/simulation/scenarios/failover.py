"""Qpid's failover test: a client goes on in transactions while one primary after the other dies under it (P1, P4, P6).

Each transaction moves one message from a to b. However often it has to begin again, and whatever was in doubt, in the end every
message has been moved once: none is left in a, none is twice in b.
"""

from lockstep.core.server_messages import OutcomeState
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import Stage

MESSAGES = 12


def play(stage: Stage) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    stage.done(client.publish("a", count=MESSAGES))
    moved = 0
    for attempt in range(4 * MESSAGES):
        if moved == MESSAGES:
            break
        if attempt % 3 == 0:
            victim = stage.map.primary
            stage.world.brokers[victim].fuse = 3 + 2 * attempt
            stage.world.loop.after(2_000_000, stage.revive, victim)
        moved += _move_one(stage, client)
    stage.whole()
    stage.expect(moved == MESSAGES, f"all messages are moved, not {moved}")
    stage.expect(reader.browse("a") == [] and len(reader.browse("b")) == MESSAGES, "each message once, in b")


def _move_one(stage: Stage, client: ScriptedClient) -> int:
    taken = client.take("a")
    key = client.begin()
    stage.done(client.settle("a", taken, key))
    stage.done(client.publish("b", key))
    commit = stage.done(client.commit(key))
    if commit.is_in_doubt:
        return int(client.outcome(key, fence=True) == OutcomeState.COMMITTED)
    if not commit.is_ok:
        stage.run(0.1)
    return int(commit.is_ok)
