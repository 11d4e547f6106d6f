"""One epoch has two histories, for etcd was restored from before it began (R1, R5, history 13).

C is cut off, and misses messages of epoch 1. etcd had been backed up just before. A dies; B leads epoch 2 alone, acknowledges
messages, and dies. etcd comes back from the backup, and of all that could know that only C is there, whose disk knows nothing
newer: it is promoted, and begins epoch 2, too. Nobody can tell that while B is away, and clients do not reach C; so what C
commits then is given up with that. B returns, and its disk tells; so it does not follow C under the number that both have,
whether etcd has passed what it remembers or not, and keeps what it alone has. An operator stops C, gives its disk up, and
rebuilds the map, which is not done without that: all that was acknowledged to clients is there, and C gets it, though its log has
records of an epoch that the others know.
"""

from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map, try_to_rebuild_map
from tests.simulation.staging.restored_etcd import forget_etcd, others_write
from tests.simulation.staging.stage import ETCD, SET, A, B, C, Stage, calm

CASES = ("etcd is behind", "etcd has passed what was seen", "the disk remembers no stamp either")


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    stage.run(6)
    old = world.etcd.backup()
    stage.cut(C, A, B, ETCD, "c1")
    agreed = stage.log_end(C)
    stage.until(lambda: stage.in_sync == {A, B})
    for _ in range(20):
        stage.done(client.publish("a"))
    stage.power_loss(A)
    stage.until(lambda: stage.epoch == 2, what="B as primary")
    stage.until(lambda: stage.in_sync == {B})
    stage.done(client.publish("a", count=3))
    stage.run(8)
    end = stage.log_end(B)
    stage.power_loss(B, C)
    world.etcd.restore(old)
    if case != "etcd is behind":
        others_write(stage, 200)
    if case == "the disk remembers no stamp either":
        forget_etcd(world.disks[B])
    world.observer.loss_accepted(SET, agreed)
    stage.mend(C, A, B, ETCD)
    stage.revive(C)
    stage.serves(C)
    stage.run(1)
    stage.revive(B)
    stage.until(lambda: world.etcd.get(world.keys.set_back) is not None, what="the word that it was set back")
    stage.run(8)
    stage.expect(stage.in_sync == {C}, "B does not follow C")
    stage.expect(stage.log_end(B) == end, "B keeps what it alone has")
    is_rebuilt = try_to_rebuild_map(stage, "00000002-generation")
    stage.expect(not is_rebuilt, "who leads an epoch that another has led is not left alone")
    stage.kill(C)
    stage.run(8)
    stage.revive(A, C)
    stage.run(2)
    is_rebuilt = try_to_rebuild_map(stage, "00000002-generation")
    stage.expect(not is_rebuilt, "nobody but an operator says which log goes")
    world.observer.loss_accepted(SET, agreed)
    rebuild_map(stage, "00000003-generation", C)
    stage.mend(C, "c1")
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 23, "what was acknowledged is there")
