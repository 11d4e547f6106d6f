"""A coordinator finds in a restored etcd what another had left undecided, and what was decided since (R1, T3, history 26).

It was COMMIT, and nobody has it any more. Two disks had slept through that; the third one, which remembers a stamp that this etcd
lacks, comes late. The coordinator would abort what it finds; but it calls the roll first, and a witness does not answer.
"""

from lockstep.core.commands import RollbackBranchCommand
from lockstep.core.decision_log import DecisionKeys, Verdict
from tests.simulation.coordinated import LIMITS
from tests.simulation.options import CoordinationOptions, Options
from tests.simulation.staging.prepared_branch import (
    CLUSTER,
    GLOBAL_ID,
    decide,
    forget_participants,
    prepare,
    prepared_count,
    write_participants,
    xid_of_it,
)
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.restored_etcd import restore_behind_all
from tests.simulation.staging.stage import C, Stage, calm

CASES = ("nothing was lost", "somebody comes late")


def options() -> Options:
    nobody_else = CoordinationOptions(1, 0, 0, 60_000, 5_000, LIMITS)
    return calm(sets=2, coordination=nobody_else)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    xid = xid_of_it(stage)
    prepare(stage, client, xid)
    stage.run(2)
    write_participants(stage)
    if case == "nothing was lost":
        world.coordinators.start("k1")
        stage.run(8)
        stage.expect(prepared_count(stage) == 0, "what its coordinator has left undecided is aborted")
        stage.whole()
        return
    old = world.etcd.backup()
    world.etcd.detain = lambda call: "ask_decision" in call.operation.__qualname__
    decide(stage, Verdict.COMMIT)
    restore_behind_all(stage, old)
    world.coordinators.start("k1")
    stage.until(lambda: stage.epoch == 2, what="s1 led by who knows nothing of it")
    stage.run(20)
    stage.expect(_is_undecided(stage), "nobody aborts what may be committed")
    stage.revive(C)
    stage.run(10)
    stage.expect(world.etcd.get(world.keys.set_back) is not None, "C has etcd say that it was set back")
    stage.expect(_is_undecided(stage), "nobody decides anything in such an etcd")
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.run(8)
    stage.expect(prepared_count(stage) == 1, "the branch waits for an operator")
    stage.done(client.session.submit(RollbackBranchCommand(0, xid.encode())))
    forget_participants(stage)


def _is_undecided(stage: Stage) -> bool:
    etcd, keys = stage.world.etcd, DecisionKeys(CLUSTER)
    is_listed = etcd.get(keys.participants(GLOBAL_ID)) is not None
    return is_listed and etcd.get(keys.decision(GLOBAL_ID)) is None
