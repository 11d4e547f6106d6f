"""Running a set's procedures: one at a time in each lane, each waiting for its job.

Law: a procedure sees the results of its own job only, and none is left behind: a procedure ends, or its failed job ends it. In
the journal lane a failure closes the set and refuses what the procedure was asked for; in the other lanes it is noted and tried
again when there is reason to, unless it is damage: then the set is closed, and whoever opens it is told (R10).
"""

from collections.abc import Callable
from typing import assert_never

from msgspec.structs import replace

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.store_protocol import (
    AcceptDamage,
    AnyStoreRequest,
    AppendFrames,
    BeginInstall,
    EndInstall,
    InstallItems,
    LoadState,
    OpenSet,
    RememberMap,
    SetAside,
    Truncate,
)
from services.store.core.appending import append, truncate
from services.store.core.consolidator import Consolidator
from services.store.core.disk import (
    DiskError,
    Lane,
    ReadSnapshotItems,
    ReadSnapshotValues,
    Results,
    SnapshotStep,
    Unusable,
)
from services.store.core.installing import begin_install, end_install, install_items
from services.store.core.limits import StoreLimits
from services.store.core.loading import load_state
from services.store.core.messages import Perform, StoreEffect
from services.store.core.opening import (
    accept_damage,
    create_spare,
    open_set,
    raise_epoch,
    remember,
    remember_map,
    set_aside,
)
from services.store.core.owed_keeping import must_trim, trim
from services.store.core.procedure import Procedure
from services.store.core.reading import answer_reader, fence
from services.store.core.requests import FenceSet, SurveySet
from services.store.core.stored_set import Phase, ReaderWaiting, StoredSet, Waiting, code_of
from services.store.core.surveying import survey

REQUEST_BYTES = 256
"""What a request takes while it waits, beside its content, about."""


