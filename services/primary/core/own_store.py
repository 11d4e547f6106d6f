"""The primary's own store: frames out, in groups, and what is durable back (DESIGN 5).

Law: at most `frames_in_flight_max` frames are on their way; what arrives meanwhile is the next frame. The store's log end says
what it has; a store that lost what it had acknowledged ends the reign (R10), one that only restarted gets the rest again. One
that fails for long, or is full, ends it as soon as a member in sync has what it does not take: that one can go on (R6). One that
takes what it is sent for no frames, and again when it is sent once more, ends it, too: the memory that this is of is no good.
"""

from collections import deque
from collections.abc import Callable

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member
from lockstep.core.effects import Note, TellStore
from lockstep.core.epoch_table import agreement
from lockstep.core.errors import ErrorCode
from lockstep.core.frames import Frame
from lockstep.core.ids import LogIndex
from lockstep.core.inputs import StoreConnected, StoreLost, StoreSaid
from lockstep.core.owed_frames import OwedFrames
from lockstep.core.store_protocol import (
    AnyStoreRequest,
    Appended,
    AppendFrames,
    OpenSet,
    SetOpened,
    StoreRefused,
    Truncate,
)
from services.primary.core.context import Context
from services.primary.core.membership import Membership
from services.primary.core.reign import DiskDamaged, ReignOver


