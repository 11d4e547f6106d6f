"""Scanning one segment file: reads groups and frames into the journal until something is not whole.

Law: a scan only tells what the bytes are. Frames that it accepted are whole, follow the frames before them, and lie in a group of
this segment; what that makes of the rest (torn or damaged) is `recovery`'s to decide. In a torn group there may be whole frames
of the segment that the file was before: the snapshot covers all of them, so they do not lie behind the frames before them.
"""

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
from services.store.core.procedure import Procedure, read_bytes


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

    @property
    def segment_number(self) -> int:
        return self.journal.segments[-1].number

    def run(self) -> Procedure[str]:
        """Goes on to the end of what is whole; answers "" if an end (or the seal) follows, else what is wrong there."""
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
            bad = yield from self._read_frames(at + GROUP_HEADER_BYTES, group.body_bytes)
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
        if (yield from self._is_end(segment.end)):
            return ""
        return f"{where} has no valid group at {segment.end}"

    def has_group_behind(self) -> Procedure[bool]:
        """Whether a valid group begins anywhere behind the place where `run` stopped (in the whole file, if it did not run)."""
        segment = self.journal.segments[-1]
        offset = max(self._bad_at + 1, SEGMENT_HEADER_BYTES)
        while offset < segment.size_bytes:
            data = yield from read_bytes(ReadSegment(segment.number, offset, self._piece_bytes))
            if has_group_header(data, offset, self.salt, segment.number):
                return True
            if len(data) < self._piece_bytes:
                return False
            offset += len(data) - GROUP_HEADER_BYTES + 1
        return False

    def _read_frames(self, offset: int, body_bytes: int) -> Procedure[str]:
        """The frames of one group; a seal may end the segment between two of them. Answers "" or what is wrong."""
        segment, until = self.journal.segments[-1], min(offset + body_bytes, self.end)
        if offset + body_bytes > segment.size_bytes:
            return "the group is cut short"
        while offset < until:
            try:
                header = decode_header((yield from self._at(offset, HEADER_BYTES)))
                if offset + header.frame_bytes > until:
                    return f"frame {header.first}..{header.last} is cut short"
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
        name, expected = f"frame {header.first}..{header.last}", journal.end + 1
        before = next((earlier for earlier in reversed(journal.segments) if not earlier.is_empty), None)
        if before is not None and header.first <= before.last:
            return f"{name} behind {before.last}"
        if header.last > journal.base:
            if header.first != expected and not (journal.end == journal.base and header.first < expected):
                self.has_gap = segment.is_empty
                return f"{name} where {expected} should be"
            if header.epoch < journal.epochs.last:
                return f"{name} has epoch {header.epoch} behind {journal.epochs.last}"
            journal.epochs.observe(header.epoch, header.first, header.reign)
            journal.last_time_ms = max(journal.last_time_ms, header.time_ms)
        segment.add(offset, header)
        self.commit_index = max(self.commit_index, header.commit_index)
        return ""

    def _is_end(self, offset: int) -> Procedure[bool]:
        """Whether zeros are where a group would begin, and no group behind them."""
        head = yield from self._at(offset, GROUP_HEADER_BYTES)
        if any(head):
            return False
        is_damaged = yield from self.has_group_behind()
        return not is_damaged

    def _at(self, offset: int, length: int) -> Procedure[bytes]:
        """`length` bytes from `offset` on, fewer at the end; reads in large pieces."""
        length = max(min(length, self.end - offset), 0)
        if offset < self._data_at or offset + length > self._data_at + len(self._data):
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
        return self._data[offset - self._data_at : offset - self._data_at + length]
