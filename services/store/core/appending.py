"""Appending and cutting: group commit, repetitions, gaps, epochs (DESIGN 5, R2, R10).

Law: everything that arrived while the last group was being made durable is the next group, and one sync makes it durable. A
request is appended as a whole or not at all. A frame is appended only at the log's end; at or below it, a frame of the epoch
that stands there is answered as durable, which it is, and any other is refused: only `Truncate` cuts, and never what was
committed.
"""

from bisect import bisect_left
from collections.abc import Iterator

from lockstep.core.errors import ErrorCode
from lockstep.core.frames import BadFrame, FrameHeader, check_frame
from lockstep.core.ids import INDEX_MAX, Epoch, LogIndex
from lockstep.core.store_protocol import Appended, AppendFrames, Truncate, Truncated
from services.store.core.disk import (
    DeleteSegments,
    DiskError,
    DiskProblem,
    Lane,
    MeasureRoom,
    SyncSegment,
    WriteSegment,
)
from services.store.core.journal import Cut, Journal
from services.store.core.journal_format import (
    GROUP_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    encode_group_header,
    end_behind,
    salt_of,
)
from services.store.core.meta import Seal
from services.store.core.opening import create_next_segment, raise_epoch, seal
from services.store.core.procedure import Procedure
from services.store.core.stored_set import StoredSet, Waiting, is_higher

FRAME_INDEXES_MAX = 1 << 24
"""More than all records that a frame has room for: nobody's word brings a log near the last index of all."""
_Refusal = tuple[ErrorCode, str]


