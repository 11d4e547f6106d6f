"""A set has forgotten a branch that it committed, when another coordinator takes its transaction up (T4, T5).

COMMIT is decided over two sets. The first one commits, and the coordinator does not reach the second one for so long that the
outcome of the first branch is forgotten: there were too many others. Then that coordinator dies, and another one takes the
transaction up. It must not report a hazard, which operators would have to look at: all of it has committed.
So the first one has put into the log who had acknowledged, while the other one was away.
"""

from dataclasses import replace

from tests.simulation.coordinated import LIMITS
from tests.simulation.options import CoordinationOptions, Options
from tests.simulation.staging.prepared_branch import (
    committed_without_hazard,
    leader_of_second_set,
    only_the_first_set_commits,
)
from tests.simulation.staging.stage import Stage, calm


def options() -> Options:
    limits = replace(LIMITS, keep_ms=1_000)
    coordination = CoordinationOptions(2, 0, 0, 60_000, 5_000, limits)
    return calm(sets=2, coordination=coordination, outcomes_max=1)


def play(stage: Stage) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    xid = only_the_first_set_commits(stage, client)
    for _ in range(3):
        stage.done(client.commit(client.begin()))
        stage.run(1)
    core = stage.primary_core(stage.map.primary)
    assert core is not None
    stage.expect(core.context.state.outcomes.find_xid(xid.encode()) is None, "its outcome is forgotten")
    world.coordinators.crash("k1", "killed")
    world.coordinators.start("k2")
    committed_without_hazard(stage)
    stage.expect(len(client.browse("a")) == 1, "it has committed")
    stage.mend("k1", leader_of_second_set(stage))
    stage.whole()
