"""The map is rebuilt while a lease that came back with a restored etcd has not ended (R1, R6, history 13).

etcd is backed up while A leads. A dies; B and C go on without it, and acknowledge. Then everybody dies, and etcd comes back from
the backup: it says that A leads, in the old epoch, with all three in sync. A disk of the other set tells that etcd was set back;
in a new generation nobody tells any more. So a map that was rebuilt without the first set would have A promoted, alone.
"""

from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("s1 is led, as etcd says",)


def options() -> Options:
    return calm(sets=2, min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    world = stage.world
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.run(8)
    old = world.etcd.backup()
    stage.kill(A)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.until(lambda: stage.in_sync == {B, C})
    stage.done(client.publish("a", count=3))
    stage.run(8)
    stage.power_loss(A, B, C)
    world.etcd.restore(old)
    stage.revive(A, B, C)
    stage.until(lambda: world.etcd.get(world.keys.set_back) is not None, what="somebody who says so")
    stage.expect(
        world.etcd.get(world.keys.set_lease(stage.map.set_name)) is not None, "A leads, as etcd says"
    )
    rebuild_map(stage, "00000002-generation")
    stage.cut(A, B, C)
    stage.run(8)
    stage.mend(A, B, C)
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
