"""The map is rebuilt beside a disk that has a snapshot beyond the commit index (R8, R11, history 18).

B hears nothing; x is on A's disk only. C comes with an empty disk and gets a snapshot with x in it. A dies for good, and C is cut
off; B is promoted without x, and acknowledges y alone. Nobody ever acknowledged x, and the disk of C does not say so, not even
when it is read again. So a reader of C is not told that B's log has lost something; and when etcd comes back from a backup, the
map is rebuilt from B's disk, while no operator is asked which of the two logs is to be given up.
"""

from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("C goes on", "C is restarted")


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    world = stage.world
    stage.retain_little()
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.done(client.publish("a", size=3000))
    stage.run(8)
    old = world.etcd.backup()
    stage.power_loss(C)
    world.lose_disk(C)
    stage.until(lambda: stage.in_sync == {A, B})
    committed = stage.log_end(A)
    stage.hold(A, B)
    x = client.publish("a")
    stage.run(0.1)
    stage.revive(C)
    stage.until(lambda: stage.durable(C) >= stage.log_end(A) > committed, what="the snapshot on C")
    stage.expect(world.branches.counts["snapshot beyond the commit index"] == 1, "x is in that")
    stage.run(0.3)
    stage.expect(C not in stage.in_sync and not x.is_done, "C is not in sync, and x is not acknowledged")
    stage.cut(C, B)
    stage.kill(A)
    world.lose_disk(A)
    world.stores[A].die()
    if case == "C is restarted":
        stage.kill(C)
        stage.kill_store(C)
        stage.revive(C)
        stage.until(lambda: stage.log_end(C) > committed, what="the disk of C in memory")
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.serves(B)
    y = stage.client("c2").publish("a")
    stage.done(y)
    stage.expect(stage.replica(C).commit_index <= committed, "C does not say that x was acknowledged")
    stage.run(8)
    stage.power_loss(B, C)
    world.etcd.restore(old)
    stage.revive(A, B, C)
    stage.run(8)
    rebuild_map(stage, "00000002-generation")
    stage.mend(C, B)
    stage.let_go(A, B)
    stage.whole(60)
    stage.expect(len(client.browse("a")) >= 2, "what was acknowledged is there")
