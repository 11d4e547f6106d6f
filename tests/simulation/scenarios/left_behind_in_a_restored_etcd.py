"""A coordinator that was cut off comes back to a restored etcd, with what it had in hand (R1, T3, history 26).

It had its list in the log, or all votes in its hands (and fell asleep so), or only knew of the transaction, which is open for
too long by now. Then another coordinator has decided, COMMIT where the client had asked that one, or ABORT, and one branch has
ended so; the other one is prepared. Then everybody but the first coordinator died, and etcd came back from a backup without
the decision. Two disks had slept through that; the third one, which remembers a stamp that this etcd lacks, comes late. The
coordinator has seen nothing that this etcd lacks, and the list is its own, or there is none. It would decide the other way:
the time for votes is over, or that for work, or it has the votes. But so late it calls the roll first, and a witness does not
answer.
"""

from dataclasses import replace

from lockstep.core.branch_names import GenerationTag, GlobalId, ParticipantName, branch_xid
from lockstep.core.commands import CommitBranchCommand, RollbackBranchCommand
from lockstep.core.decision_log import DecisionKeys, ParticipantsEntry, Verdict
from lockstep.core.ids import Incarnation
from lockstep.core.xid import Xid
from services.coordinator.core.messages import CommitAsked, EnlistAsked, RequestId
from tests.simulation.coordinated import LIMITS
from tests.simulation.coordinator_calls import BeginCall, Begun, call
from tests.simulation.loop import SECOND
from tests.simulation.options import CoordinationOptions, Options
from tests.simulation.staging.prepared_branch import (
    CLUSTER,
    asleep_when_it_decides,
    cut_off_when_it_decides,
    prepare,
    prepared_count,
)
from tests.simulation.staging.restored_etcd import rebuild_with_c, restore_behind_all
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, B, C, Stage, calm

IT_ASKED_FOR_VOTES, IT_KNEW_OF_IT = "it had asked for votes", "it only knew of it"
IT_HAD_ALL_VOTES, IT_SLEPT_THEN = "it had all votes", "it had all votes, and slept"
CASES = (IT_ASKED_FOR_VOTES, IT_HAD_ALL_VOTES, IT_SLEPT_THEN, IT_KNEW_OF_IT, "nothing was lost")
SLEPT_S = 25
PARTICIPANTS = (ParticipantName("set:s1"), ParticipantName("set:s1"))


def options() -> Options:
    limits = replace(LIMITS, open_ms_max=60_000, outcome_ms=90_000)
    return calm(coordination=CoordinationOptions(1, 0, 0, 60_000, 5_000, limits))


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    world.coordinators.start("k1")
    stage.run(1)
    begun = _begin(stage, client)
    global_id, keys = begun.global_id, DecisionKeys(CLUSTER)
    ended, prepared = (branch_xid(global_id, number, begun.generation) for number in range(2))
    world.etcd.detain = lambda each: "ask_decision" in each.operation.__qualname__
    prepare(stage, client, ended)
    prepare(stage, client, prepared)
    if case != IT_KNEW_OF_IT:
        _stop_before_it_decides(stage, case)
        asked = CommitAsked(RequestId(0), global_id, begun.generation, PARTICIPANTS)
        call(client.client, "k1", asked, 60 * SECOND)
        stage.until(lambda: world.etcd.get(keys.participants(global_id)) is not None, what="its list")
        stage.run(0.1)
    old = world.etcd.backup()
    if case not in (IT_HAD_ALL_VOTES, IT_SLEPT_THEN):
        stage.cut("k1", "etcd")
    if case == "nothing was lost":
        stage.run(LIMITS.prepare_ms / 1000 + 4)
        stage.mend("k1", A, B, C, "etcd")
        world.etcd.detain = None
        stage.until(lambda: prepared_count(stage) == 0, 30, "it is aborted")
        stage.whole()
        return
    verdict = Verdict.ABORT if case in (IT_HAD_ALL_VOTES, IT_SLEPT_THEN) else Verdict.COMMIT
    _decide_elsewhere(stage, global_id, begun.generation, verdict)
    stage.done(client.session.submit(_end(verdict, ended)))
    # Longer than an etcd is away that comes back with all that it had decided.
    stage.run(LIMITS.unasked_ms / 1000)
    restore_behind_all(stage, old)
    stage.until(lambda: stage.epoch == 2, what="s1 led by who knows nothing of it")
    stage.mend("k1", "etcd", A, B, C)
    stage.run(20)
    stage.expect(world.etcd.get(keys.decision(global_id)) is None, "nobody decides it once more")
    stage.expect(prepared_count(stage) == 1, "the branch waits")
    rebuild_with_c(stage)
    stage.done(client.session.submit(_end(verdict, prepared)))
    whole = 2 if verdict is Verdict.COMMIT else 0
    stage.expect(len(client.browse("a")) == whole, "all of it has ended alike")
    world.etcd.execute(lambda etcd: etcd.delete(keys.participants(global_id)))


def _begin(stage: Stage, client: ScriptedClient) -> Begun:
    """At the coordinator, which knows of both participants from then on."""
    beginning = call(client.client, "k1", BeginCall(0), 10 * SECOND)
    stage.until(lambda: beginning.is_done, what="a begin")
    begun = beginning.value
    assert isinstance(begun, Begun)
    for number, participant in enumerate(PARTICIPANTS):
        enlist = EnlistAsked(RequestId(0), begun.global_id, begun.generation, number, participant)
        enlisting = call(client.client, "k1", enlist, 10 * SECOND)
        stage.until(lambda enlisting=enlisting: enlisting.is_done, what="an enlistment")  # type: ignore[misc]
    return begun


def _stop_before_it_decides(stage: Stage, case: str) -> None:
    """It does not reach the brokers, or etcd no more when it has all votes."""
    if case == IT_HAD_ALL_VOTES:
        cut_off_when_it_decides(stage)
    elif case == IT_SLEPT_THEN:
        asleep_when_it_decides(stage, SLEPT_S)
    else:
        stage.cut("k1", A, B, C)


def _end(verdict: Verdict, branch: Xid) -> CommitBranchCommand | RollbackBranchCommand:
    name = branch.encode()
    return CommitBranchCommand(0, name) if verdict is Verdict.COMMIT else RollbackBranchCommand(0, name)


def _decide_elsewhere(stage: Stage, global_id: GlobalId, tag: GenerationTag, verdict: Verdict) -> None:
    """By a coordinator that is gone."""
    keys, etcd = DecisionKeys(CLUSTER), stage.world.etcd
    if etcd.get(keys.participants(global_id)) is None:
        entry = ParticipantsEntry(PARTICIPANTS, tag, Incarnation("gone"), 0)
        etcd.execute(lambda each: each.put(keys.participants(global_id), entry.encode()))
    etcd.execute(lambda each: each.put(keys.decision(global_id), verdict.encode()))
