"""History 4: a swap in doubt (R3, R8).

A's swap that adds C is on its way for so long that it times out; a read shows C absent. A loses C and publishes with B. The
delayed swap must not be able to land after that: A counts C until a later swap of its own has moved the revision. Then A and
B die; C, which lacks what was acknowledged, may not be promoted.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.kill(C)
    stage.until(lambda: stage.in_sync == {A, B})
    etcd = stage.world.etcd
    etcd.detain = lambda call: call.operation.__name__ == "swap" and not etcd.detained
    stage.revive(C)
    stage.until(lambda: bool(etcd.detained), what="the swap that adds C")
    stage.cut(C, A, B)
    published = client.publish("a", count=3)
    stage.run(1)
    stage.expect(not published.is_done, "nothing is acknowledged without C while the swap may land")
    stage.until(lambda: published.is_done)
    stage.kill(A, B)
    etcd.detain = None
    etcd.deliver_detained()
    stage.run(6)
    stage.expect(stage.primary_core(C) is None, "C, which the map does not name, leads nothing")
    stage.revive(A, B)
    stage.mend(C, A, B)
    stage.whole()
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
