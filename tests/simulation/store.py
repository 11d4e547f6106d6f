"""A store process: the real store core over a virtual disk, with a driver that performs its jobs in virtual time.

Law: as the real driver: steps of a job in order, one job per (set, lane); answers leave in the order of their effects. A kill
loses the process and none of what it wrote; a power loss takes what was not synced (`tests.simulation.disk`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from lockstep.core.frames import decode_header
from lockstep.core.ids import BrokerId, Epoch, LogIndex, SetName
from lockstep.core.store_protocol import BeginInstall, StateChunk
from services.store.core.disk import (
    CreateSegment,
    DeleteSegments,
    DiskError,
    Lane,
    MoveAside,
    SettleSegment,
    SnapshotClear,
    SnapshotFlush,
    Steps,
    SyncSegment,
    Unusable,
    WriteMeta,
)
from services.store.core.messages import (
    ChunkSent,
    JobDone,
    JobFailed,
    Note,
    Perform,
    ReaderReply,
    ReaderRequested,
    Reply,
    Requested,
    StoreEffect,
    StoreInput,
    StreamClosed,
    Tick,
)
from services.store.core.requests import (
    FenceSet,
    FramesRead,
    ReadContents,
    ReadFrames,
    ReadRefused,
    SetStatus,
    SurveySet,
)
from tests.simulation.checkers.record import JournalReading
from tests.simulation.hellos import StoreHello, StorePing, StorePong
from tests.simulation.loop import MS, SECOND
from tests.simulation.network import Side
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

_SLOW_STEPS = (
    CreateSegment,
    DeleteSegments,
    MoveAside,
    SettleSegment,
    SnapshotClear,
    SnapshotFlush,
    SyncSegment,
    WriteMeta,
)

_LOSSES = ("damage accepted", "owed segment unreadable", "owed segments dropped")
"""Notes of a store that has given up frames that it may owe."""

_PIECE_BYTES = 5000

_HANDOVER_US = 20


class Store(Process):
    """One incarnation of a store process; its disk outlives it."""

    def __init__(self, world: "World", broker: BrokerId, host: str) -> None:
        super().__init__(world, f"store {broker}", host)
        self.broker = broker
        self.disk = world.disks[broker]
        self.core = world.parts.make_store_core(world.store_limits)
        self._streams: dict[int, Side] = {}
        self._count = 0
        self.journals: dict[SetName, JournalReading] = {}
        """What `read_journal` found."""
        self._journal_reads: dict[int, ReadFrames] = {}
        world.network.listen(f"store:{broker}", host, self._accept)
        world.loop.after(world.random.randrange(SECOND), self._tick)

    def _tick(self) -> None:
        if self.is_alive:
            self.world.loop.after(SECOND, self._tick)
            if not self.is_paused:
                self.feed(Tick())

    def feed(self, given: StoreInput) -> None:
        self.post(self._handle, given)

    def _handle(self, given: StoreInput) -> None:
        for effect in self.core.handle(given):
            self._perform(effect)

    def _accept(self, side: Side) -> None:
        self._count += 1
        stream = self._count
        self._streams[stream] = side
        side.on_message = lambda message: self.post(self._take, stream, message)
        side.on_close = lambda: self.post(self._gone, stream)

    def source_of(self, handler: Callable[..., None], arguments: tuple[object, ...]) -> object:
        """Streams know nothing of each other: those of a dead writer may be read behind its successor's (history 23)."""
        return arguments[0] if handler in (self._take, self._gone) else None

    def _take(self, stream: int, message: object) -> None:
        if isinstance(message, StorePing):
            if stream in self._streams:
                self._streams[stream].send(StorePong())
        elif isinstance(message, StoreHello):
            if message.set_name is not None and stream in self._streams:
                self._streams[stream].send(StorePong())
        elif isinstance(message, ReadContents | FenceSet | SurveySet):
            self._handle(ReaderRequested(stream, message))
        else:
            if isinstance(message, BeginInstall):
                self._is_gone_up_to(message.set_name, message.index)
            self._handle(Requested(stream, message))  # type: ignore[arg-type]

    def _gone(self, stream: int) -> None:
        if self._streams.pop(stream, None) is not None:
            self._handle(StreamClosed(stream))

    def _perform(self, effect: StoreEffect) -> None:
        match effect:
            case Perform():
                self._work(effect.set_name, effect.lane, effect.steps, 0, [])
            case Reply():
                side = self._streams.get(effect.stream)
                if side is not None:
                    side.send(effect.answer)
                    if isinstance(effect.answer, StateChunk):
                        self.world.loop.after(1 * MS, self.feed, ChunkSent(effect.stream))
            case ReaderReply():
                self._read(effect)
            case Note():
                self.world.branches.reach(f"store: {effect.event}")
                if effect.event in _LOSSES:
                    self._is_gone_up_to(effect.set_name, self._status(effect.set_name).lowest_index - 1)
            case _:
                assert_never(effect)

    # --- looking into it, for the checkers ---

    def read_journal(self, set_name: SetName, epoch: Epoch) -> None:
        """Have the set's frames up to the commit index read, piece by piece; they come into `journals` soon."""
        if all(status.set_name != set_name for status in self.core.status()):
            return
        status = self._status(set_name)
        if status.owed_bytes:
            self.world.branches.reach("segments owed at the end")
        floor = self.disk.gone.get(set_name, LogIndex(0))
        self.journals[set_name] = JournalReading(self.broker, set_name, status.commit_index, floor)
        self._read_on(ReadFrames(set_name, epoch, LogIndex(0), bytes_max=_PIECE_BYTES))

    def _read_on(self, request: ReadFrames) -> None:
        self._count += 1
        self._journal_reads[self._count] = request
        self.feed(ReaderRequested(self._count, request))

    def _read(self, effect: ReaderReply) -> None:
        answer = effect.answer
        if effect.stream in self._streams:
            self._streams[effect.stream].send(answer)
            return
        request = self._journal_reads.get(effect.stream)
        if request is None:
            return
        reading = self.journals[request.set_name]
        if isinstance(answer, ReadRefused):
            reading.refusal = answer.message
        elif isinstance(answer, FramesRead):
            reading.frames.extend(answer.frames)
            self.feed(ChunkSent(effect.stream))
            end = decode_header(reading.frames[-1]).last if reading.frames else LogIndex(0)
            if answer.is_last and end >= request.from_index and reading.frames:
                self._read_on(replace(request, from_index=LogIndex(end + 1)))

    def _status(self, set_name: SetName) -> SetStatus:
        return next(status for status in self.core.status() if status.set_name == set_name)

    def _is_gone_up_to(self, set_name: SetName, index: int) -> None:
        self.disk.gone[set_name] = LogIndex(max(index, self.disk.gone.get(set_name, 0)))

    def _work(
        self,
        set_name: SetName,
        lane: Lane,
        steps: Steps,
        place: int,
        results: list[object],
        has_waited: bool = False,
    ) -> None:
        """Perform steps from `place` on; one that takes time is performed at the end of its time."""
        if not self.is_alive:
            return
        try:
            while place < len(steps):
                if isinstance(steps[place], _SLOW_STEPS) and not has_waited:
                    delay_us = self.world.disk_delay_us(self.broker)
                    self.world.loop.after(delay_us, self._work, set_name, lane, steps, place, results, True)
                    return
                results.append(self.disk.perform(set_name, steps[place]))
                place, has_waited = place + 1, False
        except DiskError as error:
            if isinstance(error, Unusable):
                raise AssertionError(f"{self.name}, {set_name}: {error.message}") from error
            self.world.loop.after(_HANDOVER_US, self.feed, JobFailed(set_name, lane, error))
            return
        self.world.loop.after(_HANDOVER_US, self.feed, JobDone(set_name, lane, tuple(results)))

    def die(self) -> None:
        super().die()
        self.world.network.listen(f"store:{self.broker}", self.host, None)
        for side in self._streams.values():
            side.break_off()
