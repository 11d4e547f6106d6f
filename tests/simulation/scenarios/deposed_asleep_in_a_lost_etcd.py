"""A primary that slept while it was deposed, by an etcd that has forgotten that (R1, R5, R6, history 13).

A leads, and etcd is backed up. A stands still, with words of its backups in its sockets, and then it is cut off from everybody.
Another leads the next epoch, and messages are acknowledged. etcd comes back from the backup: it names A, in the entry that A
knows. A goes on, and hears first what its backups said before they left it: that is no word of theirs on who leads now. It
neither serves, nor takes anybody out of the set; and with the newer state all goes on.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import ETCD, A, B, C, Stage, calm

CASES = (1, 2)
"""The minimum in sync."""
SLEPT_S = 30


def options_of(case: int) -> Options:
    return calm(min_in_sync=case)


def play(stage: Stage, case: int) -> None:
    stage.start()
    world, client = stage.world, stage.client("c1")
    client.declare("a")
    stage.run(1)
    old = world.etcd.backup()
    stage.pause(A, SLEPT_S)
    stage.run(0.6)
    stage.cut(A, B, C, ETCD)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.done(client.publish("a", count=3))
    stage.run(6)
    new = world.etcd.backup()
    world.etcd.restore(old)
    before = stage.map
    stage.mend(A, ETCD)
    stage.until(lambda: not world.brokers[A].is_paused, SLEPT_S, "the end of A's sleep")
    stage.run(8)
    core = stage.primary_core(A)
    stage.expect(core is None or not core.streams.may_speak, "a deposed primary does not serve again")
    stage.expect(stage.map == before, "and does not change who is in the set")
    stage.mend(A, B, C)
    world.etcd.restore(new)
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
