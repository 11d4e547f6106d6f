"""Scanning one segment file: reads groups and frames into the journal until something is not whole.

Law: a scan only tells what the bytes are. Frames that it accepted are whole, follow the frames before them, and lie in a group of
this segment; what that makes of the rest (torn or damaged) is `recovery`'s to decide. In a torn group there may be whole frames
of the segment that the file was before: the snapshot covers all of them, so they do not lie behind the frames before them.

One read may hold ten thousand frames: they are looked at in the lane's thread, and the event loop has only the reads.
"""

from collections.abc import Generator
from functools import partial
from typing import TypeVar

from lockstep.core.frames import HEADER_BYTES, BadFrame, FrameHeader, check_frame, decode_header
from lockstep.core.ids import LogIndex
from services.store.core.disk import DiskError, DiskProblem, ReadSegment
from services.store.core.journal import Journal
from services.store.core.journal_format import (
    GROUP_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    decode_group_header,
    decode_segment_header,
    has_group_header,
)
from services.store.core.procedure import Procedure, compute, read_bytes

T = TypeVar("T")
_Wanted = tuple[int, int]
"""Offset and length of bytes that have to be read first."""
_Look = Generator[_Wanted, None, T]
"""A look at bytes; goes on when what it wants was read. Returns a T."""


