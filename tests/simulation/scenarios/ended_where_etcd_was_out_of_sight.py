"""An end is asked for of a coordinator that lived on, cut off from etcd, while the transaction was begun and decided (R1, T3,
history 26).

It was COMMIT: one branch has committed, and the other one is prepared. Then all brokers died, and etcd came back from a backup,
which the coordinator has not seen to be behind anything: what it had seen is older. Two disks had slept through the decision; the
third one, which remembers a stamp that this etcd lacks, comes late. The client has heard of nothing, and rolls back. The
coordinator was there before the transaction was, or was told of it; but it did not have etcd in sight since: it calls the roll
first, and a witness does not answer. So it does where it was ABORT, which the client has heard and no branch, and a call for the
commit, which the client had made before, is heard so late. Nor does it help that the transaction seems to be of a later time, as
the coordinator that named it has a wall clock which is minutes ahead, or the one that is asked had one behind.
"""

from dataclasses import replace

from lockstep.core.branch_names import (
    RANDOM_BYTES,
    ParticipantName,
    branch_xid,
    generation_tag,
    new_global_id,
)
from lockstep.core.commands import CommitBranchCommand, RollbackBranchCommand
from lockstep.core.decision_log import DecisionKeys, ParticipantsEntry, Verdict
from lockstep.core.ids import Incarnation
from services.coordinator.core.messages import CommitAsked, EnlistAsked, RequestId, RollbackAsked
from tests.simulation.coordinated import LIMITS
from tests.simulation.coordinator_calls import call
from tests.simulation.loop import SECOND
from tests.simulation.options import CoordinationOptions, Options
from tests.simulation.staging.prepared_branch import CLUSTER, prepare, prepared_count
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.restored_etcd import restore_behind_all
from tests.simulation.staging.stage import ETCD, A, C, Stage, calm

AHEAD, BEHIND = "begun elsewhere, by a clock that is ahead", "begun elsewhere, and the own clock was behind"
CASES = ("begun elsewhere", "enlisted here", "a commit that comes late", AHEAD, BEHIND)
PARTICIPANTS = (ParticipantName("set:s1"), ParticipantName("set:s1"))
REQUEST = RequestId(0)
WRONG_MS = 600_000
"""By which a wall clock is ahead, or behind."""


def options() -> Options:
    limits = replace(LIMITS, open_ms_max=60_000, outcome_ms=90_000)
    return calm(coordination=CoordinationOptions(1, 0, 0, 60_000, 5_000, limits))


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, world, keys = stage.client("c1"), stage.world, DecisionKeys(CLUSTER)
    verdict = Verdict.ABORT if case == "a commit that comes late" else Verdict.COMMIT
    client.declare("a")
    world.coordinators.start("k1")
    stage.run(LIMITS.clock_ms / 1000 + 2)
    stage.cut("k1", ETCD)
    found = world.etcd.get(world.keys.generation)
    assert found is not None
    tag = generation_tag(found.value.decode())
    begun_ms = world.brokers[A].clocks.now().wall_ms + (WRONG_MS if case == AHEAD else 0)
    global_id = new_global_id(begun_ms, bytes(RANDOM_BYTES))
    if case == "enlisted here":
        call(client.client, "k1", EnlistAsked(REQUEST, global_id, tag, 0, PARTICIPANTS[0]), SECOND)
    first, second = (branch_xid(global_id, number, tag) for number in range(2))
    prepare(stage, client, first)
    prepare(stage, client, second)
    old = world.etcd.backup()
    world.etcd.detain = lambda call: "ask_decision" in call.operation.__qualname__
    listed = ParticipantsEntry(PARTICIPANTS, tag, Incarnation("gone"), 0)
    world.etcd.execute(lambda etcd: etcd.put(keys.participants(global_id), listed.encode()))
    world.etcd.execute(lambda etcd: etcd.put(keys.decision(global_id), verdict.encode()))
    if verdict is Verdict.COMMIT:
        stage.done(client.session.submit(CommitBranchCommand(0, first.encode())))
    still_prepared = prepared_count(stage)
    restore_behind_all(stage, old)
    stage.until(lambda: stage.epoch == 2, what="s1 led by who knows nothing of it")
    (coordinator,) = world.coordinators.alive()
    clocks = coordinator.clocks
    if case == BEHIND:
        clocks.wall_offset_ms -= WRONG_MS
    stage.mend("k1", ETCD)
    stage.run(3)
    if case == BEHIND:
        clocks.wall_offset_ms += WRONG_MS
    asked = RollbackAsked if verdict is Verdict.COMMIT else CommitAsked
    call(client.client, "k1", asked(REQUEST, global_id, tag, PARTICIPANTS), 60 * SECOND)
    stage.run(10)
    stage.expect(world.etcd.get(keys.decision(global_id)) is None, "nobody decides what may be decided")
    stage.expect(prepared_count(stage) == still_prepared, "nor is any branch told an end")
    stage.revive(C)
    stage.run(10)
    stage.expect(world.etcd.get(world.keys.set_back) is not None, "C has etcd say that it was set back")
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.run(8)
    stage.expect(prepared_count(stage) == still_prepared, "branches wait for an operator")
    if verdict is Verdict.COMMIT:
        stage.done(client.session.submit(CommitBranchCommand(0, second.encode())))
    else:
        for branch in (first, second):
            stage.done(client.session.submit(RollbackBranchCommand(0, branch.encode())))
    stage.expect(len(client.browse("a")) == (2 if verdict is Verdict.COMMIT else 0), "all has ended alike")
    world.etcd.execute(lambda etcd: etcd.delete(keys.participants(global_id)))
