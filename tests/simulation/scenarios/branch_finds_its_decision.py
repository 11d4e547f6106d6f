"""A prepared branch looks for its decision by itself (T3, T4; histories 6 and 26).

Its coordinator is gone. What the log has decided is done, also after a failover; while it is undecided the branch waits. Where
nothing is left it presumes abort, in the generation in which its transaction was begun and in no other; and a vote that it gives
while it reads voids what it has read.
"""

from lockstep.core.branch_names import GLOBAL_ID_BYTES, GlobalId, ParticipantName, branch_xid, generation_tag
from lockstep.core.cluster_map import Keys
from lockstep.core.commands import (
    EndCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    StartCommand,
)
from lockstep.core.decision_log import DecisionKeys, ParticipantsEntry, Verdict
from lockstep.core.effects import AskDecision
from lockstep.core.ids import Incarnation
from lockstep.core.xid import Xid
from tests.simulation.loop import MS
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, B, Stage

CASES = ("commit", "abort", "undecided", "nothing left", "another generation", "overtaken by a vote")
GLOBAL_ID = GlobalId(bytes(range(GLOBAL_ID_BYTES)))
CLUSTER = "sim"


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    xid = _xid(stage)
    _prepare(stage, client, xid)
    if case in ("commit", "abort", "undecided"):
        _write_participants(stage)
    if case in ("commit", "abort"):
        _decide(stage, Verdict(case))
    if case == "another generation":
        stage.world.etcd.execute(lambda etcd: etcd.put(Keys(CLUSTER).generation, b"another-generation"))
    if case == "overtaken by a vote":
        _vote_while_it_reads(stage, client, xid)
    stage.run(3)
    stage.expect(_prepared(stage) == 1, "it gives its coordinator time")
    stage.kill(A)
    stage.serves(B)
    stage.run(8)
    waits = case in ("undecided", "another generation", "overtaken by a vote")
    stage.expect(_prepared(stage) == int(waits), f"{case}: prepared branches")
    stage.expect(len(client.browse("a")) == int(case == "commit"), f"{case}: messages")
    if waits:
        stage.done(client.session.submit(RollbackBranchCommand(0, xid.encode())))
    stage.revive(A)
    stage.whole()


def _xid(stage: Stage) -> Xid:
    return branch_xid(GLOBAL_ID, 0, generation_tag(_generation(stage)))


def _prepare(stage: Stage, client: ScriptedClient, xid: Xid) -> None:
    session, name = client.session, xid.encode()
    stage.done(session.submit(SelectDtxCommand(0)))
    started = stage.done(session.submit(StartCommand(0, name)))
    assert started.transaction is not None
    stage.done(client.publish("a", started.transaction))
    stage.done(session.submit(EndCommand(0, name, 0)))
    stage.done(session.submit(PrepareBranchCommand(0, name)))


def _write_participants(stage: Stage) -> None:
    entry = ParticipantsEntry(
        (ParticipantName("set:s1"), ParticipantName("set:s2")),
        generation_tag(_generation(stage)),
        Incarnation("gone"),
        0,
    )
    key = DecisionKeys(CLUSTER).participants(GLOBAL_ID)
    stage.world.etcd.execute(lambda etcd: etcd.put(key, entry.encode()))


def _decide(stage: Stage, verdict: Verdict) -> None:
    key = DecisionKeys(CLUSTER).decision(GLOBAL_ID)
    stage.world.etcd.execute(lambda etcd: etcd.put(key, verdict.encode()))


def _generation(stage: Stage) -> str:
    entry = stage.world.etcd.get(Keys(CLUSTER).generation)
    assert entry is not None
    return entry.value.decode()


def _vote_while_it_reads(stage: Stage, client: ScriptedClient, xid: Xid) -> None:
    """When B has asked, a coordinator that has just begun writes its list and has it vote again, before B hears the answer."""
    loop = stage.world.loop

    def vote() -> None:
        stage.hold("etcd", B)
        loop.after(10 * MS, _write_participants, stage)
        loop.after(20 * MS, lambda: client.session.submit(PrepareBranchCommand(0, xid.encode())))
        loop.after(100 * MS, stage.let_go, "etcd", B)

    stage.when(lambda process, effect: process.broker == B and isinstance(effect, AskDecision), vote)


def _prepared(stage: Stage) -> int:
    core = stage.primary_core(stage.map.primary)
    return len(core.context.state.transactions.prepared()) if core is not None else -1
