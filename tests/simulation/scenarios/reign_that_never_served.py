"""A reign that ends before it serves leaves nobody in silence (P7).

A is dead and C cannot be reached: B is promoted, and may not serve. A client has asked B for its session, which waits. B loses
etcd and its lease with it, and C begins the next epoch. When B hears of that it turns the client away, as a serving primary does
those that are attached.
"""

from tests.simulation.staging.stage import ETCD, A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, late = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.cut(C, ETCD, B)
    stage.kill(A)
    stage.until(lambda: stage.epoch == 2 and stage.primary_core(B) is not None, what="B promoted")
    asking = late.ask_browse("a")
    reign = stage.primary_core(B)
    assert reign is not None
    stage.until(lambda: len(reign.client_hearing.early) > 0, what="a session asked for early")
    stage.cut(B, ETCD)
    stage.mend(C, ETCD)
    stage.until(lambda: stage.epoch == 3, what="C promoted")
    stage.run(1)
    stage.expect(
        len(reign.client_hearing.early) > 0, "B is asked for sessions while it does not know of its successor"
    )
    stage.mend(B, ETCD)
    stage.until(lambda: stage.primary_core(B) is None, what="B follows")
    stage.mend(C, B)
    stage.revive(A)
    stage.until(lambda: asking.is_done)
    stage.whole()
