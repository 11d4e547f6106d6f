"""A primary that slept while it was deposed, by an etcd that has forgotten that (R1, R5, R6, history 13).

A leads, and etcd is backed up. A stands still, with words of its backups in its sockets. Another leads the next epoch, and
messages are acknowledged. etcd comes back from the backup: it names A, in the entry that A knows. A goes on, and hears first what
its backups said before they left it, and then that they have left, or not even that, for it is cut off from them. The one is no
word of theirs on who leads now, the other no reason to do without them: a lease that is over by the clock is over, though no
tick has come. A neither serves, nor takes anybody out of the set; and with the newer state all goes on.
"""

from tests.simulation.options import Options
from tests.simulation.staging.restored_etcd import SLEPT_S, expect_deposed, go_on_in_the_newer_state, wake
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("2 of 3 cut off", "1 of 3 cut off", "2 of 3", "1 of 3", "1 of 2")
"""The minimum in sync, of how many, and whether A was cut off: it hears late that the others have left it, or when it wakes."""


def options_of(case: str) -> Options:
    return calm(min_in_sync=int(case[0]), brokers=int(case[5]))


def play(stage: Stage, case: str) -> None:
    stage.start()
    world, client = stage.world, stage.client("c1")
    client.declare("a")
    stage.run(1)
    old = world.etcd.backup()
    stage.pause(A, SLEPT_S)
    stage.run(0.6)
    if case.endswith("cut off"):
        stage.cut(A, B, C)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.done(client.publish("a", count=3))
    stage.run(6)
    new = world.etcd.backup()
    world.etcd.restore(old)
    before = stage.map
    wake(stage)
    expect_deposed(stage, before)
    stage.mend(A, B, C)
    go_on_in_the_newer_state(stage, new, client)
