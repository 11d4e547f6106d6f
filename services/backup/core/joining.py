"""Joining: the snapshot that a primary sends to a newcomer, on its way into memory and store (R8, R12).

Law: a whole snapshot replaces disk and memory; a memory snapshot is laid over the durable state at its index, and until then
only durable records are applied. The newcomer counts for nothing before its memory is whole, so it acknowledges nothing.
"""

from lockstep.core.ids import LogIndex
from lockstep.core.log_copy import LogCopy
from lockstep.core.replication import SubscriptionAccepted
from lockstep.core.restoration import Restoration
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import StateItem
from services.backup.core.settings import BackupSettings


class Joining:
    """Lives from `SubscriptionAccepted` to the last chunk; driven by the backup core."""

    def __init__(self, accepted: SubscriptionAccepted, settings: BackupSettings) -> None:
        self._settings = settings
        self.snapshot_index: LogIndex = accepted.snapshot_index
        self.is_whole = accepted.is_snapshot_whole
        self._items: list[StateItem] = []
        self._state = SetState(accepted.set_name)
        self._restoration = Restoration(self._state, settings.resident_body_bytes_max)
        """Of a whole snapshot; each chunk is restored as it comes, so that no single input takes long. Bodies are on their way
        to the own store; if they do not get there, this memory is dropped.
        """

    def take(self, items: tuple[StateItem, ...]) -> None:
        """One chunk."""
        if not self.is_whole:
            self._items.extend(items)
            return
        self._restoration.take(items)

    def whole_copy(self, commit_index: LogIndex) -> LogCopy:
        """The memory of a newcomer that got everything."""
        self._restoration.settle()
        settings = self._settings
        return LogCopy(
            self._state, commit_index, settings.retained_bytes_max, settings.resident_body_bytes_max
        )

    def lay_over(self, copy: LogCopy) -> None:
        """Give the durable state at the snapshot's index what is not durable, in place of what this memory still has of it."""
        copy.forget_transients()
        copy.apply_to(self.snapshot_index, is_durable_only=True)
        assert copy.state.applied == self.snapshot_index, (copy.state.applied, self.snapshot_index)
        copy.state.overlay(self._items)
        copy.is_durable_only = False
        copy.transients_from = max(copy.transients_from, self.snapshot_index)
