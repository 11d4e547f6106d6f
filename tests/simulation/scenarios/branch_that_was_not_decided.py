"""A branch that is in no list is not committed by the decision of others (T3).

Its worker was enlisted, and its client went on without it: what was decided is another list, with that branch's set or without,
or with that number in another set. The worker has its branch prepared all the same, before the decision or when only the outcome
is left. Nobody has counted its vote and nobody will, so it rolls back; the branch beside it, which is in the list, commits.
"""

from lockstep.core.branch_names import ParticipantName, branch_xid, generation_tag
from lockstep.core.decision_log import DecisionKeys, OutcomeEntry, Verdict
from lockstep.core.xid import Xid
from tests.simulation.staging.prepared_branch import (
    CLUSTER,
    GLOBAL_ID,
    decide,
    prepare,
    prepared_count,
    write_participants,
    xid_of_it,
)
from tests.simulation.staging.stage import A, Stage

LEFT_OUT, ELSEWHERE = "behind the list", "its number is another set's"
CASES = (
    f"{LEFT_OUT}, decided",
    f"{LEFT_OUT}, only the outcome is left",
    f"{ELSEWHERE}, decided",
    f"{ELSEWHERE}, only the outcome is left",
)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    first = xid_of_it(stage)
    prepare(stage, client, first)
    prepare(stage, stage.client("c2"), _sibling(first, 2 if case.startswith(LEFT_OUT) else 1))
    if case.endswith("decided"):
        write_participants(stage)
        decide(stage, Verdict.COMMIT)
    else:
        _leave_outcome(stage)
    stage.kill(A)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.serves(stage.map.primary)
    stage.run(8)
    stage.expect(prepared_count(stage) == 0, f"{case}: nobody waits")
    stage.expect(len(client.browse("a")) == 1, f"{case}: what was decided is there, and nothing else")
    stage.revive(A)
    stage.whole()


def _sibling(first: Xid, number: int) -> Xid:
    _, _, generation = first.branch_id.decode().partition(":")
    return branch_xid(GLOBAL_ID, number, generation_tag(generation))


def _leave_outcome(stage: Stage) -> None:
    """Of s1 and s2, by a coordinator that is gone; its clock is that of the broker which leads."""
    ended_ms = stage.world.brokers[stage.map.primary].clocks.now().wall_ms
    decided = ParticipantName("set:s1"), ParticipantName("set:s2")
    outcome = OutcomeEntry(Verdict.COMMIT, ended_ms=ended_ms, participants=decided)
    key = DecisionKeys(CLUSTER).outcome(GLOBAL_ID)
    stage.world.etcd.execute(lambda etcd: etcd.put(key, outcome.encode()))
