"""Keeping the log: the epoch's own record, frames out to the own store and the backups, and what is committed of them (R3, R5).

Law: an index is committed when it is durable at every counted member. Nothing of an earlier epoch is committed by itself: only
what lies before this epoch's record, together with it.
"""

from collections import deque
from collections.abc import Iterator

from lockstep.core.clock import Now
from lockstep.core.effects import WakeAt
from lockstep.core.ids import BrokerId, LogIndex
from lockstep.core.records import EpochBegins
from services.primary.core.backups import Backups
from services.primary.core.context import Context
from services.primary.core.gathering import Gathering
from services.primary.core.membership import Membership
from services.primary.core.own_store import OwnStore

_FRAME_COST = 1000
"""Of making one, which is full."""


class LogKeeping:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(
        self,
        context: Context,
        membership: Membership,
        store: OwnStore,
        backups: Backups,
        gathering: Gathering,
    ) -> None:
        self._context = context
        self._membership = membership
        self._store = store
        self._backups = backups
        self._gathering = gathering
        self._log = context.writer.log
        self.epoch_index = LogIndex(0)
        """Of the epoch's own record; 0: not appended yet."""
        self.committed_ms = 0
        """When the commit index moved last, on CLOCK_BOOTTIME; 0: in no reign of this process."""
        self.is_serving = False
        """The epoch's own record is committed."""
        self._is_hurried = False
        self._pending_since_ms = 0
        """When the oldest record was appended that found no frame at once; 0: there is none."""
        self._under_way: deque[tuple[LogIndex, int, int]] = deque()
        """Frames that are not committed: (last index, when the oldest record was appended, when it left)."""
        self._wakes_ms = 0
        """When the driver was asked last to wake this core."""

    @property
    def waits_since_ms(self) -> int:
        """When the oldest record was appended that is not committed; 0: all are. Begins that wait for company do not count."""
        return self._under_way[0][1] if self._under_way else self._pending_since_ms

    @property
    def waits_for_others(self) -> bool:
        """All that was appended has left, and who has acknowledged by now is not enough to commit more of it."""
        log, membership = self._log, self._membership
        return (
            self.is_serving
            and log.framed_end == log.end
            and log.commit_index < log.end
            and not membership.guards
            and membership.commit_candidate() <= log.commit_index
        )

    def begin(self, broker: BrokerId, is_restarted: bool, is_handed_over: bool) -> None:
        """Append the epoch's first record."""
        record = EpochBegins(None, self._context.epoch, broker, is_restarted, is_handed_over)
        self.epoch_index = self._context.writer.append(record, True)

    def hurry(self) -> None:
        """Send what there is with the next `cut_due`, however little."""
        self._is_hurried = True

    def cut_due(self, now: Now, waited_for: LogIndex = LogIndex(0)) -> None:
        """Send what was appended, as far as the own store takes frames.

        Begins alone leave with what comes behind them, unless somebody waits for an index up to `waited_for`. Little leaves when
        what left before it is committed, and all but what fills a frame when who is about to come back has come: a frame costs
        every replica the same, however much is in it. Before the epoch serves nothing waits: what is old is committed with the
        epoch's own record alone.
        """
        if self._is_worth_a_frame(now, waited_for):
            self._is_hurried = False
            while self._store.takes_frames and self._cut_frame(now):
                pass
        self._note_pending(now)

    def gathers(self, now: Now) -> bool:
        """Whether what was appended is waiting for who is about to come back, and fills no frame: none leaves before that."""
        log = self._log
        if (
            not self.is_serving
            or log.framed_end == log.end
            or log.pending_bytes >= self._context.settings.frame_bytes_max
            or not self._waits_for_returns(now)
        ):
            return False
        self._note_pending(now)
        return True

    def _note_pending(self, now: Now) -> None:
        if not self._pending_since_ms and not self._log.has_only_begins:
            self._pending_since_ms = now.boottime_ms

    def _waits_for_returns(self, now: Now) -> bool:
        until_ms = self._gathering.until(now.boottime_ms)
        if until_ms:
            self._wake_at(until_ms)
        return bool(until_ms)

    def _is_worth_a_frame(self, now: Now, waited_for: LogIndex) -> bool:
        log, settings = self._log, self._context.settings
        if not self.is_serving or log.pending_bytes >= settings.frame_bytes_max:
            return True
        if self._waits_for_returns(now):
            return False
        if self._is_hurried:
            return True
        if log.has_only_begins and waited_for <= log.framed_end:
            return False
        return log.commit_index >= log.framed_end or log.pending_bytes >= settings.gathered_bytes

    def _wake_at(self, boottime_ms: int) -> None:
        if self._log.framed_end < self._log.end and self._wakes_ms < boottime_ms:
            self._wakes_ms = boottime_ms
            self._context.effects.append(WakeAt(self._context.state.set_name, boottime_ms))

    def cut_all(self, now: Now) -> None:
        """Send all that was appended: a subscription begins between frames."""
        while self._cut_frame(now):
            pass

    def cut_in_steps(self) -> Iterator[int]:
        """The same, in steps that say what they cost (`Alone`)."""
        while self._cut_frame(self._context.now):
            yield _FRAME_COST

    def _cut_frame(self, now: Now) -> bool:
        frame = self._log.cut_frame(now.wall_ms)
        if frame is None:
            return False
        now_ms = now.boottime_ms
        self._under_way.append((frame.header.last, self._pending_since_ms or now_ms, now_ms))
        self._pending_since_ms = 0
        self._context.state.close_frame(frame.header)
        self._backups.broadcast(frame)
        self._store.send(frame)
        return True

    def commit(self, now: Now) -> bool:
        """Find what is committed by now; answers whether that is the epoch's own record, with which serving begins."""
        context, log = self._context, self._log
        candidate = self._membership.commit_candidate()
        if candidate <= log.commit_index or candidate < self.epoch_index:
            return False
        was_serving, self.is_serving = self.is_serving, True
        self.committed_ms = now.boottime_ms
        log.committed(candidate)
        self._measure(candidate, now.boottime_ms)
        context.dispatch.committed(candidate)
        context.tx_queues.release(candidate)
        log.forget(candidate, context.settings.retained_bytes_max)
        return not was_serving

    def _measure(self, commit_index: LogIndex, now_ms: int) -> None:
        under_way = self._under_way
        while under_way and under_way[0][0] <= commit_index:
            _, appended_ms, left_ms = under_way.popleft()
            self._context.figures.commit_seconds.observe((now_ms - appended_ms) / 1000)
            self._gathering.frame_committed(now_ms - left_ms)
