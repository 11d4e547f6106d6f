"""A primary that was deposed is in an etcd that has forgotten that, before anybody has it say so (R1, R4, R6, history 13).

A leads, and etcd is backed up. Then A is cut off from everybody, and lives; another leads the next epoch, and messages are
acknowledged. etcd comes back from the backup when A is there again, and A reaches it a second before those do who miss a stamp
there. It names A, in the entry that A knows, and nobody has the key. So A, whom nobody follows, waits for as long as a lease
lasts before it takes anybody out of the set, or has its key again. By then it is known that etcd was set back, and the map is
rebuilt.
"""

from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.restored_etcd import deposed_behind_a_backup, expect_deposed
from tests.simulation.staging.stage import ETCD, A, B, C, Stage, calm

CASES = (1, 2)
"""The minimum in sync."""


def options_of(case: int) -> Options:
    return calm(min_in_sync=case)


def play(stage: Stage, case: int) -> None:
    client, old = deposed_behind_a_backup(stage)
    world = stage.world
    world.etcd.stop()
    stage.run(0.2)
    stage.lose(A, ETCD)
    stage.lose(ETCD, A)
    stage.cut(ETCD, B, C)
    world.etcd.restore(old)
    before = stage.map
    stage.mend(A, ETCD)
    stage.run(1)
    stage.mend(ETCD, B, C)
    stage.run(0.5)
    stage.mend(A, B, C)
    expect_deposed(stage, before)
    stage.expect(world.etcd.get(world.keys.set_back) is not None, "it is known that etcd was set back")
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
