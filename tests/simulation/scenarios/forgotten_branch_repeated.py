"""A branch that has committed is repeated when its outcome is forgotten, and the decision log still says COMMIT (T3, T5).

The transaction's other participant is away, so its decision stays, and says that this branch has committed. The set has forgotten
the branch: its time was over, there were too many others, or an operator had ended it and had that forgotten. A worker that never
heard how its branch ended does its work again, under the same name. Nobody may begin it then, at this primary, its successor, or
behind a restart of all; another transaction, which begins now, is as welcome as ever.
"""

from lockstep.core.branch_names import RANDOM_BYTES, branch_xid, generation_tag, new_global_id
from lockstep.core.commands import (
    CommitBranchCommand,
    EndHeuristicallyCommand,
    ForgetBranchCommand,
)
from lockstep.core.decision_log import Verdict
from lockstep.core.xid import Xid
from tests.simulation.options import Options
from tests.simulation.staging.prepared_branch import (
    decide,
    is_known,
    prepare,
    prepare_if_begun,
    prepared_count,
    write_participants,
    xid_of_it,
)
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("retention", "too many", "ended by an operator", "failover", "full restart")
RETENTION_MS = 5_000


def options_of(case: object) -> Options:
    return calm(outcomes_max=1) if case == "too many" else calm(outcome_retention_ms=RETENTION_MS)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    xid = xid_of_it(stage)
    prepare(stage, client, xid)
    write_participants(stage)
    decide(stage, Verdict.COMMIT)
    if case == "ended by an operator":
        stage.done(client.session.submit(EndHeuristicallyCommand(0, xid.encode(), True)))
    else:
        stage.done(client.session.submit(CommitBranchCommand(0, xid.encode())))
    write_participants(stage, committed=(0,))
    _others_commit(stage, client)
    if case == "ended by an operator":
        stage.expect(is_known(stage, xid), "an operator's end is kept")
        stage.done(client.session.submit(ForgetBranchCommand(0, xid.encode())))
    stage.expect(not is_known(stage, xid), "its outcome is forgotten")
    if case == "failover":
        stage.kill(A)
        stage.until(lambda: stage.epoch == 2, what="a successor")
        stage.serves(stage.map.primary)
        stage.revive(A)
    elif case == "full restart":
        stage.power_loss(A, B, C)
        stage.revive(A, B, C)
        stage.whole(60)
    again = stage.client("c2")
    prepare_if_begun(stage, again, xid)
    # As long as a prepared branch needs to look for its decision.
    stage.run(12)
    stage.expect(prepared_count(stage) == 0, "no branch waits for anything")
    stage.expect(len(again.browse("a")) == 1, "what has committed is there once")
    fresh = _begun_now(stage, xid)
    prepare(stage, stage.client("c3"), fresh)
    stage.done(again.session.submit(CommitBranchCommand(0, fresh.encode())))
    stage.expect(len(again.browse("a")) == 2, "another transaction goes on as ever")
    stage.whole()


def _others_commit(stage: Stage, client: ScriptedClient) -> None:
    """So many, and for so long, that what ended before them is forgotten."""
    for _ in range(2 * RETENTION_MS // 1000):
        stage.done(client.commit(client.begin()))
        stage.run(1)


def _begun_now(stage: Stage, like: Xid) -> Xid:
    """A branch of another transaction of our coordinator, of the same generation."""
    now_ms = stage.world.brokers[stage.map.primary].clocks.now().wall_ms
    _, _, generation = like.branch_id.decode().partition(":")
    return branch_xid(new_global_id(now_ms, bytes(RANDOM_BYTES)), 0, generation_tag(generation))