class OwnStore:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(
        self, context: Context, membership: Membership, is_subscribed: Callable[[Member], bool]
    ) -> None:
        self._context = context
        self._membership = membership
        self._is_subscribed = is_subscribed
        self._own: Member = membership.own
        self._in_flight: deque[LogIndex] = deque()
        """Last indexes of frames on their way."""
        self._owed: OwedFrames | None = None
        """What it lacked when it was opened, and what came behind that, until all of it is on its way."""
        self._is_open = False
        self._retry_ms = 0
        """When to open it again after a refusal; 0: not."""
        self._failing_since_ms: int | None = None
        """Since when it has failed to take anything."""
        self._is_disputed = False
        """It has taken what it was sent for no frames, and nothing since."""
        self._told_commit = LogIndex(0)
        self._said_ms = 0
        """When it was told something last, on CLOCK_BOOTTIME."""

    @property
    def takes_frames(self) -> bool:
        """Whether another frame may be sent now."""
        if self._owed is not None:
            return False
        return self._is_open and len(self._in_flight) < self._context.settings.frames_in_flight_max

    def open(self) -> None:
        """Become the store's writer in this epoch; it answers with its log's end."""
        self._is_open, self._owed = False, None
        self._retry_ms = 0
        set_name = self._context.state.set_name
        self._tell(OpenSet(set_name, self._context.epoch, self._own.incarnation))

    def send(self, frame: Frame) -> None:
        """One more frame; while the store is not open it is only remembered: the log has it."""
        if self._owed is not None:
            self._owed.put(frame)
        elif self._is_open:
            self._in_flight.append(frame.header.last)
            self._append((frame.durable,))

    def handle(self, given: StoreSaid | StoreConnected | StoreLost, now: Now) -> None:
        """Take what the stream to the store brings; raises `ReignOver`."""
        match given:
            case StoreLost():
                self._is_open, self._owed = False, None
                self._retry_ms = 0
            case StoreConnected():
                self.open()
            case StoreSaid(answer=answer) if (answer.epoch, answer.incarnation) != (
                self._context.epoch,
                self._own.incarnation,
            ):
                pass
            case StoreSaid(answer=Appended() as appended) if self._is_open:
                if appended.log_end > self._membership.durable[self._own]:
                    self._failing_since_ms = None  # A piece of what is big is nothing yet.
                    self._is_disputed = False
                self._context.is_store_low = appended.free_bytes < self._context.settings.reserve_bytes
                self._durable(appended.log_end)
            case StoreSaid(answer=SetOpened() as opened):
                self._opened(opened)
            case StoreSaid(answer=StoreRefused() as refused):
                self._refused(refused, now)
            case _:
                pass

    def tick(self, now: Now) -> None:
        """Open it again when it is time; let it know the commit index when nothing else does, and have it refuse what it must."""
        if self._retry_ms and now.boottime_ms >= self._retry_ms:
            self.open()
        is_told = self._told_commit >= self._context.writer.log.commit_index
        is_due = now.boottime_ms - self._said_ms >= self._context.settings.store_word_ms
        if self._is_open and (is_due or not is_told):
            self._append(())

    def _opened(self, opened: SetOpened) -> None:
        """The disk is this log up to where the two agree: the rest missed a cut, and goes."""
        context, log = self._context, self._context.writer.log
        agreed = agreement(context.state.epochs.outline(log.framed_end), opened.outline)
        needed = max(self._membership.durable[self._own], log.retained_from, opened.commit_index)
        if opened.disk != self._own.disk or opened.damage or agreed < needed:
            details = opened.damage or f"the own disk ends at {opened.log_end}, agreed {agreed}"
            self._note("damaged", details)
            has_lost = agreed < self._membership.durable[self._own] and not opened.is_unusable
            if opened.disk == self._own.disk and has_lost:
                raise DiskDamaged(f"it lost what it had acknowledged: {details}")
            raise ReignOver("the own store lost what it had acknowledged")
        self._is_open = True
        self._in_flight.clear()
        if agreed < opened.log_end:
            set_name = context.state.set_name
            self._tell(Truncate(set_name, context.epoch, self._own.incarnation, agreed))
        self._owed = OwedFrames(log.frames_after(agreed))
        self._durable(agreed)

    def _refused(self, refused: StoreRefused, now: Now) -> None:
        if refused.highest_epoch > self._context.epoch:
            raise ReignOver(f"the own store has seen epoch {refused.highest_epoch}")
        self._note("store refused", f"{refused.code.name}: {refused.message}")
        if refused.code is ErrorCode.INVALID_ARGUMENT and self._is_open:
            if self._is_disputed:
                # It was sent twice: what memory has of the log is no log. Others have what was acknowledged.
                raise ReignOver(
                    f"the own store takes what memory has of the log for no frames: {refused.message}"
                )
            self._is_disputed = True
        self._is_open, self._owed = False, None
        lacks_anything = self._membership.durable[self._own] < self._context.writer.log.end
        # A full disk that lacks nothing has refused a map, say: it may still have room for what comes.
        if refused.code is ErrorCode.UNAVAILABLE or (refused.code is ErrorCode.STORE_FULL and lacks_anything):
            self._failing(now)
        self._retry_ms = now.boottime_ms + self._context.settings.store_retry_ms

    def _failing(self, now: Now) -> None:
        """R6: a primary that cannot commit makes way, to a member that has on its disk all that was sent. So two full disks do
        not send the role to and fro: each time the one has taken what the other could not.
        """
        since_ms = self._failing_since_ms = self._failing_since_ms or now.boottime_ms
        self._make_way("does not write", since_ms, self._context.writer.log.framed_end, now)

    def cannot_read(self, since_ms: int, now: Now) -> None:
        """It has not read since then what was asked for. R6: a primary that cannot deliver makes way; raises `ReignOver`."""
        self._make_way("does not read", since_ms, self._context.writer.log.commit_index, now)

    def _make_way(self, what: str, since_ms: int, up_to: LogIndex, now: Now) -> None:
        """Stop, if it was borne with for long, and a member of the set is there that has everything up to `up_to`."""
        if now.boottime_ms - since_ms <= self._context.settings.store_patience_ms:
            return
        membership = self._membership
        for entry in membership.set_map.in_sync:
            has_it = membership.durable.get(entry, LogIndex(0)) >= up_to
            if entry != self._own and has_it and self._is_subscribed(entry):
                raise ReignOver(f"the own store {what}, and {entry.broker} is in sync")

    def _durable(self, log_end: LogIndex) -> None:
        durable = self._membership.durable
        durable[self._own] = max(durable[self._own], log_end)
        while self._in_flight and self._in_flight[0] <= log_end:
            self._in_flight.popleft()
        if self._owed is not None:
            self._send_owed(self._owed, log_end)

    def _send_owed(self, owed: OwedFrames, durable: LogIndex) -> None:
        if parts := owed.request(durable):
            self._in_flight.append(owed.sent)
            self._append(parts)
        if not owed:
            self._owed = None

    def _append(self, frames: tuple[bytes, ...]) -> None:
        context = self._context
        self._told_commit, self._said_ms = context.writer.log.commit_index, context.now.boottime_ms
        self._tell(
            AppendFrames(
                context.state.set_name, context.epoch, self._own.incarnation, frames, self._told_commit
            )
        )

    def _tell(self, request: AnyStoreRequest) -> None:
        self._context.effects.append(TellStore(self._context.state.set_name, request))

    def _note(self, event: str, details: str) -> None:
        self._context.effects.append(Note(self._context.state.set_name, event, details))
