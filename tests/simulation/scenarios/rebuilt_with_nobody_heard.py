"""An operator rebuilds the map of an etcd that was set back, and no disk of a set is there to be asked (R1, history 13).

etcd is backed up while all are in sync. A and B go on without C, and acknowledge. All lose power, and etcd comes back from the
backup: there C is in sync. A comes, has etcd say that it was set back, and loses its power again. An operator reads that, and
rebuilds the map while nobody is there. C would lead alone in the new generation, in which A does not tell any more what it
knows. So what was not asked is to be given up by name, or to come back.
"""

from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map, try_to_rebuild_map
from tests.simulation.staging.restored_etcd import without_c_behind_a_backup
from tests.simulation.staging.stage import ETCD, A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    world = stage.world
    client, old = without_c_behind_a_backup(stage)
    stage.done(client.publish("a", count=3))
    stage.run(8)
    stage.power_loss(A, B, C)
    stage.mend(C, A, B, ETCD)
    world.etcd.restore(old)
    stage.revive(A)
    stage.until(lambda: world.etcd.get(world.keys.set_back) is not None, what="A says so")
    stage.power_loss(A)
    is_rebuilt = try_to_rebuild_map(stage, "00000002-generation")
    stage.expect(not is_rebuilt, "disks that were not asked are given up by name, or they come back")
    stage.revive(C)
    stage.run(8)
    stage.expect(stage.primary_core(C) is None, "C does not lead")
    stage.revive(A, B)
    stage.run(2)
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
