"""Data loss is accepted in one of three sets while their commit is under way, and the coordinator dies at any step (T3, T4; R7).

The disks that have the third set's branch are lost, and an operator gives up what they had: so the cluster has another
generation. Before that the coordinator dies, and another one takes up what it has left, or it lives and goes on with its votes in
hand. Decided before the loss, it is committed in the two others, and a hazard is reported: its client never hears that it was
rolled back, nor that it was committed without the hazard. Undecided then, nobody commits it any more: one of the votes is gone.
An operator ends what is prepared.
"""

from dataclasses import replace

from lockstep.core.branch_names import (
    RANDOM_BYTES,
    GenerationTag,
    GlobalId,
    ParticipantName,
    branch_xid,
    generation_tag,
    new_global_id,
)
from lockstep.core.commands import EndCommand, RollbackBranchCommand, SelectDtxCommand, StartCommand
from lockstep.core.decision_log import DecisionKeys
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.transaction_states import TransactionState
from lockstep.core.xa import XaStatus
from services.coordinator.core.messages import (
    CommitAsked,
    OutcomeAnswer,
    OutcomeAsked,
    RequestId,
    State,
)
from services.coordinator.core.steps import Step
from tests.simulation.client import Client
from tests.simulation.coordinated import LIMITS
from tests.simulation.coordinator_calls import Call, call
from tests.simulation.loop import SECOND
from tests.simulation.options import CoordinationOptions, Options
from tests.simulation.staging.prepared_branch import CLUSTER, cut_off_when_it_decides
from tests.simulation.staging.stage import A, B, C, Stage, calm

SETS = SetName("s1"), SetName("s2"), SetName("s3")
LOST = SETS[2]
PARTICIPANTS = tuple(ParticipantName(f"set:{name}") for name in SETS)
WITH_ALL_VOTES = "lives, with all votes in its hands"
UNDECIDED = (
    Step.COMMIT_ASKED.value,
    Step.PARTICIPANTS_WRITTEN.value,
    Step.VOTE_RECEIVED.value,
    Step.VOTES_COMPLETE.value,
    WITH_ALL_VOTES,
)
CASES = (*UNDECIDED, Step.DECISION_WRITTEN.value)


def options() -> Options:
    limits = replace(LIMITS, open_ms_max=60_000, outcome_ms=90_000)
    return calm(sets=3, min_in_sync=1, coordination=CoordinationOptions(1, 0, 0, 60_000, 5_000, limits))


def play(stage: Stage, case: str) -> None:
    stage.start()
    world = stage.world
    stage.client("c1").declare("a")
    stage.kill(B)
    stage.until(lambda: all(entry.member(B) is None for entry in world.set_maps()), what="B out of all sets")
    stage.run(3)
    keys, tag = DecisionKeys(CLUSTER), _generation(stage)
    global_id = new_global_id(world.brokers[A].clocks.now().wall_ms, bytes(RANDOM_BYTES))
    worker = Client(world, "c2", list(SETS))
    world.clients.append(worker)
    for number, set_name in enumerate(SETS):
        name = branch_xid(global_id, number, tag).encode()
        for command in (SelectDtxCommand(0), StartCommand(0, name), EndCommand(0, name, 0)):
            stage.done(worker.sessions[set_name].submit(command))
    _stop_at(stage, case)
    commit = CommitAsked(RequestId(0), global_id, tag, PARTICIPANTS)
    call(worker, "k1", commit, 60 * SECOND)
    stage.until(lambda: _has_stopped(stage, case), what=f"the coordinator stopped: {case}")
    _lose(stage)
    if case == WITH_ALL_VOTES:
        stage.mend("k1", "etcd")
    else:
        world.coordinators.start("k1")
    stage.run(12)
    asker = stage.client("c3").client
    told = [
        _told(stage, asker, OutcomeAsked(RequestId(0), global_id, is_fence=is_fence))
        for is_fence in (False, True)
    ]
    told.append(_told(stage, asker, commit))
    states = [
        _state(stage, set_name, branch_xid(global_id, number, tag).encode())
        for number, set_name in enumerate(SETS)
    ]
    if case in UNDECIDED:
        stage.expect(not any(one.state is State.COMMITTED for one in told), f"nobody commits it: {told}")
        is_prepared = case in (Step.VOTES_COMPLETE.value, WITH_ALL_VOTES)
        stage.expect(not is_prepared or states[:2] == [TransactionState.PREPARED] * 2, f"it waits: {states}")
        stage.expect(TransactionState.COMMITTED not in states, f"it is committed nowhere: {states}")
    else:
        stage.expect(
            states[:2] == [TransactionState.COMMITTED] * 2, f"it is committed where it can be: {states}"
        )
        for one in told:
            stage.expect(one.state is State.COMMITTED, f"it was decided: {one}")
            stage.expect(one.heuristic is not XaStatus.OK, f"with a hazard: {one}")
        stage.expect(len(world.coordinators.hazards) == 1, "operators hear of it")
        world.coordinators.hazards.clear()
    _end_what_is_left(stage, worker, global_id, tag)
    world.etcd.execute(lambda etcd: etcd.delete(keys.participants(global_id)))
    stage.whole(60)


