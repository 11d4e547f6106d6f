"""An epoch has begun twice, at one index, and what etcd has since does not tell that any more (R1, R7, R8, history 13).

etcd is backed up, and C cut off, which misses no message. A dies; B leads epoch 2, acknowledges messages, and dies. etcd comes
back from the backup, and C is promoted: it begins epoch 2 at the very index at which B did, acknowledges others, and dies. (a) B
has etcd say that it was set back. An operator takes C's disk for the set, and rebuilds the map, in which B's disk remembers
nothing to be compared. (b) C leads the next epoch before B is there, which is above all that B has seen; the map is rebuilt as in
(a). (c) The same, and B's disk remembers nothing of etcd but the entry, of an epoch that is over. By epochs and indexes all of
B's log is C's. It is not, from where epoch 2 begins on. So the map is not rebuilt before an operator has given up what B has,
beside what A has, which is away; and B gets C's.
"""

from collections.abc import Callable

from lockstep.core.ids import LogIndex
from tests.simulation.options import Options
from tests.simulation.promises import Promise
from tests.simulation.staging.rebuilt_map import rebuild_map, try_to_rebuild_map
from tests.simulation.staging.restored_etcd import forget_etcd, others_write
from tests.simulation.staging.stage import ETCD, SET, A, B, C, Stage, calm

CASES = ("loss is accepted", "another epoch has begun since", "the disk remembers nothing")


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    stage.run(6)
    old = world.etcd.backup()
    stage.cut(C, A, B, ETCD, "c1")
    agreed = stage.log_end(C)
    stage.power_loss(A)
    stage.until(lambda: stage.epoch == 2, what="B as primary")
    stage.until(lambda: stage.in_sync == {B})
    lost = [client.publish("a") for _ in range(3)]
    for promise in lost:
        stage.done(promise)
    stage.run(8)
    stage.power_loss(B, C)
    _give_up(stage, agreed, lost)
    world.etcd.restore(old)
    others_write(stage, 200)
    stage.mend(C, ETCD)
    stage.revive(C)
    stage.serves(C)
    stage.expect(stage.epoch == 2, "C begins the epoch that B had begun")
    other = stage.client("c2")
    for _ in range(6):
        stage.done(other.publish("a"))
    end = stage.log_end(C)
    stage.kill(C)
    stage.run(8)
    stage.mend(C, A, B)
    if case == "loss is accepted":
        stage.revive(B)
        stage.until(_is_told(stage), what="the word that it was set back")
        stage.revive(C)
        stage.accept_loss(C, end)
        stage.serves(C)
    else:
        stage.revive(C)
        stage.serves(C)
        stage.expect(stage.epoch == 3, "C begins another epoch")
        if case == "the disk remembers nothing":
            forget_etcd(world.disks[B])
        stage.revive(B)
    if case != "the disk remembers nothing":
        stage.until(_is_told(stage), what="the word that it was set back")
        stage.run(1)
        is_rebuilt = try_to_rebuild_map(stage, "00000003-generation", A)
        stage.expect(not is_rebuilt, "nobody but an operator says that what B has goes")
        if not is_rebuilt:
            rebuild_map(stage, "00000003-generation", A, B)
    stage.mend(C, "c1")
    stage.revive(A)
    stage.whole(60)
    stage.expect(len(other.browse("a")) == 6, "what was acknowledged in the history that goes on is there")


def _is_told(stage: Stage) -> Callable[[], bool]:
    world = stage.world
    return lambda: world.etcd.get(world.keys.set_back) is not None


def _give_up(stage: Stage, after: LogIndex, lost: list[Promise]) -> None:
    """Nobody is promised any more what B has acknowledged."""
    history = stage.world.history
    operations = [promise.operation for promise in lost]
    history.operations = [operation for operation in history.operations if operation not in operations]
    stage.world.observer.loss_accepted(SET, after)
