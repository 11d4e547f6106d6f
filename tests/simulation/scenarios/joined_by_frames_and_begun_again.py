"""A disk that has what was acknowledged remembers an epoch of the same number as another's (R1, R8, history 13).

As in `joined_by_frames_and_gone`: C has come into the set by frames, messages are acknowledged, and C never heard so. A and C
lose power. A begins epoch 2, which C reads in etcd; but C gets nothing of A before all lose power again. The disk of A is lost,
etcd comes back from a backup, and B leads the set without these messages: it begins an epoch 2 of its own, dies, and begins
epoch 3. The entry that C remembers is of epoch 2, but not of the one in which the log of B goes on. So an operator is asked which
of the two logs goes.
"""

from lockstep.core.cluster_map import SetMap
from lockstep.core.stamps import Stamp, Stamps
from services.store.core.meta import decode_set_meta
from tests.simulation.options import Options
from tests.simulation.staging.gone_unheard import go_on_with_c, have_c_say_so, join_by_frames, lead_without_c
from tests.simulation.staging.rebuilt_map import try_to_rebuild_map
from tests.simulation.staging.stage import SET, A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    world = stage.world
    found = join_by_frames(stage)
    stage.power_loss(A, C)
    stage.lose(A, C)
    stage.revive(A)
    stage.until(lambda: stage.epoch == 2, what="A promoted again")
    stage.revive(C)
    stamps = Stamps.decode(found.old.entries[world.keys.stamps].value)

    def remembers() -> bool:
        meta = decode_set_meta(world.disks[C].directories[SET].meta)
        return SetMap.decode(meta.map_bytes).epoch == 2 and stamps.lacks(Stamp.decode(meta.stamp))

    stage.until(remembers, what="epoch 2, and a stamp, on the disk of C")
    lead_without_c(stage, found)
    stage.kill(B)
    stage.revive(B)
    stage.until(lambda: stage.epoch == 3, what="B promoted again")
    stage.serves(B)
    have_c_say_so(stage)
    is_rebuilt = try_to_rebuild_map(stage, "00000002-generation", A)
    stage.expect(not is_rebuilt, "nobody but an operator says which log goes")
    go_on_with_c(stage, found)