class SetLanes:
    """All that goes on in one set. Lives as long as the process; driven by `StoreCore`."""

    def __init__(self, name: SetName, limits: StoreLimits) -> None:
        self.the = StoredSet(name, limits)
        self.consolidator = Consolidator(self.the)
        self._running: dict[Lane, Procedure[None]] = {}
        self._parked: set[Lane] = set()
        """Lanes whose procedure waits for anything to happen, not for a job."""
        self._taken: list[Waiting] = []
        """What the journal lane's procedure is answering."""
        self._reader: ReaderWaiting | None = None

    @property
    def is_idle(self) -> bool:
        return not self._running and not self.the.waiting and not self.the.readers

    def request(self, stream: int, request: AnyStoreRequest | FenceSet | SurveySet) -> None:
        for part in _parts_of(request, self.the.limits.group_frames_max):
            waiting = Waiting(stream, part, _size_of(part))
            self.the.waiting.append(waiting)
            self.the.waiting_bytes += waiting.size

    def read(self, reader: ReaderWaiting) -> None:
        self.the.readers.append(reader)

    def close_stream(self, stream: int) -> None:
        """What waits for the stream is not waited for any more; what its writer asked for is done all the same."""
        self.the.unsent.pop(stream, None)
        self.the.silent_ticks.pop(stream, None)
        self.the.readers = [reader for reader in self.the.readers if reader.stream != stream]
        if self._running:
            self.the.closed_streams.add(stream)

    def chunk_sent(self, stream: int) -> None:
        self.the.silent_ticks.pop(stream, None)
        if self.the.unsent[stream] > 0:
            self.the.unsent[stream] -= 1

    def job_done(self, lane: Lane, results: Results) -> None:
        self._step(lane, lambda procedure: procedure.send(results))

    def job_failed(self, lane: Lane, error: DiskError) -> None:
        self._step(lane, lambda procedure: procedure.throw(error))

    def remember(self, is_last: bool) -> None:
        """Write the commit index if nothing else has told it to the disk lately; `is_last`: whatever was told."""
        the = self.the
        is_quiet = is_last or not the.appended_bytes
        is_busy = Lane.JOURNAL in self._running or bool(the.waiting)
        the.is_room_stale = not is_last  # Others fill the file system, too.
        the.silent_ticks.update(
            stream for stream, chunks in the.unsent.items() if chunks >= the.limits.chunks_unsent_max
        )
        the.unreadable.tick()
        if not is_last:  # Who stops does not catch up: closing the snapshot makes durable what it has.
            self.consolidator.tick(is_quiet and not is_busy)
        the.appended_bytes, the.has_no_spare = 0, False
        if is_busy or the.phase is not Phase.OPEN or the.damage:
            return
        if the.unremembered or (is_quiet and the.commit_index > the.meta.commit_index):
            self._start(Lane.JOURNAL, remember(the))

    def advance(self) -> list[StoreEffect]:
        """Start what can be started and go on with what waited; answers the effects since the last call."""
        the, progress = self.the, True
        while progress:
            progress = False
            if the.must_close and Lane.JOURNAL not in self._running:
                the.note("closed", the.must_close)
                the.close()
            if Lane.JOURNAL not in self._running and the.waiting:
                self._start(Lane.JOURNAL, self._next_procedure())
                progress = True
            if Lane.READ not in self._running and (reader := self._next_reader()) is not None:
                self._reader = reader
                self._start(Lane.READ, answer_reader(the, reader))
                progress = True
            if progress:
                continue
            if Lane.SPARE not in self._running and self._wants_spare():
                self._start(Lane.SPARE, create_spare(the))
            if Lane.SNAPSHOT not in self._running and must_trim(the):
                self._start(Lane.SNAPSHOT, trim(the))
            if Lane.SNAPSHOT not in self._running and self.consolidator.has_work():
                self._start(Lane.SNAPSHOT, self.consolidator.run())
            if self._parked:
                for lane in sorted(self._parked, key=lambda lane: lane.value):
                    self._step(lane, lambda procedure: procedure.send(()))
                    progress = progress or lane not in self._parked
        if not self._running:
            the.closed_streams.clear()
        effects, the.effects = the.effects, []
        return effects

    def _next_reader(self) -> ReaderWaiting | None:
        """The first that can be sent anything: a slow one holds nobody up."""
        the = self.the
        for place, reader in enumerate(the.readers):
            if the.unsent[reader.stream] < the.limits.chunks_unsent_max:
                return the.readers.pop(place)
        return None

    def _wants_spare(self) -> bool:
        """Once per segment: when half of it is used."""
        the, journal = self.the, self.the.journal
        if the.phase is not Phase.OPEN or journal is None or the.damage or the.spare is not None:
            return False
        if journal.is_last_closed or the.is_chain_changing or the.has_no_spare:
            return False
        return journal.room < the.limits.segment_bytes // 2

    def _next_procedure(self) -> Procedure[None]:
        """Take the next request, or as many appends as one group may hold."""
        the = self.the
        first = the.waiting.popleft()
        self._taken = [first]
        group_bytes = first.size
        if isinstance(first.request, AppendFrames):
            limits, frames = the.limits, len(first.request.frames)
            while the.waiting and isinstance(request := the.waiting[0].request, AppendFrames):
                frames += 1 + len(request.frames)
                size = group_bytes + the.waiting[0].size
                if frames > limits.group_frames_max or size > limits.group_bytes_max:
                    break
                self._taken.append(the.waiting.popleft())
                group_bytes = size
        the.waiting_bytes -= group_bytes
        return (
            append(the, self._taken) if isinstance(first.request, AppendFrames) else self._procedure_of(first)
        )

    def _procedure_of(self, waiting: Waiting) -> Procedure[None]:
        """Check the sender, then do what it asks."""
        the, stream, request = self.the, waiting.stream, waiting.request
        if isinstance(request, FenceSet):
            yield from fence(the, ReaderWaiting(stream, request))
            return
        if isinstance(request, SurveySet):
            ReaderWaiting(stream, request).reply(the, (yield from survey(the, request)))
            return
        if isinstance(request, OpenSet):
            yield from open_set(the, stream, request)
            return
        refusal = the.refusal_of(stream, request)
        if refusal is not None:
            the.refuse(stream, request, *refusal)
            return
        yield from raise_epoch(the, request.epoch)
        match request:
            case Truncate():
                yield from truncate(the, stream, request)
            case LoadState():
                yield from load_state(the, stream, request)
            case BeginInstall():
                yield from begin_install(the, stream, request)
            case InstallItems():
                yield from install_items(the, stream, request)
            case EndInstall():
                yield from end_install(the, stream, request)
            case RememberMap():
                yield from remember_map(the, stream, request)
            case SetAside():
                writer = the.writer
                yield from set_aside(the, stream, request)
                the.writer = writer
            case AcceptDamage():
                writer = the.writer
                yield from accept_damage(the, stream, request)
                the.writer = writer
            case AppendFrames():
                raise AssertionError("appends are taken in groups")
            case _:
                assert_never(request)

    def _start(self, lane: Lane, procedure: Procedure[None]) -> None:
        self._running[lane] = procedure
        self.the.busy.add(lane)
        self._step(lane, next)

    def _step(self, lane: Lane, resume: Callable[[Procedure[None]], tuple[object, ...]]) -> None:
        """Run a lane's procedure to its next job, its next wait or its end."""
        self._parked.discard(lane)
        try:
            steps = resume(self._running[lane])
        except StopIteration:
            self._finish(lane)
        except DiskError as error:
            self._fail(lane, error)
            self._finish(lane)
        else:
            if steps:
                self.the.effects.append(Perform(self.the.name, lane, steps))  # type: ignore[arg-type]
            else:
                self._parked.add(lane)

    def _refuse(self, waiting: Waiting, code: ErrorCode, message: str) -> None:
        if isinstance(waiting.request, FenceSet | SurveySet):
            ReaderWaiting(waiting.stream, waiting.request).refuse(self.the, code, message)
        else:
            self.the.refuse(waiting.stream, waiting.request, code, message)

    def _finish(self, lane: Lane) -> None:
        del self._running[lane]
        self.the.busy.discard(lane)
        if lane is Lane.JOURNAL:
            self._taken = []

    def _fail(self, lane: Lane, error: DiskError) -> None:
        the = self.the
        the.note(
            "disk failed", f"{lane.value} of disk {the.meta.disk}: {error.problem.value}: {error.message}"
        )
        message = f"set {the.name} on disk {the.meta.disk}: {error.message}"
        damage = the.unreadable.damage_in(error)
        if damage and lane is not Lane.JOURNAL:
            the.must_close = damage
        if damage and isinstance(error, Unusable):
            the.found_corrupt(damage, error.first, is_unusable=True)
        elif damage and isinstance(error.step, ReadSnapshotItems | ReadSnapshotValues):
            the.found_corrupt(damage, LogIndex(0), is_unusable=False)
        if isinstance(error.step, SnapshotStep):
            the.is_snapshot_known = False
            self.consolidator.give_up()
        match lane:
            case Lane.JOURNAL:
                the.close()
                for waiting in self._taken:
                    self._refuse(waiting, code_of(error.problem), message)
            case Lane.SNAPSHOT:
                self.consolidator.give_up()
            case Lane.READ:
                assert self._reader is not None
                self._reader.refuse(the, ErrorCode.UNAVAILABLE, message)
            case Lane.SPARE:
                pass
            case _:
                assert_never(lane)


def _parts_of(
    request: AnyStoreRequest | FenceSet | SurveySet, frames_max: int
) -> tuple[AnyStoreRequest | FenceSet | SurveySet, ...]:
    """The request; of one with very many frames, as many as have so many at most: its sender cannot tell it from these."""
    if not isinstance(request, AppendFrames) or len(request.frames) <= frames_max:
        return (request,)
    return tuple(
        replace(request, frames=request.frames[begin : begin + frames_max])
        for begin in range(0, len(request.frames), frames_max)
    )


def _size_of(request: AnyStoreRequest | FenceSet | SurveySet) -> int:
    match request:
        case AppendFrames():
            return REQUEST_BYTES + sum(map(len, request.frames))
        case InstallItems():
            return REQUEST_BYTES + sum(len(item.key) + len(item.value) for item in request.items)
        case RememberMap():
            return REQUEST_BYTES + len(request.map_bytes)
        case _:
            return REQUEST_BYTES
