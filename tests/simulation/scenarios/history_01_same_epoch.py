"""History 1: same epoch, two contents (R5).

A sends (10,e1)=x to B and C, which have it durable, and dies before its own write; its store dies with it. A is back within its
lease. It may not go on in e1: what it would write at 10 would be another content under the same name, which B would take for its
own. It begins nothing, a backup with its memory begins e2, and x is what everybody hears.
"""

from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.run(1)
    stage.pause_store(A, 1)
    end = stage.log_end(A)
    published = client.publish("a")
    stage.until(lambda: min(stage.durable(B), stage.durable(C)) > end, what="x on both backups")
    stage.kill_store(A)
    stage.kill(A)
    stage.run(0.05)
    stage.revive(A)
    stage.run(1)
    stage.expect(
        stage.map.primary_incarnation.startswith("b1-") and stage.epoch == 1, "the lease is not over yet"
    )
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.until(lambda: published.is_done)
    stage.whole()
    stage.expect(len(client.browse("a")) == 1, "x, once")