class SegmentScan:
    """One scan of the journal's last segment. Lives for one recovery, which runs its procedures."""

    def __init__(self, journal: Journal, salt: int, sealed_at: int | None, piece_bytes: int) -> None:
        self.journal, self.salt, self.sealed_at = journal, salt, sealed_at
        self.end = journal.segments[-1].size_bytes if sealed_at is None else sealed_at
        """Offset behind the last byte that counts."""
        self.commit_index = LogIndex(0)
        """Highest in the groups and frames that were read."""
        self.is_shortened = False
        """The file is smaller than it was made: this never happens by a crash."""
        self.is_headless = False
        """It has no valid header."""
        self.has_gap = False
        """Its first frame is whole and does not follow the log, all of which was synced before the segment was begun."""
        self._piece_bytes = self._ahead_bytes = piece_bytes
        self._data, self._data_at = b"", 0
        self._bad_at = 0
        self._wrong = ""
        """What the look at the segment found."""

    @property
    def segment_number(self) -> int:
        return self.journal.segments[-1].number

    def run(self) -> Procedure[str]:
        """Goes on to the end of what is whole; answers "" if an end (or the seal) follows, else what is wrong there."""
        look = self._look()
        while (wanted := (yield from compute(partial(_next, look)))) is not None:
            yield from self._read(*wanted)
        if self._wrong or self.sealed_at is not None or not (yield from self.has_group_behind()):
            return self._wrong
        return self._no_group()

    def has_group_behind(self) -> Procedure[bool]:
        """Whether a valid group begins anywhere behind the place where `run` stopped (in the whole file, if it did not run)."""
        segment = self.journal.segments[-1]
        offset = max(self._bad_at + 1, SEGMENT_HEADER_BYTES)
        while offset < segment.size_bytes:
            data = yield from read_bytes(ReadSegment(segment.number, offset, self._piece_bytes))
            if (yield from compute(partial(has_group_header, data, offset, self.salt, segment.number))):
                return True
            if len(data) < self._piece_bytes:
                return False
            offset += len(data) - GROUP_HEADER_BYTES + 1
        return False

    def _look(self) -> _Look[None]:
        self._wrong = yield from self._look_at_groups()

    def _look_at_groups(self) -> _Look[str]:
        """Answers as `run`, but for groups behind an end."""
        segment, where = self.journal.segments[-1], f"segment {self.segment_number}"
        size_bytes = decode_segment_header(
            (yield from self._at(0, SEGMENT_HEADER_BYTES)), self.salt, segment.number
        )
        self.is_headless = size_bytes is None
        if size_bytes is None:
            return f"{where} has no valid header"
        while segment.end < self.end:
            self._bad_at = at = segment.end
            head = yield from self._at(at, GROUP_HEADER_BYTES)
            group = decode_group_header(head, 0, self.salt, segment.number, at)
            if group is None:
                break
            # Whatever became of the group: what it calls committed was synced before it was written.
            self.commit_index = max(self.commit_index, group.commit_index)
            bad = yield from self._look_at_frames(at + GROUP_HEADER_BYTES, group.body_bytes)
            if bad:
                return f"{where} at {segment.end}: {bad}"
        self._bad_at = segment.end
        if self.sealed_at is not None:
            return (
                ""
                if segment.end == self.end
                else f"{where} was sealed at {self.end} and ends at {segment.end}"
            )
        self.is_shortened = segment.size_bytes < size_bytes
        if self.is_shortened:
            return f"{where} has {segment.size_bytes} bytes and was made with {size_bytes}"
        is_end = not any((yield from self._at(segment.end, GROUP_HEADER_BYTES)))
        return "" if is_end else self._no_group()

    def _no_group(self) -> str:
        return f"segment {self.segment_number} has no valid group at {self.journal.segments[-1].end}"

    def _look_at_frames(self, offset: int, body_bytes: int) -> _Look[str]:
        """The frames of one group; a seal may end the segment between two of them. Answers "" or what is wrong."""
        segment, until = self.journal.segments[-1], min(offset + body_bytes, self.end)
        if offset + body_bytes > segment.size_bytes:
            return "the group is cut short"
        while offset < until:
            try:
                header = decode_header((yield from self._at(offset, HEADER_BYTES)))
                if offset + header.frame_bytes > until:
                    return f"{_name(header)} is cut short"
                check_frame((yield from self._at(offset, header.frame_bytes)))
            except BadFrame as error:
                return str(error)
            bad = self._accept(offset, header)
            if bad:
                return bad
            offset += header.frame_bytes
            segment.end = offset
        segment.end = max(segment.end, offset)
        return ""

    def _accept(self, offset: int, header: FrameHeader) -> str:
        """Takes a whole frame if it continues the log. What the snapshot covers need not be complete, but ascends, segment after
        segment, too: what lies at the beginning of one, from before the file was taken again, is none of it.
        """
        journal, segment = self.journal, self.journal.segments[-1]
        expected = journal.end + 1
        before = next((earlier for earlier in reversed(journal.segments) if not earlier.is_empty), None)
        if before is not None and header.first <= before.last:
            return f"{_name(header)} behind {before.last}"
        if header.last > journal.base:
            if header.first != expected and not (journal.end == journal.base and header.first < expected):
                self.has_gap = segment.is_empty
                return f"{_name(header)} where {expected} should be"
            if header.epoch < journal.epochs.last:
                return f"{_name(header)} has epoch {header.epoch} behind {journal.epochs.last}"
            journal.epochs.observe(header.epoch, header.first, header.reign)
            journal.last_time_ms = max(journal.last_time_ms, header.time_ms)
        segment.add(offset, header)
        self.commit_index = max(self.commit_index, header.commit_index)
        return ""

    def _at(self, offset: int, length: int) -> _Look[bytes]:
        """`length` bytes from `offset` on, fewer at the end."""
        length = max(min(length, self.end - offset), 0)
        if offset < self._data_at or offset + length > self._data_at + len(self._data):
            yield offset, length
        return self._data[offset - self._data_at : offset - self._data_at + length]

    def _read(self, offset: int, length: int) -> Procedure[None]:
        """As much, and more of what follows: a large piece."""
        wanted = min(max(length, self._ahead_bytes), self.end - offset)
        try:
            self._data = yield from read_bytes(ReadSegment(self.segment_number, offset, wanted))
        except DiskError as error:
            if error.problem is not DiskProblem.UNREADABLE or wanted == length:
                raise
            # Frames that lie before the bad place, in the same piece, are part of the log.
            self._ahead_bytes = 0
            self._data = yield from read_bytes(ReadSegment(self.segment_number, offset, length))
        self._data_at = offset


def _next(look: _Look[None]) -> _Wanted | None:
    """Goes on to the next bytes that it wants; None: it is over."""
    return next(look, None)


def _name(header: FrameHeader) -> str:
    return f"frame {header.first}..{header.last}"
