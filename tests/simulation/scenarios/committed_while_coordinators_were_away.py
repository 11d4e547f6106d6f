"""All coordinators are away while a set would forget a branch that it has committed, and one takes its transaction up (T4, T5).

COMMIT is decided over two sets, and the only coordinator tells it to the first one and dies, with the answer or before it. No
other one comes for so long that many transactions end there behind that branch, and their outcomes are forgotten; a failover or
a full restart may come between. The log has the transaction, and says of nobody that he has committed: so the set keeps the
outcome of this one. Whoever takes the transaction up finds no hazard; then the set forgets it, too.
"""

from tests.simulation.coordinated import LIMITS
from tests.simulation.options import CoordinationOptions, Options
from tests.simulation.staging.prepared_branch import (
    committed_without_hazard,
    is_known,
    leader_of_second_set,
    only_the_first_set_commits,
)
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("the same primary", "failover", "full restart")


def options() -> Options:
    return calm(sets=2, coordination=CoordinationOptions(1, 0, 0, 60_000, 5_000, LIMITS), outcomes_max=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    xid = only_the_first_set_commits(stage, client)
    world.coordinators.crash("k1", "killed")
    stage.mend("k1", leader_of_second_set(stage))
    _others_commit(stage, client)
    if case == "failover":
        stage.kill(A)
        stage.until(lambda: stage.epoch == 2, what="a successor")
        stage.serves(stage.map.primary)
        stage.revive(A)
        stage.whole()
    elif case == "full restart":
        stage.power_loss(A, B, C)
        stage.revive(A, B, C)
        stage.whole(60)
    others = stage.client("c3")
    _others_commit(stage, others)
    stage.expect(is_known(stage, xid), "its outcome is kept")
    stage.expect(_kept_count(stage) < 4, "others are forgotten")
    world.coordinators.start("k1")
    committed_without_hazard(stage)
    stage.expect(len(others.browse("a")) == 1, "it has committed")
    _others_commit(stage, others)
    stage.expect(not is_known(stage, xid), "nobody asks any more, and it is forgotten")
    stage.whole()


def _others_commit(stage: Stage, client: ScriptedClient) -> None:
    for _ in range(5):
        stage.done(client.commit(client.begin()))
        stage.run(1)


def _kept_count(stage: Stage) -> int:
    core = stage.primary_core(stage.map.primary)
    assert core is not None
    return len(core.context.state.outcomes)
