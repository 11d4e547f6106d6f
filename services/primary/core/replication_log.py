"""The primary's end of the log: gives out indexes, gathers records into frames, keeps frames for the backups.

Law: an index is given out once, mostly to a record; records of one command go into one frame; a frame is serialised once and
never changed.
Frames behind the commit index are always kept: a member of the in-sync set may lack any of them, and nothing else could bring
them (R5, R8).
"""

from bisect import bisect_right
from collections import deque
from itertools import islice, takewhile

from lockstep.core.frames import FRAME_BYTES_MAX, Frame, LoggedRecord, encode_frame
from lockstep.core.ids import Epoch, LogIndex, TimeMs
from lockstep.core.records import Begin

_RECORD_BYTES = 64
"""What a record takes beside the content of its messages, about."""


class ReplicationLog:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(
        self,
        epoch: Epoch,
        frames: deque[Frame],
        frames_bytes: int,
        transients_from: LogIndex,
        end: LogIndex,
        commit_index: LogIndex,
        time_ms: int,
        reign: int,
    ) -> None:
        self.epoch = epoch
        self._reign = reign
        self.transients_from = transients_from
        """Frames up to here may lack their transient parts, and make nobody's memory whole (R12)."""
        self.end = end
        """Last index given out."""
        self.commit_index = LogIndex(0)
        self._time_ms = time_ms
        self._frames = frames
        self._retained_bytes = frames_bytes
        self._uncommitted: deque[tuple[LogIndex, int]] = deque()
        self._uncommitted_bytes = 0
        """Of the frames behind the commit index."""
        self.committed(commit_index)
        for frame in takewhile(lambda frame: frame.header.last > self.commit_index, reversed(frames)):
            self._uncommitted.appendleft((frame.header.last, _size(frame)))
            self._uncommitted_bytes += _size(frame)
        self._pending: list[tuple[LoggedRecord, bool] | None] = []
        self.pending_bytes = 0
        """Content of the records that are in no frame yet, with positions."""
        self._cuts: deque[tuple[LogIndex, int]] = deque()
        """Where frames end that are full already: (last index, content up to there of all that is pending)."""
        self.has_only_begins = True
        """All that is pending is begins of transactions, of which nobody hears before something is done in them."""

    @property
    def uncommitted_bytes(self) -> int:
        """Of everything behind the commit index, in frames or not."""
        return self._uncommitted_bytes + self.pending_bytes

    @property
    def framed_end(self) -> LogIndex:
        """Last index that is in a frame."""
        return LogIndex(self.end - len(self._pending))

    @property
    def retained_from(self) -> LogIndex:
        """Frames are kept for every index behind this one."""
        return LogIndex(self._frames[0].header.first - 1) if self._frames else self.framed_end

    def append(self, record: LoggedRecord, is_durable: bool, content_bytes: int) -> LogIndex:
        """Give the record its index. `content_bytes`: what its messages have, or the positions that it names take.

        What comes here has passed limits that keep a frame far below its own: more is a bug, and ends the reign before anybody
        has the record. Once in a frame it could neither leave nor be taken back.
        """
        before = self._cuts[-1][1] if self._cuts else 0
        size = self.pending_bytes - before + content_bytes
        assert size <= FRAME_BYTES_MAX, f"{type(record).__name__} of {content_bytes} bytes: {size} in a frame"
        if type(record) is not Begin:
            self.has_only_begins = False
        self._pending.append((record, is_durable))
        self.pending_bytes += content_bytes + _RECORD_BYTES
        self.end = LogIndex(self.end + 1)
        return self.end

    def skip(self, count: int) -> None:
        """Give out so many indexes that have no record. One with a record follows in the same command."""
        self._pending += [None] * count
        self.end = LogIndex(self.end + count)

    def end_command(self, bytes_max: int) -> None:
        """A command's records are all appended: if they fill a frame of `bytes_max`, it ends here."""
        before = self._cuts[-1][1] if self._cuts else 0
        if self.pending_bytes - before >= bytes_max:
            self._cuts.append((self.end, self.pending_bytes))

    def cut_frame(self, wall_ms: int) -> Frame | None:
        """Serialise the next records that are in no frame, all of them if they fill none; None when there is nothing.

        Its time never goes back (DESIGN 7).
        """
        if not self._pending:
            return None
        self._time_ms = max(self._time_ms, wall_ms)
        first = LogIndex(self.framed_end + 1)
        last, size = self._cuts.popleft() if self._cuts else (self.end, self.pending_bytes)
        records = self._pending[: last - first + 1]
        frame = encode_frame(
            self.epoch, first, self.commit_index, TimeMs(self._time_ms), records, size, self._reign
        )
        del self._pending[: len(records)]
        self.has_only_begins = not self._pending or self.has_only_begins
        self.pending_bytes -= size
        if self._cuts:
            self._cuts = deque((end, total - size) for end, total in self._cuts)
        self._frames.append(frame)
        frame_bytes = _size(frame)
        self._retained_bytes += frame_bytes
        self._uncommitted.append((frame.header.last, frame_bytes))
        self._uncommitted_bytes += frame_bytes
        return frame

    def committed(self, commit_index: LogIndex) -> None:
        """The commit index moved; it never goes back."""
        self.commit_index = max(self.commit_index, commit_index)
        while self._uncommitted and self._uncommitted[0][0] <= self.commit_index:
            self._uncommitted_bytes -= self._uncommitted.popleft()[1]

    def frames_after(self, index: LogIndex) -> deque[Frame]:
        """The frames behind `index`, which is the end of a frame and not before `retained_from`."""
        assert index >= self.retained_from, (index, self.retained_from)
        begin = bisect_right(self._frames, index, key=_last_of)
        found = deque(islice(self._frames, begin, None))
        assert not found or found[0].header.first > index, "a subscription begins between frames"
        return found

    def forget(self, up_to: LogIndex, bytes_max: int) -> None:
        """Drop the oldest frames at or below `up_to` (at most the commit index) while more than `bytes_max` are kept."""
        limit = min(up_to, self.commit_index)
        while self._retained_bytes > bytes_max and self._frames and self._frames[0].header.last <= limit:
            frame = self._frames.popleft()
            self._retained_bytes -= _size(frame)


def _size(frame: Frame) -> int:
    return len(frame.durable) + len(frame.transient)


def _last_of(frame: Frame) -> LogIndex:
    return frame.header.last
