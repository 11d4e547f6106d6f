"""The only participant of a transaction has committed it, unheard, and has forgotten that since (T3, T5).

It was committed in one phase, without the log, by a coordinator that died with the answer. The set has ended so many others since
that this outcome had to go, within the minutes in which the transaction may still be ended. Now its client, which has heard of
nothing, rolls back, through another coordinator. The set finds nothing. But it knows that it has forgotten branches whose
transactions were begun no earlier, and says so; the client hears that nobody can tell, and not that it was rolled back. What was
begun behind those, and is not there, was rolled back.
"""

from lockstep.core.branch_names import (
    RANDOM_BYTES,
    ParticipantName,
    branch_xid,
    generation_tag,
    new_global_id,
)
from lockstep.core.commands import CommitBranchCommand, EndCommand, SelectDtxCommand, StartCommand
from services.coordinator.core.messages import OutcomeAnswer, RequestId, RollbackAsked, State
from tests.simulation.coordinated import LIMITS
from tests.simulation.coordinator_calls import call
from tests.simulation.loop import SECOND
from tests.simulation.options import CoordinationOptions, Options
from tests.simulation.staging.prepared_branch import is_known
from tests.simulation.staging.stage import A, Stage, calm

PARTICIPANTS = (ParticipantName("set:s1"),)


def options() -> Options:
    return calm(outcomes_max=1, coordination=CoordinationOptions(1, 0, 0, 60_000, 5_000, LIMITS))


def play(stage: Stage) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    world.coordinators.start("k1")
    stage.run(1)
    found = world.etcd.get(world.keys.generation)
    assert found is not None
    tag = generation_tag(found.value.decode())
    clocks = world.brokers[A].clocks
    global_id = new_global_id(clocks.now().wall_ms, bytes(RANDOM_BYTES))
    xid = branch_xid(global_id, 0, tag)
    session, name = client.session, xid.encode()
    stage.done(session.submit(SelectDtxCommand(0)))
    started = stage.done(session.submit(StartCommand(0, name)))
    assert started.transaction is not None
    stage.done(client.publish("a", started.transaction))
    stage.done(session.submit(EndCommand(0, name, 0)))
    stage.done(session.submit(CommitBranchCommand(0, name, True)))
    for _ in range(4):
        stage.done(client.commit(client.begin()))
        stage.run(1)
    stage.expect(not is_known(stage, xid), "its outcome is forgotten")
    later = new_global_id(clocks.now().wall_ms, bytes(RANDOM_BYTES))
    for asked, state in ((global_id, State.NOT_KNOWN), (later, State.ROLLED_BACK)):
        answer = call(client.client, "k1", RollbackAsked(RequestId(0), asked, tag, PARTICIPANTS), 10 * SECOND)
        stage.until(lambda answer=answer: answer.is_done, what="an answer")  # type: ignore[misc]
        assert isinstance(answer.value, OutcomeAnswer)
        stage.expect(
            answer.value.state is state, f"the answer is {state.name}, not {answer.value.state.name}"
        )
    stage.expect(len(client.browse("a")) == 1, "it has committed")
