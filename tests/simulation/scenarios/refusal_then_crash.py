"""A backup refuses an open transaction, and the primary crashes at each step from there on (P2, DESIGN 3).

B's store has touched its reserve: B votes no on the transaction that brings content. The client commits at the same time. The
primary crashes in the place of its k-th effect after the refusal reached it. A refused transaction is committed on no broker.
"""

from lockstep.core.server_messages import OutcomeState
from tests.simulation.staging.refusals import refuse
from tests.simulation.staging.stage import A, B, Stage

STEPS = 14
CASES = tuple(range(1, STEPS + 1))


def play(stage: Stage, case: int) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    victim = stage.world.brokers[A]
    victim.fuse = case
    refuse(stage, B, key)
    commit = client.commit(key)
    stage.until(lambda: commit.is_done)
    if case == STEPS:
        stage.expect(victim.is_alive, f"{STEPS} steps reach beyond the answer")
    stage.expect(reader.outcome(key) == OutcomeState.ROLLED_BACK, "what was refused is rolled back")
    stage.expect(reader.browse("a") == reader.browse("b") == [], "nothing of it")
