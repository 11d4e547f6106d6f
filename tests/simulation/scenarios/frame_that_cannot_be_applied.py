"""What a broker cannot apply ends its part of the set that it is of, and nothing else (R10, P7).

A backup hears a frame whose transient part is garbage, or one with a wrong checksum; or what one backup, or both, are given back
of it by their disks is no record, either; or a publish makes every primary raise that takes it in hand. No broker ends, the
other set keeps its epoch, and the set is whole again by itself: with what was read anew of a good disk, with an empty disk in
the place of one that is no good, and without the publish, which is refused as poison. Nothing that was acknowledged is lost.
"""

from msgspec.structs import replace

from lockstep.core.commands import PublishCommand
from lockstep.core.errors import ErrorCode
from lockstep.core.frames import HEADER_BYTES, decode_header, encode_frame
from lockstep.core.ids import BrokerId
from lockstep.core.inputs import AnyInput, ClientSaid, PrimarySaid, StoreSaid
from lockstep.core.records import DeclareExchange
from lockstep.core.replication import Frames
from lockstep.core.store_protocol import StateChunk
from tests.simulation.broker import Broker
from tests.simulation.options import Options
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("in memory", "checksum", "on a disk", "on both disks", "at the primary")
NONSENSE = DeclareExchange(None, "e", "nonsense", True), True
_Parts = tuple[bytes, bytes]


def options() -> Options:
    return calm(sets=2)


def garbage(parts: _Parts) -> _Parts:
    return parts[0], b"\xff"


def torn(parts: _Parts) -> _Parts:
    durable = parts[0]
    return durable[:HEADER_BYTES] + b"?" + durable[HEADER_BYTES + 1 :], parts[1]


def unusable(durable: bytes) -> bytes:
    """A frame in the place of this one, whole by its checksum, with what is no record."""
    header = decode_header(durable)
    records = [NONSENSE, *[None] * (header.last - header.first)]
    times = header.commit_index, header.time_ms
    return encode_frame(header.epoch, header.first, *times, records, reign=header.reign).durable


class Altering:
    """What these brokers hear of the frame that carries a body: from their primary, each once; from their disks, each time."""

    def __init__(self, body: bytes, brokers: set[BrokerId], case: str) -> None:
        self._body = body
        self._alter = torn if case == "checksum" else garbage
        self._of_disks = brokers.copy() if case.startswith("on") else set()
        self.left = brokers.copy()

    def __call__(self, process: Broker, given: AnyInput) -> AnyInput:
        broker = process.broker
        match given:
            case PrimarySaid(message=Frames() as said) if broker in self.left:
                frames = tuple(self._alter(p) if self._body in p[0] else p for p in said.frames)
                if frames != said.frames:
                    self.left.remove(broker)
                    return replace(given, message=replace(said, frames=frames))
            case StoreSaid(answer=StateChunk() as chunk) if broker in self._of_disks:
                loaded = tuple(unusable(d) if self._body in d else d for d in chunk.frames)
                return replace(given, answer=replace(chunk, frames=loaded))
            case _:
                pass
        return given


class Raising:
    """Every primary raises over the command that has a body."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __call__(self, process: Broker, given: AnyInput) -> AnyInput:
        if not isinstance(given, ClientSaid):
            return given
        is_it = [
            isinstance(said, PublishCommand) and said.messages[0].body == self._body
            for said in given.messages
        ]
        if not any(is_it):
            return given
        messages = tuple(
            replace(said, messages=(None,)) if it else said
            for it, said in zip(is_it, given.messages, strict=True)
        )
        return replace(given, messages=messages)


def play(stage: Stage, case: str) -> None:
    world = stage.world
    stage.start()
    world.expects_faults = True
    others = {broker: world.brokers[broker].incarnation for broker in (A, B, C)}
    other_set = world.set_maps()[1]
    client, another = stage.client("c1"), stage.client("c2")
    client.declare("q")
    stage.done(client.publish("q"))
    disks = {broker: disk_of(stage, broker) for broker in (B, C)}
    bad = client.publish("q")
    assert bad.operation is not None
    if case == "at the primary":
        world.as_heard = Raising(bad.operation.bodies[0])
    else:
        heard_by = {B, C} if case == "on both disks" else {B}
        world.as_heard = altering = Altering(bad.operation.bodies[0], heard_by, case)
    behind = [another.publish("q", is_durable=number % 2 == 0) for number in range(6)]
    done = stage.done(bad, within_s=60)
    stage.until(lambda: faults(stage) > 0 or case == "checksum", what="a fault")
    for promise in behind:
        stage.expect(stage.done(promise).is_ok, "what is behind it is done")
    stage.whole(within_s=120)
    if case == "at the primary":
        stage.expect(done.code is ErrorCode.POISON, f"the publish is refused: {done.code}")
        stage.expect(3 <= faults(stage) <= 4, f"after three reigns: {faults(stage)}")
    else:
        stage.expect(done.is_ok and not altering.left, "it is committed, and was heard otherwise")
        stage.expect(faults(stage) == (0 if case == "checksum" else len(heard_by)), f"{faults(stage)} faults")
    is_unusable = {broker: case.startswith("on") and broker in heard_by for broker in disks}
    for broker, disk in disks.items():
        stage.expect((disk_of(stage, broker) != disk) is is_unusable[broker], f"the disk of {broker}")
    stage.expect(stage.epoch == 1 or case == "at the primary", "the primary goes on")
    stage.expect(world.set_maps()[1].epoch == other_set.epoch, "the other set has noticed nothing")
    stage.expect(
        others == {broker: world.brokers[broker].incarnation for broker in (A, B, C)}, "no process has ended"
    )
    stage.expect(
        len(client.browse("q")) == (7 if case == "at the primary" else 8), "everything is there, once"
    )


def faults(stage: Stage) -> int:
    return sum(stage.replica(broker).faults.count for broker in (A, B, C))


def disk_of(stage: Stage, broker: BrokerId) -> object:
    return next(member.disk for member in stage.map.in_sync if member.broker == broker)
