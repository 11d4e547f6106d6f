"""A key of a reign that is over, in an etcd that has forgotten the later ones (R1, R5, R6, history 13).

A leads, and etcd is backed up. C is cut off from everybody. A and B go on without C, and A's store dies, and its reign ends: B
leads, and messages are acknowledged. etcd comes back from the backup: there C is in sync, and A has its key, under a lease that
came back, too. A has seen a stamp that this etcd lacks, and says so; but that word takes a moment. C is there again, and knows
no more than this etcd. Before all were told A leaves its key where it is: nothing else keeps C from beginning B's epoch once
more. Then nobody leads before the map is rebuilt.
"""

from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.restored_etcd import without_c_behind_a_backup
from tests.simulation.staging.stage import ETCD, A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    world = stage.world
    client, old = without_c_behind_a_backup(stage)
    stage.kill_store(A)
    stage.until(lambda: stage.primary_core(A) is None, what="the end of A's reign")
    stage.revive(A)
    stage.serves(B)
    stage.done(client.publish("a", count=3))
    stage.run(8)
    world.etcd.detain = lambda call: "_have_it_told" in call.operation.__qualname__
    world.etcd.restore(old)
    stage.lose(ETCD, C)
    stage.mend(C, A, B, ETCD)
    before = stage.map
    stage.run(2)
    world.etcd.detain = None
    world.etcd.deliver_detained()
    stage.run(8)
    stage.expect(stage.map == before, "nobody begins the epoch that was B's")
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
