"""A promotion lands, and the lease that it put the key under ends before the promoted broker hears of it (R6).

A dies; B asks to be promoted, and the answer does not come. Its lease is revoked, and the key goes with it; B is granted another
one. Then B reads that the map names it. It has a lease, and the key is nowhere: anybody may be promoted. It serves nothing before
its key hangs on the lease that it has.
"""

from tests.simulation.loop import MS
from tests.simulation.options import Options
from tests.simulation.staging.stage import SET, A, B, C, Stage, calm


def options() -> Options:
    options = calm(min_in_sync=1)
    options.etcd.watch_lag_us = 4_000 * MS
    return options


def play(stage: Stage) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    world.etcd.detain_answer = lambda call: call.operation.__name__ == "promote"
    stage.kill(A)
    stage.kill(C)
    stage.until(lambda: stage.epoch == 2, what="the promotion")
    stage.expect(stage.map.primary == B, "B's promotion")
    lease = world.etcd.get(world.keys.set_lease(SET))
    assert lease is not None
    world.etcd.detain_answer = None
    world.etcd.execute(lambda etcd: etcd.revoke(lease.lease))
    stage.until(lambda: _counts_on_its_key(stage) or stage.epoch > 2, what="B sure of its key")
    stage.expect(stage.epoch == 2 and has_key(stage), "the key is there that B counts on")
    stage.revive(A, C)
    stage.whole(60)


def _counts_on_its_key(stage: Stage) -> bool:
    return stage.primary_core(B) is not None and stage.replica(B).is_serving


def has_key(stage: Stage) -> bool:
    key = stage.world.etcd.get(stage.world.keys.set_lease(SET))
    return key is not None and key.value.decode() == stage.replica(B).incarnation
