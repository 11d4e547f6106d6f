"""A prepared branch looks for its decision by itself (T3, T4; histories 6 and 26).

Its coordinator is gone. What the log has decided is done, also after a failover; while it is undecided the branch waits. Where
nothing is left it presumes abort, in the generation in which its transaction was begun and in no other; and a vote that it gives
while it reads voids what it has read.
"""

from lockstep.core.cluster_map import Keys
from lockstep.core.commands import PrepareBranchCommand, RollbackBranchCommand
from lockstep.core.decision_log import Verdict
from lockstep.core.effects import AskDecision
from lockstep.core.xid import Xid
from tests.simulation.loop import MS
from tests.simulation.staging.prepared_branch import (
    CLUSTER,
    decide,
    prepare,
    prepared_count,
    write_participants,
    xid_of_it,
)
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, Stage

CASES = ("commit", "abort", "undecided", "nothing left", "another generation", "overtaken by a vote")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    xid = xid_of_it(stage)
    prepare(stage, client, xid)
    if case in ("commit", "abort", "undecided"):
        write_participants(stage)
    if case in ("commit", "abort"):
        decide(stage, Verdict(case))
    if case == "another generation":
        stage.world.etcd.execute(lambda etcd: etcd.put(Keys(CLUSTER).generation, b"another-generation"))
    if case == "overtaken by a vote":
        _vote_while_it_reads(stage, client, xid)
    stage.run(3)
    stage.expect(prepared_count(stage) == 1, "it gives its coordinator time")
    stage.kill(A)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.serves(stage.map.primary)
    if case == "overtaken by a vote":
        # It is believed at once, whatever it reads.
        stage.world.brokers[stage.map.primary].etcd.call_the_roll()
    stage.run(8)
    waits = case in ("undecided", "another generation", "overtaken by a vote")
    stage.expect(prepared_count(stage) == int(waits), f"{case}: prepared branches")
    stage.expect(len(client.browse("a")) == int(case == "commit"), f"{case}: messages")
    if waits:
        stage.done(client.session.submit(RollbackBranchCommand(0, xid.encode())))
    stage.revive(A)
    stage.whole()


def _vote_while_it_reads(stage: Stage, client: ScriptedClient, xid: Xid) -> None:
    """When A's successor has asked, a coordinator that has just begun writes its list and has it vote again, before the answer
    is heard."""
    loop = stage.world.loop

    def vote() -> None:
        successor = stage.map.primary
        stage.hold("etcd", successor)
        loop.after(10 * MS, write_participants, stage)
        loop.after(20 * MS, lambda: client.session.submit(PrepareBranchCommand(0, xid.encode())))
        loop.after(100 * MS, stage.let_go, "etcd", successor)

    stage.when(lambda process, effect: process.broker != A and isinstance(effect, AskDecision), vote)
