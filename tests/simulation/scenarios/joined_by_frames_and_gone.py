"""A newcomer that had no time to hear what is committed, and got all of it in frames (R1, R8, history 13).

B is cut off while A publishes messages. C comes back into the set with the frames of these messages, B is removed, and they are
acknowledged; but C hears nothing more of A. Then all lose power, and the disk of A is lost. etcd comes back from a backup, and B
leads the set without these messages. The disk of C names no commit index above what B has, and no snapshot: by itself it looks as
one of which nothing more was acknowledged. But it remembers what that etcd lacks, and was there when B's epoch was not known yet;
that one began in an etcd that did not know of C. So an operator is asked which of the two logs is to be given up, also while B
leads; and where that is the one of B, all of them are there.
"""

from services.store.core.meta import decode_set_meta
from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map, try_to_rebuild_map
from tests.simulation.staging.restored_etcd import others_write
from tests.simulation.staging.stage import ETCD, SET, A, B, C, Stage, calm

LED, NOT_LED = "B leads", "nobody leads"
CASES = (LED, NOT_LED)


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    world = stage.world
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.done(client.publish("a"))
    stage.run(6)
    stage.power_loss(C)
    stage.until(lambda: stage.in_sync == {A, B}, what="C out of the set")
    old = world.etcd.backup()
    stage.cut(B, A, C, ETCD, "c1")
    agreed = stage.log_end(B)
    published = [client.publish("a") for _ in range(3)]
    stage.run(0.1)
    stage.revive(C)
    stage.until(lambda: stage.durable(C) == stage.log_end(A) > agreed, what="the frames on C")
    stage.expect(not any(promise.is_done for promise in published), "nothing of that is acknowledged")
    stage.hold(A, C)
    stage.until(lambda: stage.in_sync == {A, C}, what="C in sync")
    for promise in published:
        stage.done(promise)
    directory = world.disks[C].directories[SET]
    told = stage.map.encode()
    stage.until(lambda: decode_set_meta(directory.meta).map_bytes == told, what="the entry on the disk of C")
    stage.power_loss(A, B, C)
    known = decode_set_meta(directory.meta)
    stage.expect(known.commit_index <= agreed, "what the disk of C knows to be committed B has, too")
    world.lose_disk(A)
    world.etcd.restore(old)
    if case == LED:
        others_write(stage, 100)
    world.observer.loss_accepted(SET, agreed)
    stage.mend(B, A, C, ETCD)
    stage.let_go(A, C)
    stage.revive(B)
    stage.serves(B)
    stage.run(1)
    stage.revive(C)
    stage.until(lambda: world.etcd.get(world.keys.set_back) is not None, what="the word that it was set back")
    if case == NOT_LED:
        stage.kill(B)
        stage.run(8)
        stage.revive(A, B)
        stage.run(2)
    is_rebuilt = try_to_rebuild_map(stage, "00000002-generation", A)
    stage.expect(not is_rebuilt, "nobody but an operator says which log goes")
    if case == LED:
        stage.kill(B)
        stage.run(8)
        stage.revive(B)
        stage.run(2)
    world.observer.loss_accepted(SET, agreed)
    rebuild_map(stage, "00000003-generation", A, B)
    stage.revive(A)
    stage.mend(B, "c1")
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 4, "what was acknowledged is there")
