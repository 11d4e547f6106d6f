"""A newcomer that has what was acknowledged, and was gone before it heard so; and an etcd that has forgotten it."""

from typing import NamedTuple

from lockstep.core.ids import LogIndex
from services.store.core.meta import decode_set_meta
from tests.simulation.etcd import Backup
from tests.simulation.staging.rebuilt_map import rebuild_map, try_to_rebuild_map
from tests.simulation.staging.restored_etcd import others_write
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import ETCD, SET, A, B, C, Stage


class Unheard(NamedTuple):
    """What C has, and B has not."""

    client: ScriptedClient
    """Who has published it: three messages of the four in `a`."""
    old: Backup
    """etcd before C came."""
    agreed: LogIndex
    """The end of what B has of the log."""


def join_by_frames(stage: Stage) -> Unheard:
    """With `min_in_sync` 1. B is cut off while messages are published; C comes into the set with their frames, B is removed, and
    they are acknowledged. C hears nothing more of A, but its disk is told the entry that names it.
    """
    client = _published_once(stage)
    stage.power_loss(C)
    stage.until(lambda: stage.in_sync == {A, B}, what="C out of the set")
    return _join(stage, client, stage.world.etcd.backup(), "the frames")


def join_by_a_snapshot(stage: Stage) -> Unheard:
    """As `join_by_frames`, but C comes with a new disk, and gets all of it in a snapshot. The etcd that is kept had it in the set
    with its first disk.
    """
    stage.retain_little()
    client = _published_once(stage, size=3000)
    old = stage.world.etcd.backup()
    stage.power_loss(C)
    stage.world.lose_disk(C)
    stage.until(lambda: stage.in_sync == {A, B}, what="C out of the set")
    return _join(stage, client, old, "the snapshot")


def _published_once(stage: Stage, size: int = 0) -> ScriptedClient:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.done(client.publish("a", size=size))
    stage.run(6)
    return client


def _join(stage: Stage, client: ScriptedClient, old: Backup, what: str) -> Unheard:
    """`what`: C gets of A."""
    stage.cut(B, A, C, ETCD, "c1")
    agreed = stage.log_end(B)
    published = [client.publish("a") for _ in range(3)]
    stage.run(0.1)
    stage.revive(C)
    stage.until(lambda: stage.durable(C) == stage.log_end(A) > agreed, what=f"{what} on C")
    stage.expect(not any(promise.is_done for promise in published), "nothing of that is acknowledged")
    stage.hold(A, C)
    stage.until(lambda: stage.in_sync == {A, C}, what="C in sync")
    for promise in published:
        stage.done(promise)
    directory = stage.world.disks[C].directories[SET]
    told = stage.map.encode()
    stage.until(lambda: decode_set_meta(directory.meta).map_bytes == told, what="the entry on the disk of C")
    return Unheard(client, old, agreed)


def lead_without_c(stage: Stage, found: Unheard, passing: int = 100) -> None:
    """All lose power, the disk of A is lost, and etcd comes back from the backup, to which others write `passing` times. B leads
    without what C has.
    """
    world = stage.world
    stage.power_loss(A, B, C)
    known = decode_set_meta(world.disks[C].directories[SET].meta)
    stage.expect(known.commit_index <= found.agreed, "what the disk of C knows to be committed B has, too")
    world.lose_disk(A)
    world.etcd.restore(found.old)
    others_write(stage, passing)
    world.observer.loss_accepted(SET, found.agreed)
    stage.mend(B, A, C, ETCD)
    stage.let_go(A, C)
    stage.let_go(ETCD, C)
    stage.revive(B)
    stage.serves(B)


def have_c_say_so(stage: Stage) -> None:
    """C comes back, and has etcd say that it was set back."""
    world = stage.world
    stage.run(1)
    stage.revive(C)
    stage.until(lambda: world.etcd.get(world.keys.set_back) is not None, what="the word that it was set back")


def go_on_with_c(stage: Stage, found: Unheard) -> None:
    """An operator gives up what A and B have; B, which leads, is stopped for that. All messages are there then."""
    stage.kill(B)
    stage.run(8)
    stage.revive(B)
    stage.run(2)
    stage.world.observer.loss_accepted(SET, found.agreed)
    rebuild_map(stage, "00000003-generation", A, B)
    stage.revive(A)
    stage.mend(B, "c1")
    stage.whole(60)
    stage.expect(len(found.client.browse("a")) == 4, "what was acknowledged is there")


def rebuild_unled(stage: Stage, found: Unheard) -> None:
    """B, which leads, is gone before anybody asks. Nobody but an operator says which of the two logs goes; he gives up the one of
    A and B. All messages are there then.
    """
    stage.kill(B)
    stage.run(8)
    stage.revive(A, B)
    stage.run(2)
    is_rebuilt = try_to_rebuild_map(stage, "00000002-generation", A)
    stage.expect(not is_rebuilt, "nobody but an operator says which log goes")
    stage.world.observer.loss_accepted(SET, found.agreed)
    rebuild_map(stage, "00000003-generation", A, B)
    stage.mend(B, "c1")
    stage.whole(60)
    stage.expect(len(found.client.browse("a")) == 4, "what was acknowledged is there")
