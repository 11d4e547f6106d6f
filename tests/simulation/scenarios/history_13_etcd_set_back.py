"""History 13: etcd is restored from an old backup (R1).

(a) The backup says e1. Since then A has died, B leads in e2, and messages were acknowledged; all restart under the old map.
(b) The backup says {A, B, C}. Since then C was removed, knows it, and lacks what was acknowledged; C alone restarts under
the old map. Whoever is ahead of etcd, in epoch or revision, starts nothing. When the newer state of etcd is back, the set
goes on where it was.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("epochs", "revisions")


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.run(1)
    old = stage.world.etcd.backup()
    if case == "epochs":
        stage.kill(A)
        stage.until(lambda: stage.epoch == 2, what="a successor")
    else:
        stage.cut(C, A, B)
        stage.until(lambda: stage.in_sync == {A, B})
    stage.done(client.publish("a", count=3))
    stage.run(2)
    new = stage.world.etcd.backup()
    epoch, behind = stage.epoch, {"epochs": (B, C), "revisions": (C,)}[case]
    stage.kill(A, B, C)
    stage.world.etcd.restore(old)
    stage.revive(*behind)
    stage.run(8)
    stage.expect(stage.epoch == 1, "nobody begins anything under an old map")
    stage.world.etcd.restore(new)
    stage.mend(C, A, B)
    stage.revive(A, B)
    stage.until(lambda: stage.epoch > epoch, what="the next epoch")
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
