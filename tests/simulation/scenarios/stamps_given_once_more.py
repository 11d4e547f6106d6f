"""Stamps that are on their way when etcd is set back arrive where others have put some at the same revision (R1, T3, history 26).

etcd is backed up. The next stamp is put, which all disks remember, and the one behind it is still on its way when everybody dies.
etcd comes back from the backup, and others write to it, until somebody's stamp has, by chance, the revision of the one that was
remembered. What was on its way arrives: it has all stamps of before, so with it nobody would miss any. It is for other stamps
than are there, and does nothing; the disks tell that etcd was set back.
"""

from lockstep.core.stamps import Stamp, Stamps
from services.broker.core.witness import STAMPED_EVERY_MS
from tests.simulation.etcd import Call, Etcd
from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.restored_etcd import others_write
from tests.simulation.staging.stage import A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    stage.run(2 * STAMPED_EVERY_MS / 1000)
    old, before = world.etcd.backup(), _stamped_at(stage)
    others_write(stage, 50)
    stage.until(lambda: _stamped_at(stage) > before, what="the next stamp")
    revision = _stamped_at(stage)
    stage.done(client.publish("a", count=3))
    stage.run(2)
    world.etcd.detain = _is_stamp
    others_write(stage, 1)
    stage.until(lambda: bool(world.etcd.detained), what="the stamp behind it")
    world.etcd.detain = None
    stage.power_loss(A, B, C)
    world.etcd.restore(old)
    others_write(stage, revision - world.etcd.revision - 1)
    key = world.keys.stamps

    def put(etcd: Etcd) -> None:
        stamps = Stamps.decode(old.entries[key].value)
        etcd.put(key, stamps.stamped(Stamp("other", 1, revision - 1)).encode())

    world.etcd.execute(put)
    stage.expect(_stamped_at(stage) == revision, "the stamps have the revision of others")
    world.etcd.deliver_detained()
    stage.revive(A, B, C)
    stage.run(10)
    stage.expect(world.etcd.get(world.keys.set_back) is not None, "it is known that etcd was set back")
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")


def _stamped_at(stage: Stage) -> int:
    return stage.world.etcd.mod_revision(stage.world.keys.stamps)


def _is_stamp(call: Call) -> bool:
    return call.operation.__qualname__.startswith("EtcdMemory._put")
