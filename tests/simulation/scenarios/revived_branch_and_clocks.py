"""A branch that comes back with accepted loss ends as its transaction did, whatever clocks say (T3, T5; R7, history 26).

A branch is prepared, its transaction is committed everywhere, and what is left in etcd is the outcome. Then the disks that have
the branch's commit are lost, and an operator takes C, whose log ends behind the prepare. The branch is prepared again there, and
the outcome says COMMIT: the other sets have committed, so it commits. Where the primary's clock was wrong when it was prepared,
or the coordinator's when it had ended, it looks like work that was repeated behind the end. But it may be the very vote that
was counted, as it is here: it waits, and an operator, who was asked already for what is lost, ends it.
"""

from lockstep.core.commands import (
    CommitBranchCommand,
    EndHeuristicallyCommand,
    ForgetBranchCommand,
    SelectDtxCommand,
)
from lockstep.core.decision_log import DecisionKeys, OutcomeEntry, Verdict
from tests.simulation.options import Options
from tests.simulation.staging.prepared_branch import CLUSTER, GLOBAL_ID, prepare, prepared_count, xid_of_it
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("clocks agree", "the primary's is ahead", "the coordinator's is behind")


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    clocks = stage.world.clocks[stage.world.host_of(A)]
    if case == "the primary's is ahead":
        clocks.wall_offset_ms += 3_600_000
    xid = xid_of_it(stage)
    prepare(stage, client, xid)
    stage.run(0.2)
    end = stage.log_end(C)
    stage.kill(C)
    stage.until(lambda: stage.in_sync == {A, B})
    if case == "the primary's is ahead":
        clocks.wall_offset_ms -= 3_600_000
    committed = client.session.submit(CommitBranchCommand(0, xid.encode()))
    stage.expect(stage.done(committed).is_ok, "it is committed")
    ended_ms = clocks.now().wall_ms - (3_600_000 if case == "the coordinator's is behind" else 0)
    key = DecisionKeys(CLUSTER).outcome(GLOBAL_ID)
    outcome = OutcomeEntry(Verdict.COMMIT, ended_ms=ended_ms)
    stage.world.etcd.execute(lambda etcd: etcd.put(key, outcome.encode()))
    stage.power_loss(A, B)
    stage.world.lose_disk(A)
    stage.world.lose_disk(B)
    stage.run(5)
    stage.revive(C)
    stage.until(lambda: not stage.replica(C).obstacle_to_accepted_loss, what="C's disk")
    stage.accept_loss(C, end, committed)
    stage.serves(C)
    stage.run(0.5)
    stage.run(15)
    waits = case != "clocks agree"
    stage.expect(
        prepared_count(stage) == int(waits), f"{case}: {prepared_count(stage)} branches are prepared"
    )
    operator = stage.client("c2")
    if waits:
        stage.done(operator.session.submit(SelectDtxCommand(0)))
        ended = stage.done(operator.session.submit(EndHeuristicallyCommand(0, xid.encode(), True)))
        stage.expect(ended.is_ok, "an operator can commit it")
        stage.done(operator.session.submit(ForgetBranchCommand(0, xid.encode())))
    stage.expect(len(operator.browse("a")) == 1, f"{case}: it is committed, as its transaction was")
