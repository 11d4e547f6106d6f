"""Qpid's test of a backup whose store fails: no transaction waits for it for ever, and it never counts without its disk (R3, R4).

B's disk fails every write, or is full, or its store process dies, during a commit. The commit is acknowledged when B has it after
all or is removed from the in-sync set; B comes back when its disk does.
"""

from lockstep.core.ids import SetName
from services.store.core.disk import AnyStep, DiskError, DiskProblem, SyncSegment, WriteSegment
from tests.simulation.staging.stage import B, Stage

CASES = ("failing", "full", "dead", "hanging")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    if case == "failing":
        stage.world.disks[B].fault = _fail
    elif case == "full":
        stage.world.disk_faults.fill_up(B)
    elif case == "dead":
        stage.kill_store(B)
    else:
        stage.pause_store(B, 8)
    commit = stage.done(client.commit(key))
    stage.expect(commit.is_ok, "the commit is acknowledged")
    stage.expect(case == "full" or B not in stage.in_sync or case == "dead", "without B")
    stage.done(client.publish("a", count=3))
    stage.world.disk_faults.repair(B)
    stage.revive(B)
    stage.run(8)
    stage.whole()


def _fail(set_name: SetName, step: AnyStep) -> None:
    if isinstance(step, SyncSegment | WriteSegment):
        raise DiskError(DiskProblem.FAILED, "input/output error", step)