class _Group:
    """One group while it is put together: where the log would end behind it, and who is to be answered."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.end, self.epoch = journal.end, journal.epochs.last
        self.headers: list[FrameHeader] = []
        self.parts: list[bytes] = []
        self.body_bytes = 0
        self.accepted: list[tuple[int, AppendFrames]] = []

    def add(self, stream: int, request: AppendFrames) -> _Refusal | None:
        """Take a request in, or say why it is refused; then nothing of it is taken."""
        count, end, epoch = len(self.headers), self.end, self.epoch
        for data in request.frames:
            refusal = self._add_frame(data, request.epoch)
            if refusal is not None:
                del self.headers[count:], self.parts[count:]
                self.end, self.epoch = end, epoch
                return refusal
        self.body_bytes += sum(map(len, self.parts[count:]))
        if request.frames:
            self.accepted.append((stream, request))
        return None

    def _add_frame(self, data: bytes, epoch: Epoch) -> _Refusal | None:
        """Of a request of `epoch`."""
        try:
            header = check_frame(data)
        except BadFrame as error:
            return ErrorCode.INVALID_ARGUMENT, str(error)
        if len(data) != header.frame_bytes:
            return ErrorCode.INVALID_ARGUMENT, f"bytes behind {_name(header)}"
        if header.commit_index >= header.first:
            # Nobody has acknowledged it before it was written. A disk that believed this would miss it when it is read again.
            return ErrorCode.INVALID_ARGUMENT, f"{_name(header)} calls {header.commit_index} committed"
        if header.last - header.first >= FRAME_INDEXES_MAX or header.last > INDEX_MAX:
            return ErrorCode.INVALID_ARGUMENT, f"{_name(header)} takes more indexes than a log has to give"
        if header.epoch > epoch:
            return ErrorCode.ILLEGAL_STATE, f"{_name(header)} in a request of epoch {epoch}"
        if header.last <= self.end:
            if not self._epoch_at(header.first) == header.epoch == self._epoch_at(header.last):
                return ErrorCode.ILLEGAL_STATE, f"{_name(header)}: another epoch stands there"
            return None
        if header.first != self.end + 1:
            return ErrorCode.ILLEGAL_STATE, f"{_name(header)} does not follow {self.end}"
        if header.epoch < self.epoch:
            return ErrorCode.ILLEGAL_STATE, f"{_name(header)} behind epoch {self.epoch}"
        self.end, self.epoch = header.last, header.epoch
        self.headers.append(header)
        self.parts.append(data)
        return None

    def _epoch_at(self, index: LogIndex) -> Epoch | None:
        """Epoch of what stands, or will stand, at `index`, which is at or below the end."""
        if index <= self.journal.end:
            return self.journal.epoch_of(index)
        return self.headers[bisect_left(self.headers, index, key=_last_of)].epoch


def _last_of(header: FrameHeader) -> LogIndex:
    return header.last


def _name(header: FrameHeader) -> str:
    return f"frame {header.first}..{header.last} of epoch {header.epoch}"


def append(the: StoredSet, requests: list[Waiting]) -> Procedure[None]:
    """Make one group of `requests`, all of them `AppendFrames`, and answer them; a refused one ends the group."""
    group: _Group | None = None
    refused: tuple[int, AppendFrames, _Refusal] | None = None
    for place, waiting in enumerate(requests):
        request = waiting.request
        assert isinstance(request, AppendFrames)
        refusal = _refusal_of(the, waiting.stream, request)
        if refusal is None:
            assert the.journal is not None
            if is_higher(request.epoch, the):
                yield from raise_epoch(the, request.epoch)
            group = group or _Group(the.journal)
            refusal = group.add(waiting.stream, request)
        if refusal is None:  # What is committed in another log than this one says nothing of it.
            the.commit_told = max(the.commit_told, request.commit_index)
        else:
            refused = waiting.stream, request, refusal
            the.waiting.extendleft(reversed(requests[place + 1 :]))
            the.waiting_bytes += sum(behind.size for behind in requests[place + 1 :])
            del requests[place + 1 :]  # the caller answers for what is left in it if the disk fails
            break
    if group is not None and group.headers:
        try:
            yield from _write(the, group)
        except _NoRoom as error:
            for stream, request in group.accepted:
                the.refuse(stream, request, ErrorCode.STORE_FULL, error.message)
            group = None
    if group is not None and group.accepted:
        # All of them came from the writer: one answer covers them.
        stream, request = group.accepted[-1]
        end = the.acknowledged_end = group.journal.end
        the.reply(stream, Appended(request.set_name, request.epoch, request.incarnation, end, the.room))
    if refused is not None:
        stream, request, refusal = refused
        the.refuse(stream, request, *refusal)


def _refusal_of(the: StoredSet, stream: int, request: AppendFrames) -> _Refusal | None:
    """Why the request is refused whatever its frames are."""
    refusal = the.refusal_of(stream, request)
    if refusal is None and the.journal is None:
        return ErrorCode.ILLEGAL_STATE, "a snapshot is being installed"
    if refusal is None and the.damage and request.frames:
        return ErrorCode.ILLEGAL_STATE, f"the set is damaged: {the.damage}"
    return refusal


class _NoRoom(DiskError):
    """The next segment could not be created; nothing was written."""


def _write(the: StoredSet, group: _Group) -> Procedure[None]:
    journal = group.journal
    wanted = GROUP_HEADER_BYTES + group.body_bytes
    if wanted > journal.room:
        try:
            yield from create_next_segment(the, SEGMENT_HEADER_BYTES + wanted)
        except DiskError as error:
            if error.problem is DiskProblem.FULL:
                raise _NoRoom(error.problem, error.message, error.step) from error
            raise
    segment = journal.segments[-1]
    header = encode_group_header(
        salt_of(the.meta.disk), segment.number, segment.end, group.body_bytes, the.commit_index
    )
    end = end_behind(segment.end + wanted, journal.room - wanted, the.limits.page_bytes)
    write = WriteSegment(segment.number, segment.end, (header, *group.parts, end))
    if wanted > the.limits.piece_bytes:
        write = yield from _begin_writing(the, group, write)
    _, _, the.free_bytes = yield (write, SyncSegment(segment.number), MeasureRoom(the.roomy_bytes))
    journal.add_group(group.headers, segment.end + GROUP_HEADER_BYTES)
    the.appended_bytes += wanted


def _begin_writing(the: StoredSet, group: _Group, write: WriteSegment) -> Procedure[WriteSegment]:
    """All but the last piece, which is answered; each is durable before the next, and of a group that is not whole nothing
    counts. Behind each the writer is told once more what is durable: so he knows that the disk works.
    """
    stream, request = group.accepted[-1]
    pieces = _pieces(write, the.limits.piece_bytes)
    piece = next(pieces)
    for following in pieces:
        yield (piece, SyncSegment(piece.number))
        end = group.journal.end
        the.reply(stream, Appended(request.set_name, request.epoch, request.incarnation, end, the.room))
        piece = following
    return piece


def _pieces(write: WriteSegment, bytes_max: int) -> Iterator[WriteSegment]:
    """The same, in writes of so many bytes at most, each made when it is asked for."""
    offset, room = write.offset, bytes_max
    parts: list[bytes] = []
    for part in write.parts:
        begin = 0
        while begin < len(part):
            parts.append(part[begin : begin + room])
            begin, room = begin + len(parts[-1]), room - len(parts[-1])
            if not room:
                yield WriteSegment(write.number, offset, tuple(parts))
                offset, room, parts = offset + bytes_max, bytes_max, []
    if parts:
        yield WriteSegment(write.number, offset, tuple(parts))


def truncate(the: StoredSet, stream: int, request: Truncate) -> Procedure[None]:
    """Cut everything behind `request.after`, durably, by a seal."""
    journal = the.journal
    if journal is None or the.damage:
        message = f"the set is damaged: {the.damage}" if the.damage else "a snapshot is being installed"
        the.refuse(stream, request, ErrorCode.ILLEGAL_STATE, message)
        return
    if request.after < journal.end:
        plan = journal.plan_cut(request.after)
        if request.after < the.commit_index or plan is None:
            why = f"below the commit index {the.commit_index}" if plan else "not the end of a frame"
            the.refuse(stream, request, ErrorCode.ILLEGAL_STATE, f"{request.after} is {why}")
            return
        yield from _cut(the, journal, request.after, plan)
    the.reply(stream, Truncated(request.set_name, request.epoch, request.incarnation, journal.end))


def _cut(the: StoredSet, journal: Journal, after: LogIndex, plan: Cut) -> Procedure[None]:
    yield from the.change_chain()
    yield from the.wait_for(Lane.READ)
    the.acknowledged_end = min(the.acknowledged_end, after)
    try:
        void = (*plan.given_up, *([the.spare] if the.spare is not None else []))
        the.spare = None
        the.number_max += 1
        next_number = the.number_max
        yield from seal(the, Seal(plan.number, plan.end, next_number))
        journal.cut(after, plan, next_number)
    finally:
        the.is_chain_changing = False
    if void:
        yield (DeleteSegments(void),)
