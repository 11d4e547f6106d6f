"""A commit is asked for again, of a coordinator that finds a restored etcd (R1, T3, history 26).

Another one had decided COMMIT, and one branch has committed by that; the other one is prepared. Then everybody died, and etcd
came back from a backup: with the list that its client had closed, or without any. Two disks had slept through the decision; the
third one, which remembers a stamp that this etcd lacks, comes late. The coordinator signs the list, or writes it, and asks for
votes; but it does not reach the brokers until its time for that is over. It would decide ABORT, and the prepared branch would be
rolled back beside one that has committed; but it calls the roll first, though the list is its own now, and a witness does not
answer.
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
from lockstep.core.commands import CommitBranchCommand
from lockstep.core.decision_log import DecisionKeys, ParticipantsEntry, Verdict
from lockstep.core.ids import Incarnation
from services.coordinator.core.messages import CommitAsked, RequestId
from tests.simulation.coordinated import LIMITS
from tests.simulation.coordinator_calls import call
from tests.simulation.loop import SECOND
from tests.simulation.options import CoordinationOptions, Options
from tests.simulation.staging.prepared_branch import CLUSTER, prepare, prepared_count
from tests.simulation.staging.restored_etcd import rebuild_with_c, restore_behind_all
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, B, Stage, calm

CASES = ("the list was closed", "the list is lost, too", "nothing was decided")
PARTICIPANTS = (ParticipantName("set:s1"), ParticipantName("set:s1"))


def options() -> Options:
    # Not because it decides late: that it was begun before this coordinator is enough.
    limits = replace(LIMITS, open_ms_max=60_000, outcome_ms=90_000, unasked_ms=60_000)
    return calm(coordination=CoordinationOptions(1, 0, 0, 60_000, 5_000, limits))


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    tag, keys = _generation(stage), DecisionKeys(CLUSTER)
    global_id = new_global_id(world.brokers[A].clocks.now().wall_ms, bytes(RANDOM_BYTES))
    committed, prepared = (branch_xid(global_id, number, tag) for number in range(2))
    prepare(stage, client, committed)
    prepare(stage, client, prepared)
    stage.run(2)
    if case != "the list is lost, too":
        _close(stage, global_id, tag)
    if case == "nothing was decided":
        _ask_for_commit(stage, client, global_id, tag)
        stage.run(10)
        stage.expect(prepared_count(stage) == 0, "it is aborted where its votes come too late")
        stage.whole()
        return
    old = world.etcd.backup()
    world.etcd.detain = lambda call: "ask_decision" in call.operation.__qualname__
    _close(stage, global_id, tag)
    world.etcd.execute(lambda etcd: etcd.put(keys.decision(global_id), Verdict.COMMIT.encode()))
    stage.done(client.session.submit(CommitBranchCommand(0, committed.encode())))
    restore_behind_all(stage, old)
    stage.until(lambda: stage.epoch == 2, what="s1 led by who knows nothing of it")
    _ask_for_commit(stage, client, global_id, tag)
    stage.run(20)
    stage.expect(world.etcd.get(keys.decision(global_id)) is None, "nobody aborts what may be committed")
    rebuild_with_c(stage)
    stage.done(client.session.submit(CommitBranchCommand(0, prepared.encode())))
    stage.expect(len(client.browse("a")) == 2, "all of it has committed")
    world.etcd.execute(lambda etcd: etcd.delete(keys.participants(global_id)))


def _generation(stage: Stage) -> GenerationTag:
    entry = stage.world.etcd.get(stage.world.keys.generation)
    assert entry is not None
    return generation_tag(entry.value.decode())


def _close(stage: Stage, global_id: GlobalId, tag: GenerationTag) -> None:
    """The list goes into the log, by a coordinator that is gone."""
    entry = ParticipantsEntry(PARTICIPANTS, tag, Incarnation("gone"), 0, is_closed=True)
    key = DecisionKeys(CLUSTER).participants(global_id)
    stage.world.etcd.execute(lambda etcd: etcd.put(key, entry.encode()))


def _ask_for_commit(stage: Stage, client: ScriptedClient, global_id: GlobalId, tag: GenerationTag) -> None:
    """The client asks a coordinator that has just begun, which does not reach the brokers while it may wait for votes."""
    world, key = stage.world, DecisionKeys(CLUSTER).participants(global_id)
    world.coordinators.start("k1")
    is_closed = world.etcd.get(key) is not None
    asked = CommitAsked(RequestId(0), global_id, tag, PARTICIPANTS, is_closed)
    call(client.client, "k1", asked, 60 * SECOND)

    def is_its_own() -> bool:
        entry = world.etcd.get(key)
        return entry is not None and ParticipantsEntry.decode(entry.value).owner != "gone"

    stage.until(is_its_own, what="a list of its own")
    stage.cut("k1", A, B)
    stage.run(LIMITS.prepare_ms / 1000 + 1)
    stage.mend("k1", A, B)
