"""A disk loses acknowledged frames without a trace, and a reachable member knows of them (R10, R8).

The in-sync set is {A, B}, and none of the two may be removed. B's machine loses its power, and its disk, which lied about its
last syncs, comes back without the end of the journal: nothing on it tells that something is missing, and A has it acknowledged.
B's disk is damaged: it is set aside, and B comes in with a new one.
So it is when both restart: B, if it is promoted, gives up when it hears what A knows.
"""

import msgspec

from lockstep.core.ids import DiskId, LogIndex, SetName
from services.store.core.meta import decode_set_meta, encode_meta
from tests.simulation.disk import VirtualDisk
from tests.simulation.options import Options
from tests.simulation.staging.stage import SET, A, B, C, Stage, calm

CASES = ("backup restarts", "both restart")


def options() -> Options:
    return calm(min_in_sync=2)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.done(client.publish("a", size=300))
    stage.kill(C)
    stage.until(lambda: stage.in_sync == {A, B})
    stage.run(2.5)
    old = disk_of(stage)
    whole = len(journal(stage.world.disks[B], SET))
    for _ in range(3):
        stage.done(client.publish("a", size=300))
    if case == "both restart":
        stage.run(2.5)
        stage.power_loss(A, B)
    else:
        stage.power_loss(B)
    forget_behind(stage.world.disks[B], SET, whole)
    stage.revive(A, B)
    stage.until(lambda: disk_of(stage) not in (None, old), 60, "another disk of B's in the map")
    stage.revive(C)
    stage.whole()
    stage.expect(len(client.browse("a")) == 4, "everything acknowledged is there")


def disk_of(stage: Stage) -> DiskId | None:
    """The disk of B that the map names; None while it names none."""
    return next((member.disk for member in stage.map.in_sync if member.broker == B), None)


def journal(disk: VirtualDisk, set_name: SetName) -> bytes:
    return bytes(disk.directories[set_name].segments[1].cached).rstrip(b"\0")


def forget_behind(disk: VirtualDisk, set_name: SetName, offset: int) -> None:
    """As if nothing had ever been written there, and the commit index not been written down since."""
    directory = disk.directories[set_name]
    for data in (directory.segments[1].cached, directory.segments[1].durable):
        data[offset:] = bytes(len(data) - offset)
    meta = decode_set_meta(directory.meta)
    directory.meta = encode_meta(msgspec.structs.replace(meta, commit_index=LogIndex(0)))
