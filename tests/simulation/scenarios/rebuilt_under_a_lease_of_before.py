"""The map is rebuilt while somebody leads by an entry of which a restored etcd has an older one (R1, R6, history 13).

A disk of the other set tells that etcd was set back; in a new generation nobody tells any more. (a) etcd is backed up while A
leads. A dies; B and C go on without it, and acknowledge. Then everybody dies, and etcd comes back: it says that A leads, in the
old epoch, for its lease came back, too. (b) A and B go on without C, and acknowledge; etcd is set back while they live, and says
that C is in sync. A map that was rebuilt without the set would have A, or C, promoted later, alone.
"""

from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map, try_to_rebuild_map
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("another has led since", "a member was taken out since")


def options() -> Options:
    return calm(sets=2, min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    world = stage.world
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.run(8)
    old = world.etcd.backup()
    is_led_since = case == "another has led since"
    if is_led_since:
        stage.kill(A)
        stage.until(lambda: stage.epoch == 2, what="a successor")
        stage.until(lambda: stage.in_sync == {B, C})
    else:
        stage.cut(C, A, B)
        stage.until(lambda: stage.in_sync == {A, B})
    stage.done(client.publish("a", count=3))
    stage.run(8)
    if is_led_since:
        stage.power_loss(A, B, C)
    world.etcd.restore(old)
    stage.revive(A, B, C)
    stage.until(lambda: world.etcd.get(world.keys.set_back) is not None, what="somebody who says so")
    stage.expect(
        world.etcd.get(world.keys.set_lease(stage.map.set_name)) is not None, "A leads, as etcd says"
    )
    if is_led_since:
        rebuild_map(stage, "00000002-generation")
        stage.cut(A, B, C)
        stage.run(8)
    else:
        is_rebuilt = try_to_rebuild_map(stage, "00000002-generation")
        stage.expect(not is_rebuilt, "who leads by an entry that etcd lacks is not left alone")
        stage.kill(A, B)
        stage.run(8)
        stage.revive(A, B)
        if not is_rebuilt:
            rebuild_map(stage, "00000002-generation")
    stage.mend(A, B, C)
    stage.mend(B, C)
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
