"""A `StoreCore` on a virtual disk, driven by hand: what a process does with its threads, one step after the other.

Law: the disk outlives the core. Jobs of different lanes are interleaved step by step, in an order that `chance` draws.
"""

import random

import google_crc32c

from lockstep.core.epoch_table import UNKNOWN_REIGN
from lockstep.core.frames import encode_frame
from lockstep.core.ids import Epoch, Incarnation, LogIndex, SessionKey, SetName, TimeMs
from lockstep.core.records import AnyRecord, CloseSession
from lockstep.core.store_protocol import (
    AnyStoreAnswer,
    AnyStoreRequest,
    Appended,
    AppendFrames,
    LoadState,
    OpenSet,
    SetOpened,
    StateChunk,
    Truncate,
)
from services.store.core.disk import AnyStep, DiskError, Lane
from services.store.core.limits import StoreLimits
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
)
from services.store.core.requests import AnyReaderAnswer, AnyReaderRequest, FramesRead, ItemsRead
from services.store.core.store_core import StoreCore
from tests.simulation.disk import VirtualDisk

SET = SetName("orders")
ME = Incarnation("me")
SMALL = StoreLimits(
    segment_bytes=4096,
    page_bytes=1,
    unconsolidated_bytes=2048,
    scan_bytes=1024,
    chunk_bytes=1024,
    consolidated_bytes=700,
    batch_items_max=5,
    reserve_bytes=0,
)


def frame(
    first: int,
    last: int | None = None,
    epoch: int = 1,
    commit: int = 0,
    records: list[AnyRecord] | None = None,
    reign: int = UNKNOWN_REIGN,
) -> bytes:
    """A frame of records that change nothing, or of `records`."""
    if records is None:
        count = (last or first) - first + 1
        records = [CloseSession(None, SessionKey(1 << 40)) for _ in range(count)]
    pairs = [(record, True) for record in records]
    made = encode_frame(Epoch(epoch), LogIndex(first), LogIndex(commit), TimeMs(first), pairs, reign=reign)
    return made.durable


def summed(head: bytes, payload: bytes) -> bytes:
    """A frame of a header that lacks its sum, and of a payload."""
    return head + int(google_crc32c.value(head + payload)).to_bytes(4, "little") + payload


