"""History 13: etcd is restored from an old backup (R1).

The backup says e1, {A, B, C}. Since then A has died, B leads in e2, and messages were acknowledged. All of them restart
under the old map. Whoever is ahead of etcd, in epoch or revision, starts nothing: nobody begins e2 a second time. When the
newer state of etcd is back, the set goes on where it was.
"""

from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    old = stage.world.etcd.backup()
    stage.kill(A)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.done(client.publish("a", count=3))
    stage.run(2)
    new = stage.world.etcd.backup()
    stage.kill(B, C)
    stage.world.etcd.restore(old)
    stage.revive(B, C)
    stage.run(8)
    stage.expect(stage.epoch == 1, "nobody begins anything under an old map")
    stage.world.etcd.restore(new)
    stage.revive(A)
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
