"""History 22: acknowledged on a disk that the map does not name (R3, R4, R8).

The set is {A, B}, the minimum 2. B is lost; C, a learner, is counted and asked into B's place, but that swap never lands. A
and C have the write on two disks, and still nothing may be acknowledged: only A and B are in the map. A and C die, B returns
and is asked.
"""

from tests.simulation.staging.stage import ETCD, A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.kill(C)
    stage.until(lambda: stage.in_sync == {A, B})
    stage.world.etcd.detain = lambda call: call.operation.__name__ == "swap"
    stage.kill(B)
    stage.cut("c1", B, C)
    end = stage.log_end(A)
    published = client.publish("a")
    stage.revive(C)
    stage.until(lambda: stage.durable(C) > end, what="the write on C")
    stage.run(2.5)
    stage.expect(not published.is_done, "two disks have it, and only one of them is in the map")
    stage.expect(_reader_waits(stage), "nor is it shown")
    stage.world.etcd.detained.clear()
    stage.world.etcd.detain = None
    stage.cut(A, ETCD)
    stage.power_loss(A)
    stage.world.lose_disk(A)
    stage.mend(A, ETCD)
    stage.revive(B)
    stage.until(lambda: stage.epoch == 2, what="B promoted")
    stage.revive(A)
    stage.mend("c1", B, C)
    stage.until(lambda: published.is_done)
    stage.whole()
    reader.browse("a")


def _reader_waits(stage: Stage) -> bool:
    asking = stage.client("c3").ask_browse("a")
    stage.run(0.5)
    return not asking.is_done
