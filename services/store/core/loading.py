"""Sending what is stored: the whole state to the writer, parts of it to readers (DESIGN 5, R11).

Law: nothing whose checksum is wrong is sent, and nothing behind it as if it were complete. While something is loaded, the
consolidator waits, so that snapshot and frames fit each other. At most a few chunks wait for a slow receiver; then loading waits
too, and with it whoever wants to open or fence the set: for a receiver that takes nothing not for ever.
"""

from functools import partial

from lockstep.core.errors import ErrorCode
from lockstep.core.frames import (
    BadFrame,
    Frame,
    FrameHeader,
    IndexedRecord,
    check_frame,
    decode_header,
    decode_records,
)
from lockstep.core.ids import LogIndex
from lockstep.core.store_protocol import LoadState, OpenSet, StateChunk, StateItem, StateLoaded
from services.store.core.blocks import scan_of
from services.store.core.disk import DiskError, DiskProblem, Lane, ReadSegment, Unusable
from services.store.core.procedure import Procedure, compute, read_bytes
from services.store.core.requests import FenceSet, SurveySet
from services.store.core.segment import FramesAt
from services.store.core.stored_set import StoredSet


def load_state(the: StoredSet, stream: int, request: LoadState) -> Procedure[None]:
    """The snapshot's items, in blocks for whoever takes these, then the frames behind it."""
    journal = the.journal
    if journal is None:
        the.refuse(stream, request, ErrorCode.ILLEGAL_STATE, "a snapshot is being installed")
        return
    the.loads += 1
    try:
        yield from the.wait_for(Lane.SNAPSHOT)
        scan = yield from scan_of(the)
        is_last = scan.is_empty
        read = scan.blocks if request.takes_blocks else scan.next
        while not is_last:
            items, is_last = yield from read(the.limits.chunk_bytes)
            if items and not (yield from _send(the, stream, request, items, ())):
                return
        index = scan.index
        while (run := journal.frames_behind(index, journal.end, the.limits.chunk_bytes)) is not None:
            frames = yield from read_run(run)
            if not (yield from _send(the, stream, request, (), frames)):
                return
            index = run.last
        loaded = StateLoaded(request.set_name, request.epoch, request.incarnation, scan.index, journal.end)
        the.reply(stream, loaded)
    finally:
        the.loads -= 1


def _send(
    the: StoredSet,
    stream: int,
    request: LoadState,
    items: tuple[StateItem, ...],
    frames: tuple[bytes, ...],
) -> Procedure[bool]:
    """Answers whether to go on, once there is room for another chunk."""
    the.reply(stream, StateChunk(request.set_name, request.epoch, request.incarnation, items, frames))
    the.unsent[stream] += 1
    while stream not in the.closed_streams and the.unsent[stream] >= the.limits.chunks_unsent_max:
        if the.is_hung(stream) and _is_waited_for(the):
            the.refuse(
                stream, request, ErrorCode.UNAVAILABLE, "others waited, and nothing was taken for long"
            )
            return False
        yield ()
    return stream not in the.closed_streams


def _is_waited_for(the: StoredSet) -> bool:
    """By whoever may be the next writer, or looks for one."""
    return any(isinstance(waiting.request, OpenSet | FenceSet | SurveySet) for waiting in the.waiting)


def read_run(run: FramesAt) -> Procedure[tuple[bytes, ...]]:
    """The frames of a run, verified; raises `DiskError`, CORRUPT if one is not what it was when the journal was read."""
    data = yield from read_bytes(ReadSegment(run.segment, run.offset, run.length))
    return (yield from compute(partial(_frames_in, data, run)))


def _frames_in(data: bytes, run: FramesAt) -> tuple[bytes, ...]:
    frames = tuple(data[begin:end] for begin, end in run.spans)
    last = LogIndex(0)
    for frame, (begin, _) in zip(frames, run.spans, strict=True):
        last = checked_at(run, begin, frame).last
    if last != run.last:
        raise DiskError(DiskProblem.CORRUPT, f"segment {run.segment}: frame {last} where {run.last} was")
    return frames


def checked_at(run: FramesAt, begin: int, frame: bytes) -> FrameHeader:
    """The header of one of the run's frames, which is verified; raises `DiskError`, CORRUPT, with the place if it is none."""
    try:
        return check_frame(frame)
    except BadFrame as error:
        place = f"segment {run.segment}, byte {run.offset + begin}, up to index {run.last}"
        raise DiskError(DiskProblem.CORRUPT, f"{place}: {error}") from error


def records_in(durable: bytes) -> list[IndexedRecord]:
    """Those of a frame that was verified; raises `Unusable` for what is no record."""
    header = decode_header(durable)
    try:
        return decode_records(Frame(header, durable, b""))
    except BadFrame as error:
        what = f"frame {header.first}..{header.last} cannot be decoded: {error}"
        raise Unusable(header.first, what) from error
