"""History 14: serving before the epoch record is committed (R5).

B has x in its suffix when A dies, C lacks it. B is promoted while C is in the set and cannot be reached: B may not show x to
anybody. B dies and comes back after C has begun the next epoch without x. Nobody has ever seen it.
"""

from tests.simulation.staging.stage import ETCD, A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.hold(A, C)
    end = stage.log_end(A)
    x = client.publish("a")
    stage.until(lambda: stage.durable(B) > end, what="x on B")
    stage.cut(C, ETCD, B)
    stage.kill(A)
    stage.world.lose_disk(A)
    stage.world.stores[A].die()
    stage.cut("c1", A, B, C)
    stage.until(lambda: stage.epoch == 2 and stage.primary_core(B) is not None, what="B promoted")
    asking = reader.ask_browse("a")
    stage.run(3)
    stage.expect(not asking.is_done, "B says nothing of what it holds")
    stage.kill(B)
    stage.mend(C, ETCD)
    stage.until(lambda: stage.epoch == 3, what="C promoted")
    stage.mend(C, A, B)
    stage.revive(A, B)
    stage.until(lambda: asking.is_done)
    stage.mend("c1", A, B, C)
    stage.until(lambda: x.is_done)
    stage.whole()
