"""What a backup says to its primary: one subscription after the other, each with its heartbeats (R8).

Law: what is acknowledged counts for the memory that says it. A vote "no" is said once in a subscription, for it may be lost with
that, and only on what is still open.
"""

from collections.abc import Iterator

from lockstep.core.clock import Now
from lockstep.core.effects import CloseSubscription, OpenSubscription, TellPrimary
from lockstep.core.epoch_table import LogOutline
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName, TransactionKey
from lockstep.core.log_copy import LogCopy
from lockstep.core.replication import Acknowledge, Refuse, Subscribe
from services.backup.core.settings import BackupSettings


class PrimaryWords:
    """Lives as long as its backup core; makes effects and knows how long the primary has been silent."""

    def __init__(
        self,
        set_name: SetName,
        epoch: Epoch,
        broker: BrokerId,
        incarnation: Incarnation,
        first_stream: int,
        settings: BackupSettings,
    ) -> None:
        self._set_name = set_name
        self.epoch = epoch
        self._broker = broker
        self._incarnation = incarnation
        self._settings = settings
        self.stream = first_stream
        """Number of the present or last subscription."""
        self.heard_ms = 0
        """When the primary said something last, on CLOCK_BOOTTIME; 0: never."""
        self._silent_from_ms = 0
        """From when on its silence counts: its last word, or the last subscription, which it may not have heard."""
        self._said_ms = 0
        self._patience_ms = self._misses_ms
        self._refused: set[TransactionKey] = set()
        """What was voted on in this subscription."""

    @property
    def _misses_ms(self) -> int:
        return self._settings.heartbeat_ms * self._settings.heartbeat_misses

    def subscribe(
        self,
        primary: BrokerId,
        disk: DiskId,
        copy: LogCopy,
        commit_index: LogIndex,
        is_whole: bool,
        is_ours: bool,
        now: Now,
    ) -> OpenSubscription:
        """Open the next stream; `commit_index` is the highest that memory and disk know, or cannot cut. Without `is_ours` the log
        is told as an empty one: that of the primary is not to be compared with it.
        """
        self.stream += 1
        self._silent_from_ms = self._said_ms = now.boottime_ms
        self._refused.clear()
        outline = copy.outline() if is_ours else LogOutline((), LogIndex(0))
        subscribe = Subscribe(
            self._set_name,
            self.epoch,
            self._broker,
            disk,
            self._incarnation,
            outline.end,
            outline.epochs,
            commit_index,
            is_whole,
            copy.state.applied,
            takes_blocks=True,
            reigns=outline.reigns,
        )
        return OpenSubscription(self._set_name, self.stream, primary, subscribe)

    def close(self) -> CloseSubscription:
        return CloseSubscription(self._set_name, self.stream)

    def acknowledge(self, log_end: LogIndex, now: Now) -> TellPrimary:
        self._said_ms = now.boottime_ms
        said = Acknowledge(self._set_name, self.epoch, self._broker, self._incarnation, log_end)
        return TellPrimary(self._set_name, self.stream, said)

    def refuse_open(self, copy: LogCopy) -> Iterator[TellPrimary]:
        """Vote no on every open transaction that brings content: its `prepare` could find no place here (DESIGN 3)."""
        for buffer in copy.state.transactions.open():
            if buffer.publishes and buffer.key not in self._refused:
                self._refused.add(buffer.key)
                reason = "the store's reserve is exhausted"
                said = Refuse(self._set_name, self.epoch, self._broker, self._incarnation, buffer.key, reason)
                yield TellPrimary(self._set_name, self.stream, said)

    # --- time ---

    def heard(self, now: Now) -> None:
        self.heard_ms = self._silent_from_ms = now.boottime_ms

    def was_accepted(self) -> None:
        """From now on heartbeats come."""
        self._patience_ms = self._misses_ms

    def was_not_answered(self) -> None:
        """A primary that makes a big snapshot is busy: the next attempt waits longer, or it would make it anew for ever."""
        self._patience_ms = min(2 * self._patience_ms, self._settings.subscribe_patience_ms_max)

    def silent_ms(self, now: Now) -> int:
        """How long the primary has been silent, if that is too long; otherwise 0."""
        silent_ms = now.boottime_ms - self._silent_from_ms
        return silent_ms if silent_ms > self._patience_ms else 0

    def is_heartbeat_due(self, now: Now) -> bool:
        return now.boottime_ms - self._said_ms >= self._settings.heartbeat_ms