def _generation(stage: Stage) -> GenerationTag:
    entry = stage.world.etcd.get(stage.world.keys.generation)
    assert entry is not None
    return generation_tag(entry.value.decode())


def _stop_at(stage: Stage, case: str) -> None:
    """The coordinator is about to crash at that step, or its decision does not reach etcd."""
    coordinators = stage.world.coordinators
    coordinators.start("k1")
    stage.run(1)
    if case != WITH_ALL_VOTES:
        coordinators.running["k1"].step_fuse = Step(case)
        coordinators.crash_at_step = lambda place: coordinators.crash(place, "at a step")  # type: ignore[method-assign]
        return
    cut_off_when_it_decides(stage)


def _has_stopped(stage: Stage, case: str) -> bool:
    coordinators = stage.world.coordinators
    if case == WITH_ALL_VOTES:
        return coordinators.before_effect is None
    return not coordinators.alive()


def _lose(stage: Stage) -> None:
    """The disks of A and C are damaged where they have the third set, which is given up on B's."""
    stage.power_loss(A, C)
    for broker in (A, C):
        stage.world.disks[broker].flip_bit(LOST, 1, 100, 3)
    stage.revive(A, B, C)
    stage.run(5)
    end = LogIndex(stage.world.brokers[B].replicas[LOST].log_end)
    stage.accept_loss(B, end, set_name=LOST)
    stage.until(lambda: stage.world.set_maps()[2].primary == B, what="the third set is led by B")
    stage.until(lambda: all(entry.primary for entry in stage.world.set_maps()), what="all sets are led")


def _told(stage: Stage, client: Client, message: Call) -> OutcomeAnswer:
    asking = call(client, "k1", message, 30 * SECOND)
    stage.until(lambda: asking.is_done, 40, "an answer")
    assert isinstance(asking.value, OutcomeAnswer), asking.value
    return asking.value


def _state(stage: Stage, set_name: SetName, xid: bytes) -> TransactionState | None:
    for process in stage.world.brokers.values():
        replica = process.replicas[set_name]
        if process.is_alive and replica.primary is not None:
            state = replica.primary.context.state
            branch, ended = state.transactions.find_branch(xid), state.outcomes.find_xid(xid)
            if branch is not None:
                return branch.state
            return ended[1].state if ended is not None else None
    return None


def _end_what_is_left(stage: Stage, worker: Client, global_id: GlobalId, tag: GenerationTag) -> None:
    """By an operator, who has looked at all of it."""
    for number, set_name in enumerate(SETS):
        name = branch_xid(global_id, number, tag).encode()
        stage.done(worker.sessions[set_name].submit(RollbackBranchCommand(0, name)))
