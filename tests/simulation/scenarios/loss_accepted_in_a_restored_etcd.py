"""Loss is accepted in an etcd that was set back, and that has forgotten an epoch which a lost disk knew (R1, R7, history 13).

C is cut off, and B away, so that A is alone in the set; etcd is backed up. B comes back, A is lost, and B leads epoch 2. It
acknowledges messages, of which readers hear, with offsets that name them by index and epoch; then its disk is lost, too, and etcd
comes back from the backup. An operator takes C's disk for the set, which goes on in an epoch that nobody can have seen: two
contents would have one name.

That C can be taken does not depend on what it knows of that epoch. It heard of it while it lived, and knows a newer entry of the
map than etcd has now; or it heard so late, from an etcd that was gone already; or its process is another one since, and only its
disk remembers that; or it never heard. Where it knows, etcd says that it was set back, and an operator sees why nobody leads;
that word stays for all other sets until the map is rebuilt.
"""

from tests.simulation.loop import SECOND
from tests.simulation.network import NetworkOptions
from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.restored_etcd import others_write
from tests.simulation.staging.stage import ETCD, A, B, C, Stage, calm

HEARD, RESTARTED = "it heard of the epoch", "it heard of the epoch, and was restarted"
HEARD_LATE, NEVER_HEARD = "it heard of the epoch late", "it never heard of the epoch"
CASES = (HEARD, RESTARTED, HEARD_LATE, NEVER_HEARD)


def options() -> Options:
    network = NetworkOptions(delay_us=100, stall_timeout_us=120 * SECOND)
    return calm(min_in_sync=1, network=network)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    stage.run(1)
    has_etcd = case in (HEARD, RESTARTED)
    stage.cut(C, A, B, "c1", *(() if has_etcd else (ETCD,)))
    if case == HEARD_LATE:
        stage.keep(ETCD, C)
    agreed = stage.log_end(C)
    stage.until(lambda: stage.in_sync == {A, B}, what="C out of the set")
    stage.kill(B)
    stage.until(lambda: stage.in_sync == {A}, what="A alone")
    old = world.etcd.backup()
    stage.revive(B)
    stage.until(lambda: stage.in_sync == {A, B}, 60, "B in sync")
    stage.power_loss(A)
    stage.until(lambda: stage.epoch == 2 and stage.in_sync == {B}, what="B as primary, alone")
    lost = [client.publish("a") for _ in range(3)]
    for promise in lost:
        stage.done(promise)
    others_write(stage, 1)
    stage.run(6)
    stage.power_loss(B)
    for broker in (A, B):
        world.lose_disk(broker)
    world.etcd.restore(old)
    others_write(stage, 3 if has_etcd else 200)
    if case == NEVER_HEARD:
        stage.lose(ETCD, C)
    stage.run(5)
    stage.mend(C, ETCD, "c1")
    stage.run(3)
    is_said = world.etcd.get(world.keys.set_back) is not None
    stage.expect(is_said == (case != NEVER_HEARD), f"that etcd was set back is said: {is_said}")
    stage.expect(stage.replica(C).is_ahead_of_etcd == is_said, "C says why it does not stand")
    if case == RESTARTED:
        stage.kill(C)
        stage.revive(C)
        stage.run(3)
    stage.accept_loss(C, agreed, *lost)
    stage.serves(C)
    stage.expect(stage.epoch > 2, "no epoch has the number of one that others know")
    stage.mend(C, A, B)
    stage.revive(A, B)
    stage.whole(60)
    other = stage.client("c2")
    stage.done(other.publish("a"))
    stage.expect(len(other.browse("a")) == 1, "the set goes on")
    if is_said:
        rebuild_map(stage, "00000009-rebuilt")
        stage.run(3)
        stage.expect(world.etcd.get(world.keys.set_back) is None, "etcd is believed again")
        stage.whole(60)
