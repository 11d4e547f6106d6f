"""All disks of a set have seen a later epoch than etcd has, and remember nothing of etcd that it lacks (R1, R2, R9, history 13).

etcd is backed up. A dies, B leads the next epoch, A is back, and messages are acknowledged. Everybody dies, and etcd comes back
from the backup, and others write to it. Every store refuses the epoch that the map has: the set is led by nobody, and nobody can
say from what its disk remembers that etcd was set back. Each replica knows that its disk has seen more, and says so to whoever
asks. An operator rebuilds the map: with nothing given up, what was acknowledged is there.
"""

from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.restored_etcd import forget_etcd, others_write
from tests.simulation.staging.stage import SET, A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    stage.run(6)
    old = world.etcd.backup()
    stage.kill(A)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.revive(A)
    stage.until(lambda: stage.in_sync == {A, B, C})
    stage.done(client.publish("a", count=3))
    stage.run(6)
    stage.power_loss(A, B, C)
    world.etcd.restore(old)
    others_write(stage, 200)
    for broker in (A, B, C):
        forget_etcd(world.disks[broker])
    stage.revive(A, B, C)
    stage.run(20)
    stage.expect(stage.epoch == 1, "nobody begins anything under an old map")
    stage.expect(world.etcd.get(world.keys.set_lease(SET)) is None, "nobody leads")
    for broker in (A, B, C):
        backup = stage.replica(broker).backup
        stage.expect(backup is not None and backup.fenced_at == 2, f"{broker} knows what its disk has seen")
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
