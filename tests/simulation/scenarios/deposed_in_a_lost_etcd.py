"""A primary that was deposed, by an etcd that has forgotten that (R1, R5, R6, history 13).

A leads, and etcd is backed up. Then A is cut off from everybody, and lives; another leads the next epoch, and messages are
acknowledged. etcd comes back from the backup: it names A, in the entry that A knows. Those who miss a stamp there have it say
that it was set back; their primary goes on for as long as it renews its lease. Then A is there again. Nobody follows it, so it
neither serves, beside that one or behind it, nor takes anybody out of the set; and with the newer state all goes on.
"""

from tests.simulation.options import Options
from tests.simulation.staging.restored_etcd import deposed_behind_a_backup
from tests.simulation.staging.stage import ETCD, A, B, C, Stage, calm

CASES = (1, 2)
"""The minimum in sync."""


def options_of(case: int) -> Options:
    return calm(min_in_sync=case)


def play(stage: Stage, case: int) -> None:
    client, old = deposed_behind_a_backup(stage)
    world = stage.world
    new = world.etcd.backup()
    world.etcd.restore(old)
    stage.lose(ETCD, A)
    stage.until(lambda: world.etcd.get(world.keys.set_back) is not None, what="the word that it was set back")
    before = stage.map
    stage.mend(A, B, C, ETCD)
    stage.run(8)
    core = stage.primary_core(A)
    stage.expect(core is None or not core.streams.may_speak, "a deposed primary does not serve again")
    stage.expect(stage.map == before, "and does not change who is in the set")
    world.etcd.restore(new)
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
