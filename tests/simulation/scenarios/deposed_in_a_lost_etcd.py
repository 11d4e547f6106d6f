"""A primary that was deposed, by an etcd that has forgotten that (R1, R5, R6, history 13).

A leads, and etcd is backed up. Then A is cut off from everybody, and lives; another leads the next epoch, and messages are
acknowledged. etcd comes back from the backup: it names A, in the entry that A knows. Those who miss a stamp there have it say
that it was set back; their primary goes on for as long as it renews its lease. Then A is there again. Nobody follows it, so it
neither serves, beside that one or behind it, nor takes anybody out of the set; and with the newer state all goes on.
"""

from tests.simulation.options import Options
from tests.simulation.staging.restored_etcd import (
    deposed_behind_a_backup,
    expect_deposed,
    go_on_in_the_newer_state,
)
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
    expect_deposed(stage, before)
    go_on_in_the_newer_state(stage, new, client)
