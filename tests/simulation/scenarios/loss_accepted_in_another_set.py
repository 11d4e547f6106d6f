"""Data loss is accepted in one set while everybody of another sleeps (R7, R9, P7): the other lost nothing, and starts again.

All lose power. B returns, which no set has in sync, and s2 is given up on it, and s3 perhaps, so that the cluster has another
generation. A and C return with whole disks that remember the one before, or the one before that; or they lead s1 when it changes,
and die before their disks hear of it. A branch that s1 has prepared presumes nothing from then on (T3). An etcd set back to
before the loss was accepted is noticed as ever (R1): its generation is older than the disks'.
"""

from lockstep.core.commands import RollbackBranchCommand
from lockstep.core.effects import AnyEffect, TellStore
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.store_protocol import RememberMap
from tests.simulation.broker import Broker
from tests.simulation.etcd import Backup
from tests.simulation.options import Options
from tests.simulation.staging.prepared_branch import (
    forget_participants,
    prepare,
    prepared_count,
    write_participants,
    xid_of_it,
)
from tests.simulation.staging.stage import A, B, C, Stage, calm

S2, S3 = SetName("s2"), SetName("s3")
CASES = ("once", "twice", "not told", "a branch is prepared", "etcd set back")
FIRST = "generation-1"


def options() -> Options:
    return calm(sets=3, min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    stage.done(client.publish("a"))
    xid = xid_of_it(stage)
    if case == "a branch is prepared":
        write_participants(stage)
        prepare(stage, client, xid)
    stage.kill(B)
    stage.until(lambda: all(entry.member(B) is None for entry in world.set_maps()), what="B out of all sets")
    stage.run(3)
    stage.power_loss(A, C)
    forget_participants(stage)
    if case == "not told":
        stage.cut(B, A, C)
        for broker in (A, C):
            world.disks[broker].flip_bit(S2, 1, 100, 3)
        stage.revive(A, C)
        stage.until(lambda: stage.primary_core(stage.map.primary) is not None, what="s1 led without s2")
    stage.run(5)
    stage.revive(B)
    stage.run(3)
    old = world.etcd.backup()
    if case == "not told":
        stage.when(_is_told_generation, lambda: stage.power_loss(A, C))
    give_up(stage, S2)
    if case == "twice":
        give_up(stage, S3)
    if case == "not told":
        stage.until(lambda: not any(world.brokers[broker].is_alive for broker in (A, C)), what="the crash")
        stage.mend(B, A, C)
    epoch = stage.epoch
    stage.expect(stage.map.member(B) is None, "B does not have s1")
    stage.revive(A, C)
    stage.until(lambda: stage.epoch > epoch, 60, "s1, whose disks are whole, led again")
    stage.whole(60)
    if case == "a branch is prepared":
        stage.run(8)
        stage.expect(prepared_count(stage) == 1, "nobody presumes across an accepted loss")
        stage.done(client.session.submit(RollbackBranchCommand(0, xid.encode())))
    if case == "etcd set back":
        set_back(stage, old)
    stage.expect(len(client.browse("a")) == 1, "what was acknowledged is there")


def give_up(stage: Stage, set_name: SetName) -> None:
    """All that the set has in sync, on B."""
    end = LogIndex(stage.world.brokers[B].replicas[set_name].log_end)
    stage.accept_loss(B, end, set_name=set_name)
    place = stage.world.set_names.index(set_name)
    stage.until(lambda: stage.world.set_maps()[place].primary == B, what=f"{set_name} led by B")


def _is_told_generation(process: Broker, effect: AnyEffect) -> bool:
    """A store of s1's is about to hear of another generation."""
    if (
        not isinstance(effect, TellStore)
        or not isinstance(effect.request, RememberMap)
        or process.broker == B
    ):
        return False
    return effect.request.set_name == "s1" and effect.request.generation != FIRST


def set_back(stage: Stage, old: Backup) -> None:
    """Everybody restarts under the old state of etcd, then under the new one."""
    new, epochs = stage.world.etcd.backup(), [entry.epoch for entry in stage.world.set_maps()]
    stage.kill(A, B, C)
    stage.world.etcd.restore(old)
    before = [entry.epoch for entry in stage.world.set_maps()]
    stage.revive(A, B, C)
    stage.run(8)
    stage.expect([entry.epoch for entry in stage.world.set_maps()] == before, "nobody begins anything")
    stage.world.etcd.restore(new)
    stage.until(
        lambda: all(entry.epoch > was for entry, was in zip(stage.world.set_maps(), epochs, strict=True)),
        what="the next epochs",
    )
    stage.whole(60)
