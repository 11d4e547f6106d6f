"""A newcomer that was gone before it heard that it is in the set (R1, R8, history 13).

B is cut off, and removed. C has a new disk, which no entry of the map names. It comes into the set when it hears nothing of
etcd any more, so its disk remembers the entry before. Messages are acknowledged by A and C, and C never hears so. All lose power,
the disk of A is lost, etcd comes back from a backup, and B leads the set without these messages. The disk of C remembers what
that etcd lacks, but not that it was in the set. What it has behind the log of B may have been acknowledged: an operator is asked
for it.
"""

from lockstep.core.cluster_map import SetMap
from lockstep.core.stamps import Stamp, Stamps
from services.store.core.meta import decode_set_meta
from tests.simulation.options import Options
from tests.simulation.staging.gone_unheard import Unheard, go_on_with_c, have_c_say_so, lead_without_c
from tests.simulation.staging.rebuilt_map import try_to_rebuild_map
from tests.simulation.staging.stage import ETCD, SET, A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    found = _join_unheard(stage)
    lead_without_c(stage, found)
    have_c_say_so(stage)
    is_rebuilt = try_to_rebuild_map(stage, "00000002-generation", A)
    stage.expect(not is_rebuilt, "nobody but an operator says which log goes")
    go_on_with_c(stage, found)


def _join_unheard(stage: Stage) -> Unheard:
    world = stage.world
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.done(client.publish("a"))
    stage.run(6)
    stage.power_loss(C)
    world.lose_disk(C)
    stage.until(lambda: stage.in_sync == {A, B}, what="C out of the set")
    old = world.etcd.backup()
    stamps = Stamps.decode(old.entries[world.keys.stamps].value)
    agreed = stage.log_end(B)
    stage.cut(B, A, C, ETCD, "c1")
    stage.until(lambda: stage.in_sync == {A}, what="B out of the set")
    stage.run(6)
    stage.hold(A, C)
    stage.revive(C)

    def remembers() -> bool:
        directory = world.disks[C].directories.get(SET)
        if directory is None or not directory.meta:
            return False
        return stamps.lacks(Stamp.decode(decode_set_meta(directory.meta).stamp))

    stage.until(remembers, what="a stamp on the disk of C")
    stage.hold(ETCD, C)
    stage.let_go(A, C)
    stage.until(lambda: stage.in_sync == {A, C}, what="C in sync")
    stage.expect(stage.log_end(A) == agreed, "nothing was written meanwhile")
    published = client.publish("a", count=3)
    stage.until(lambda: stage.durable(C) == stage.log_end(A) > agreed, what="the messages on C")
    stage.hold(A, C)
    stage.expect(stage.done(published).is_ok, "they are acknowledged")
    meta = decode_set_meta(world.disks[C].directories[SET].meta)
    is_told = SetMap.decode(meta.map_bytes).names_disk(meta.disk)
    stage.expect(not is_told, "C does not know that it was in the set")
    return Unheard(client, old, agreed)