class StoreRig:
    """One process on one disk; `crash` and go on with a new one."""

    def __init__(self, limits: StoreLimits = SMALL, disk: VirtualDisk | None = None, seed: int = 0) -> None:
        self.limits, self.disk, self.chance = limits, disk or VirtualDisk(), random.Random(seed)
        self.stream = 0
        self._begin()

    def _begin(self) -> None:
        self.core = StoreCore(self.limits)
        self.answers: list[tuple[int, AnyStoreAnswer]] = []
        self.read: list[AnyReaderAnswer] = []
        self.notes: list[Note] = []
        self.log: list[str] = []
        """Steps and answers in the order in which they happened."""
        self.slow_streams: set[int] = set()
        """To these nothing gets through."""
        self._jobs: dict[tuple[SetName, Lane], tuple[Perform, list[object]]] = {}

    # --- driving ----------------------------------------------------------------------------------------------------

    def feed(self, event: StoreInput) -> None:
        """Give the core an input, and take its effects, without performing any job."""
        self._take(self.core.handle(event, 0.0))

    def _take(self, effects: list[StoreEffect]) -> None:
        """As the server: a chunk leaves behind all that was put before the core hears that it did."""
        sent: list[int] = []
        for effect in effects:
            match effect:
                case Perform(set_name, lane, _):
                    assert (set_name, lane) not in self._jobs, f"two jobs in lane {lane}"
                    self._jobs[set_name, lane] = effect, []
                case Reply(stream, answer):
                    self.answers.append((stream, answer))
                    self.log.append(type(answer).__name__)
                    if isinstance(answer, StateChunk) and stream not in self.slow_streams:
                        sent.append(stream)
                case ReaderReply(stream, read):
                    self.read.append(read)
                    if isinstance(read, ItemsRead | FramesRead) and stream not in self.slow_streams:
                        sent.append(stream)
                case Note():
                    self.notes.append(effect)
        for stream in sent:
            self.feed(ChunkSent(stream))

    @property
    def has_jobs(self) -> bool:
        return bool(self._jobs)

    def next_steps(self) -> list[AnyStep]:
        """The next step of every job."""
        return [job.steps[len(results)] for job, results in self._jobs.values()]

    def step(self) -> None:
        """Perform one step of one job."""
        self._step(self.chance.choice(sorted(self._jobs, key=lambda place: (place[0], place[1].value))))

    def step_journal(self) -> None:
        """Perform one step of the journal lane's job."""
        self._step((SET, Lane.JOURNAL))

    def _step(self, place: tuple[SetName, Lane]) -> None:
        job, results = self._jobs[place]
        step = job.steps[len(results)]
        try:
            results.append(self.disk.perform(job.set_name, step))
        except DiskError as error:
            error.step = error.step or step
            del self._jobs[place]
            self.feed(JobFailed(*place, error))
            return
        self.log.append(type(step).__name__)
        if len(results) == len(job.steps):
            del self._jobs[place]
            self.feed(JobDone(*place, tuple(results)))

    def run(self) -> None:
        """Perform everything."""
        while self._jobs:
            self.step()

    def run_but(self, lane: Lane) -> None:
        """Perform everything but the jobs of one lane."""
        while places := sorted((place for place in self._jobs if place[1] is not lane), key=repr):
            self._step(self.chance.choice(places))

    def crash(self, power: bool = True) -> None:
        """The process, or the whole machine, dies with whatever is under way; a new process starts."""
        for (set_name, _), (job, results) in sorted(self._jobs.items(), key=lambda pair: pair[0][1].value):
            if self.chance.random() < 0.7:
                self.disk.interrupt(set_name, job.steps[len(results)], self.chance)
        if power:
            self.disk.lose_power(self.chance)
        else:
            self.disk.kill(self.chance)
        self._begin()

    # --- asking -----------------------------------------------------------------------------------------------------

    def ask(self, request: AnyStoreRequest, stream: int | None = None) -> list[AnyStoreAnswer]:
        """Send a request, perform everything, and give what came back on its stream."""
        stream = self.stream if stream is None else stream
        before = len(self.answers)
        self.feed(Requested(stream, request))
        self.run()
        return [answer for its, answer in self.answers[before:] if its == stream]

    def ask_reader(self, request: AnyReaderRequest) -> list[AnyReaderAnswer]:
        before = len(self.read)
        self.feed(ReaderRequested(1000, request))
        self.run()
        return self.read[before:]

    def open(self, epoch: int = 1, incarnation: Incarnation = ME) -> SetOpened:
        """Open the set on a new stream."""
        self.stream += 1
        (answer,) = self.ask(OpenSet(SET, Epoch(epoch), incarnation))
        assert isinstance(answer, SetOpened), answer
        return answer

    def append(self, *frames: bytes, commit: int = 0, epoch: int = 1) -> AnyStoreAnswer:
        (answer,) = self.ask(appending(*frames, commit=commit, epoch=epoch))
        return answer

    def append_ok(self, *frames: bytes, commit: int = 0, epoch: int = 1) -> LogIndex:
        answer = self.append(*frames, commit=commit, epoch=epoch)
        assert isinstance(answer, Appended), answer
        return answer.log_end

    def tell_commit(self, commit: int, epoch: int = 1) -> None:
        assert self.ask(appending(commit=commit, epoch=epoch)) == []

    def truncate(self, after: int, epoch: int = 1) -> AnyStoreAnswer:
        (answer,) = self.ask(Truncate(SET, Epoch(epoch), ME, LogIndex(after)))
        return answer

    def load(
        self, epoch: int = 1, takes_blocks: bool = False
    ) -> tuple[dict[bytes, bytes], list[bytes], AnyStoreAnswer]:
        """(items, frames, last answer)."""
        *chunks, last = self.ask(LoadState(SET, Epoch(epoch), ME, takes_blocks))
        items: dict[bytes, bytes] = {}
        frames: list[bytes] = []
        for chunk in chunks:
            assert isinstance(chunk, StateChunk)
            items |= {item.key: item.value for item in chunk.items}
            frames += chunk.frames
        return items, frames, last


def appending(*frames: bytes, commit: int = 0, epoch: int = 1, incarnation: Incarnation = ME) -> AppendFrames:
    return AppendFrames(SET, Epoch(epoch), incarnation, frames, LogIndex(commit))
