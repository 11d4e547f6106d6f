"""History 26: etcd is set back behind a decision, and the map is as it was (R1, T3).

s1 has a prepared branch. etcd is backed up; then the transaction is decided, COMMIT, and some seconds later everybody dies, etcd
too, which comes back from the backup. No entry of the map has changed, so no disk is ahead of it; but disks remember a stamp that
it lacks, also when it has passed the revision that they saw before any of them is looked at; or the revision. Whoever does starts
nothing; it has etcd say so, and nobody presumes an abort then, not even a set of which no disk remembers enough, and not while
the one broker whose disk does is not there, for it does not answer the roll. With the newer state the branch finds its decision,
and the roll is answered again; or the map is rebuilt, and the branch waits for an operator.
"""

from dataclasses import replace

import msgspec

from lockstep.core.cluster_map import Keys
from lockstep.core.commands import RollbackBranchCommand
from lockstep.core.decision_log import Verdict
from lockstep.core.ids import BrokerId
from lockstep.core.stamps import Stamps
from lockstep.runtime.etcd_memory import REMEMBERED_EVERY_MS
from services.store.core.meta import decode_set_meta, encode_meta
from tests.simulation.disk import VirtualDisk
from tests.simulation.etcd import Backup
from tests.simulation.options import Options
from tests.simulation.staging.prepared_branch import (
    CLUSTER,
    another_xid,
    decide,
    prepare,
    prepared_count,
    write_participants,
    xid_of_it,
)
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.restored_etcd import forget_etcd, others_write
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = (
    "newer state returns",
    "rebuilt",
    "noticed late",
    "etcd passes what was seen",
    "etcd has passed it before anybody looks",
    "disks remember no stamp",
    "noticed very late",
)


def options() -> Options:
    return calm(sets=2)


def play(stage: Stage, case: str) -> None:
    stage.start()
    is_late = case.startswith("noticed")
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    xid = xid_of_it(stage)
    prepare(stage, client, xid)
    stage.run(2)
    old = world.etcd.backup()
    if case == "noticed late":
        let_witness_go(old, C)
    world.etcd.detain = lambda call: "ask_decision" in call.operation.__qualname__
    write_participants(stage)
    decide(stage, Verdict.COMMIT)
    others_write(stage, 20)
    stage.run(3 * REMEMBERED_EVERY_MS / 1000)
    new = world.etcd.backup()
    stage.power_loss(A, B, C)
    world.etcd.detained.clear()
    world.etcd.detain = None
    world.etcd.restore(old)
    if case == "etcd has passed it before anybody looks":
        others_write(stage, 200)
    if is_late:
        for broker in (A, B):
            forget_etcd(world.disks[broker])
    if case == "disks remember no stamp":
        for broker in (A, B, C):
            forget_stamps(world.disks[broker])
    stage.revive(A, B)
    if is_late:
        stage.until(lambda: stage.epoch == 2, what="s1 led by who knows nothing of it")
        stage.run(25 if case == "noticed very late" else 0.5)
        stage.expect(prepared_count(stage) == 1, "C, whose disk knows more, is waited for")
    stage.revive(C)
    stage.run(1)
    if case == "etcd passes what was seen":
        others_write(stage, 40)
        stage.kill(A, B, C)
        stage.run(5)
        stage.revive(A, B, C)
    stage.run(15)
    if is_late:
        stage.expect(prepared_count(stage) == 1, "nobody presumes an abort")
    else:
        stage.expect(
            [entry.epoch for entry in world.set_maps()] == [1, 1], "nobody begins anything under an old etcd"
        )
    if case == "newer state returns":
        world.etcd.restore(new)
        stage.whole(60)
        stage.run(8)
        stage.expect(len(client.browse("a")) == 1, "what was decided is done")
        prepare(stage, stage.client("c2"), another_xid(stage))
        stage.run(20)
        stage.expect(prepared_count(stage) == 0, "all are witnesses of it, and an abort is presumed again")
        return
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.run(8)
    stage.expect(prepared_count(stage) == 1, "the branch waits for an operator")
    stage.done(client.session.submit(RollbackBranchCommand(0, xid.encode())))


def let_witness_go(backup: Backup, broker: BrokerId) -> None:
    """As if it had been made before that broker was one: nobody waits for it."""
    key = Keys(CLUSTER).stamps
    entry = backup.entries[key]
    stamps = Stamps.decode(entry.value)
    others = tuple(one for one in stamps.witnesses if one.broker != broker)
    backup.entries[key] = replace(entry, value=replace(stamps, witnesses=others).encode())


def forget_stamps(disk: VirtualDisk) -> None:
    """As written by brokers that knew of none."""
    for directory in disk.directories.values():
        meta = decode_set_meta(directory.meta)
        directory.meta = encode_meta(msgspec.structs.replace(meta, stamp=""))
