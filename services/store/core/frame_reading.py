"""Reading frames for others than the writer: from the chain, and below it from segments that are owed (DESIGN 5, 7, R11).

Law: what a reader gets begins where it asked to begin and has no gap; if the frames are not there it is refused, and told the
lowest index that can be read. A segment that turns out to be bad is as good as gone: OUT_OF_RANGE, and not UNAVAILABLE, because
it will be as bad when it is asked for again; other disks may have it. Readers take turns, chunk by chunk, and nobody waits for a
slow one. While a chunk is read its segment is not deleted; else the consolidator goes on: there may always be somebody who reads.
"""

from dataclasses import replace

from lockstep.core.epoch_table import EpochTable
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import LogIndex, TimeMs
from services.store.core.disk import DiskError, DiskProblem
from services.store.core.journal import Journal
from services.store.core.journal_format import salt_of
from services.store.core.loading import read_run
from services.store.core.meta import OwedSegment
from services.store.core.procedure import Procedure
from services.store.core.requests import FramesRead, ReadFrames
from services.store.core.segment import Segment
from services.store.core.segment_scan import SegmentScan
from services.store.core.stored_set import ReaderWaiting, StoredSet

_Piece = tuple[tuple[bytes, ...], LogIndex]
"""Frames, and the last index that is done with."""


def read_frames(
    the: StoredSet, reader: ReaderWaiting, request: ReadFrames, journal: Journal
) -> Procedure[None]:
    """Answer with one chunk; what is left of the request waits for its next turn. `journal`: the set's, which is open."""
    # The first turn decides where the last one ends: a log that grows is not run after.
    until = the.commit_index
    # What lies in a snapshot is not here, however much of that is known to be committed.
    to = request.to_index or max(until, LogIndex(journal.lowest - 1))
    index, left_bytes = LogIndex((request.from_index or journal.lowest) - 1), request.bytes_max
    if index < to:
        if index + 1 < journal.lowest:
            _refuse(the, reader, journal)
            return
        chunk_bytes = min(left_bytes or the.limits.chunk_bytes, the.limits.chunk_bytes)
        piece = yield from _read_piece(the, journal, index, until, chunk_bytes, to)
        if piece is not None:
            frames, last = piece
            if reader.stream in the.closed_streams:
                return
            if not frames and request.from_index:
                _refuse(the, reader, journal)
                return
            sent_bytes = sum(map(len, frames))
            if frames:
                the.unsent[reader.stream] += 1
                reader.reply(the, FramesRead(frames, False))
            if last < to and not (left_bytes and left_bytes <= sent_bytes):
                first = LogIndex(last + 1) if frames else LogIndex(0)
                rest = replace(
                    request, from_index=first, to_index=to, bytes_max=max(left_bytes - sent_bytes, 0)
                )
                the.readers.append(ReaderWaiting(reader.stream, rest))
                return
    reader.reply(the, FramesRead((), True))


def _refuse(the: StoredSet, reader: ReaderWaiting, journal: Journal) -> None:
    lowest = journal.lowest
    reader.refuse(the, ErrorCode.OUT_OF_RANGE, f"the lowest index that is there is {lowest}", lowest)


def _read_piece(
    the: StoredSet, journal: Journal, index: LogIndex, until: LogIndex, bytes_max: int, to: LogIndex
) -> Procedure[_Piece | None]:
    """The next frames behind `index`; without any if those that are kept for readers turned out to be bad, None if there are none
    yet.
    """
    owed = journal.owed.holding(LogIndex(index + 1))
    try:
        if owed is not None:
            return (yield from _read_owed(the, journal, owed, index, bytes_max, to))
        run = journal.frames_behind(index, until, bytes_max, to)
        if run is None:
            return None
        the.segment_read = run.segment
        return (yield from read_run(run)), run.last
    finally:
        the.segment_read = None


def _read_owed(
    the: StoredSet, journal: Journal, owed: OwedSegment, index: LogIndex, bytes_max: int, to: LogIndex
) -> Procedure[_Piece]:
    the.segment_read = owed.number
    try:
        table = journal.owed.table(owed.number)
        if table is None:
            table = yield from _scan(the, owed)
            if owed in journal.owed.entries:
                journal.owed.remember(table)
        run = table.frames_behind(index, owed.last, bytes_max, to)
        assert run is not None, f"no frame behind {index} in {owed}"
        return (yield from read_run(run)), run.last
    except DiskError as error:
        if not the.unreadable.damage_in(error):
            raise
        journal.owed.give_up(owed.number)
        the.note("owed segment unreadable", error.message)
        return (), index


def _scan(the: StoredSet, owed: OwedSegment) -> Procedure[Segment]:
    """Where the segment's frames lie; raises `DiskError`, CORRUPT if they are not what was written."""
    alone = Journal(LogIndex(owed.first - 1), EpochTable(), TimeMs(0), owed.number)
    table = Segment(owed.number, owed.size_bytes)
    alone.segments.append(table)
    bad = yield from SegmentScan(alone, salt_of(the.meta.disk), owed.end, the.limits.scan_bytes).run()
    if not bad and (table.is_empty or (table.first, table.last) != (owed.first, owed.last)):
        bad = f"segment {owed.number} does not hold {owed.first}..{owed.last}"
    if bad:
        raise DiskError(DiskProblem.CORRUPT, bad)
    return table
