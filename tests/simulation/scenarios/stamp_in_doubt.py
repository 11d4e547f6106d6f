"""A stamp whose writer never hears what became of it, in an etcd that is set back to right before it (R1, T3, history 26).

s1 has a prepared branch. etcd is backed up; then the transaction is decided, COMMIT, and one broker puts the next stamp, and is
cut off from etcd at that moment: it does not hear that it stands there. The others see it; of their disks one remembers it. They
die, and etcd, which comes back from the backup. Whoever was cut off has lived through all of it, and misses nothing that it has
seen; so it goes on with stamps of its own. They hide nothing: the disk that remembers the one in doubt is waited for, and finds
that etcd was set back.
"""

from lockstep.core.commands import RollbackBranchCommand
from lockstep.core.decision_log import Verdict
from lockstep.core.ids import BrokerId
from lockstep.core.stamps import Stamps
from services.broker.core.witness import STAMPED_EVERY_MS
from tests.simulation.etcd import Entry
from tests.simulation.options import Options
from tests.simulation.staging.prepared_branch import (
    decide,
    prepare,
    prepared_count,
    write_participants,
    xid_of_it,
)
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.restored_etcd import forget_etcd, others_write
from tests.simulation.staging.stage import ETCD, A, B, C, Stage, calm


def options() -> Options:
    return calm(sets=2)


def play(stage: Stage) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    xid = xid_of_it(stage)
    prepare(stage, client, xid)
    world.etcd.detain = lambda call: "ask_decision" in call.operation.__qualname__
    stage.run(2 * STAMPED_EVERY_MS / 1000)
    old = world.etcd.backup()
    write_participants(stage)
    decide(stage, Verdict.COMMIT)
    cut_off = _cut_off_writers(stage)
    stage.until(lambda: bool(cut_off), what="the next stamp")
    survivor = cut_off[0]
    late, other = (broker for broker in (A, B, C) if broker != survivor)
    stage.run(0.3)
    stage.power_loss(late, other)
    world.etcd.detained.clear()
    world.etcd.detain = None
    world.etcd.stop()
    forget_etcd(world.disks[other])
    stage.lose(ETCD, survivor)
    stage.run(10)
    stage.mend(survivor, ETCD)
    world.etcd.restore(old)
    others_write(stage, 200)
    stage.run(20)
    stage.revive(other)
    stage.until(lambda: prepared_count(stage) >= 0, what="s1 led by who knows nothing of it")
    stage.run(20)
    stage.expect(prepared_count(stage) == 1, f"{late}, whose disk knows more, is waited for")
    stage.revive(late)
    stage.run(15)
    stage.expect(world.etcd.get(world.keys.set_back) is not None, f"{late} has etcd say that it was set back")
    stage.expect(prepared_count(stage) == 1, "nobody presumes an abort")
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.run(8)
    stage.expect(prepared_count(stage) == 1, "the branch waits for an operator")
    stage.done(client.session.submit(RollbackBranchCommand(0, xid.encode())))


def _cut_off_writers(stage: Stage) -> list[BrokerId]:
    """From now on: whoever puts the next stamp hears nothing of etcd from that moment on; it is the first in the answer then."""
    world, found = stage.world, list[BrokerId]()
    before = _newest_writers(world.etcd.get(world.keys.stamps))

    def observe(key: str, entry: Entry | None) -> None:
        if key != world.keys.stamps or found:
            return
        for writer in sorted(_newest_writers(entry) - before):
            found.extend(broker for broker in (A, B, C) if broker in writer[0])
        if found:
            stage.hold(ETCD, found[0])
            stage.hold(found[0], ETCD)

    world.etcd.observers.append(observe)
    return found


def _newest_writers(entry: Entry | None) -> set[tuple[str, int]]:
    assert entry is not None, "there are stamps"
    return {(one.writer, one.number) for one in Stamps.decode(entry.value).stamps}
