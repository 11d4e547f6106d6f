"""An etcd that is restored from a backup behind what it had since, and disks that slept through all of that."""

import msgspec

from lockstep.core.cluster_map import SetMap
from services.broker.core.witness import STAMPED_EVERY_MS
from services.store.core.meta import decode_set_meta, encode_meta
from tests.simulation.disk import VirtualDisk
from tests.simulation.etcd import Backup
from tests.simulation.staging.prepared_branch import prepared_count
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import ETCD, A, B, C, Stage

SLEPT_S = 30
"""How long A sleeps while another leads, and etcd is restored."""


def others_write(stage: Stage, count: int) -> None:
    """Transactions of others, say: all that happens in etcd moves its revision."""
    for _ in range(count):
        stage.world.etcd.execute(lambda etcd: etcd.put("/elsewhere", b""))


def deposed_behind_a_backup(stage: Stage) -> tuple[ScriptedClient, Backup]:
    """etcd is backed up, then A, which leads, is cut off from everybody, and three messages are acknowledged in `a` by its
    successor; returns who publishes them, and that backup.
    """
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.run(1)
    backup = stage.world.etcd.backup()
    stage.cut(A, B, C, ETCD)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.done(client.publish("a", count=3))
    stage.run(6)
    return client, backup


def without_c_behind_a_backup(stage: Stage) -> tuple[ScriptedClient, Backup]:
    """etcd is backed up while all are in sync, then C is cut off from everybody, and A and B go on without it; returns who has
    declared `a`, and that backup.
    """
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.run(1)
    backup = stage.world.etcd.backup()
    stage.cut(C, A, B, ETCD)
    stage.until(lambda: stage.in_sync == {A, B}, what="a set without C")
    return client, backup


def wake(stage: Stage) -> None:
    """Wait until A's sleep, of `SLEPT_S`, is over."""
    stage.until(lambda: not stage.world.brokers[A].is_paused, SLEPT_S, "the end of A's sleep")


def expect_deposed(stage: Stage, entry: SetMap) -> None:
    """For 8 s, A neither takes up its reign again, nor changes the map's entry."""
    stage.run(8)
    core = stage.primary_core(A)
    stage.expect(core is None or not core.streams.may_speak, "a deposed primary does not serve again")
    stage.expect(stage.map == entry, "and does not change who is in the set")


def go_on_in_the_newer_state(stage: Stage, newer: Backup, client: ScriptedClient) -> None:
    """etcd has it again, and the set goes on, with the three messages in `a` that A's successor acknowledged."""
    stage.world.etcd.restore(newer)
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")


def restore_behind_all(stage: Stage, backup: Backup) -> None:
    """Stamps are put, then everybody dies, and etcd comes back from the backup; A and B are revived, and remember nothing."""
    etcd = stage.world.etcd
    others_write(stage, 20)
    stage.run(2 * STAMPED_EVERY_MS / 1000)
    stage.power_loss(A, B, C)
    etcd.detained.clear()
    etcd.detain = None
    etcd.restore(backup)
    for broker in (A, B):
        forget_etcd(stage.world.disks[broker])
    stage.revive(A, B)


def rebuild_with_c(stage: Stage) -> None:
    """C comes back, and what its disk remembers has an operator rebuild the map; a prepared branch waits for one, too."""
    stage.revive(C)
    stage.run(10)
    stage.expect(
        stage.world.etcd.get(stage.world.keys.set_back) is not None, "C has etcd say that it was set back"
    )
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.run(8)
    stage.expect(prepared_count(stage) == 1, "the branch waits for an operator")


def forget_etcd(disk: VirtualDisk) -> None:
    """As if its machine had slept when the others saw its revisions and stamps."""
    for directory in disk.directories.values():
        meta = decode_set_meta(directory.meta)
        directory.meta = encode_meta(msgspec.structs.replace(meta, etcd_revision=0, stamp=""))
