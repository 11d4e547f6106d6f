"""What was written for one state of etcd arrives in another, in which its revision names something else (R1, R4, R5, history 13).

A leads {A, B}, for C was cut off and does not know that. A loses B, and is cut off from etcd at the moment at which it takes B
out of the set: that is still on its way. etcd comes back from a backup that is older than C's removal. A's lease ends, so C
begins the next epoch, and is alone in the set in the end; the entry that says so gets, by chance, the very revision of the one
that A knew. Messages are acknowledged. Then A's change arrives. It is for another entry: it does nothing.
"""

from lockstep.core.effects import AnyEffect, SwapMap
from tests.simulation.broker import Broker
from tests.simulation.options import Options
from tests.simulation.staging.restored_etcd import others_write
from tests.simulation.staging.stage import ETCD, SET, A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    stage.run(1)
    old, agreed = world.etcd.backup(), stage.log_end(C)
    stage.cut(C, A, B, ETCD)
    others_write(stage, 100)
    stage.until(lambda: stage.in_sync == {A, B})
    entry = world.etcd.get(world.keys.set_map(SET))
    assert entry is not None, "A leads"
    revision = entry.mod_revision
    world.etcd.detain = lambda call: call.operation.__qualname__.endswith("swap")
    stage.kill(B)
    stage.until(lambda: bool(world.etcd.detained), what="A's change")
    world.etcd.detain = None
    stage.cut(A, ETCD, "c1")
    stage.run(4)
    world.etcd.restore(old)
    stage.expect(world.etcd.revision < revision, "etcd is behind")
    stage.when(_is_swap, lambda: others_write(stage, revision - world.etcd.revision - 1))
    stage.kill(C)
    stage.revive(C)
    stage.mend(C, ETCD)
    stage.until(lambda: stage.in_sync == {C} and stage.epoch == 2, what="C alone")
    entry = world.etcd.get(world.keys.set_map(SET))
    assert entry is not None, "C leads"
    stage.expect(entry.mod_revision == revision, "the entry has the revision of another one")
    world.observer.loss_accepted(SET, agreed)
    later = stage.client("c2")
    stage.done(later.publish("a", count=3))
    world.etcd.deliver_detained()
    stage.mend(A, ETCD)
    stage.run(4)
    stage.expect(stage.epoch == 2, "the entry is C's")
    stage.done(later.publish("a"))
    stage.mend(A, "c1")
    stage.mend(C, A, B)
    stage.revive(A, B)
    stage.whole(60)
    stage.expect(len(later.browse("a")) == 4, "what C acknowledged is there")


def _is_swap(_: Broker, effect: AnyEffect) -> bool:
    return isinstance(effect, SwapMap)
