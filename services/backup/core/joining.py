"""Joining: the snapshot that a primary sends to a newcomer, on its way into memory and store (R8, R12).

Law: a whole snapshot replaces disk and memory; a memory snapshot is laid over the durable state at its index, and until then
only durable records are applied. The newcomer counts for nothing before its memory is whole, so it acknowledges nothing.
"""

from collections.abc import Iterator

from lockstep.core.ids import LogIndex
from lockstep.core.log_copy import LogCopy
from lockstep.core.replication import Frames, SubscriptionAccepted
from lockstep.core.restoration import Restoration
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import StateItem
from lockstep.core.taking_apart import cost_of_bytes, emptied
from services.backup.core.settings import BackupSettings


class Joining:
    """Lives from `SubscriptionAccepted` until memory is whole; driven by the backup core."""

    def __init__(self, accepted: SubscriptionAccepted, settings: BackupSettings) -> None:
        self._settings = settings
        self.snapshot_index: LogIndex = accepted.snapshot_index
        self.is_whole = accepted.is_snapshot_whole
        self._reigns = accepted.reigns
        self._items: list[StateItem] = []
        self._state = SetState(accepted.set_name)
        self._restoration = Restoration(self._state, settings.resident_body_bytes_max)
        """Of a whole snapshot; each chunk is restored as it comes, so that no single input takes long. Bodies are on their way
        to the own store; if they do not get there, this memory is dropped.
        """
        self.is_settling = False
        """Everything has come, and becomes a state piece by piece: until that is one, what is in between is good for nothing."""
        self.held: list[Frames] = []
        """What the primary sent behind a whole snapshot that is settling."""

    @property
    def is_half_there(self) -> bool:
        """What this replica has of a state is a part of one, which nobody can go on with."""
        return self.is_whole or self.is_settling

    def take(self, items: tuple[StateItem, ...]) -> None:
        """One chunk."""
        if not self.is_whole:
            self._items.extend(items)
            return
        self._restoration.take(items)

    def settle(self, copy: LogCopy | None) -> Iterator[int]:
        """Everything has come: make the memory of it, in steps that say what they cost (`Pieces`).

        Of a whole snapshot that is `whole_copy` then. What is not durable is laid over `copy`'s durable state at the snapshot's
        index, in place of what it still has of that.
        """
        self.is_settling = True
        if self.is_whole:
            yield from self._restoration.settle_in_steps()
            self._state.epochs.learn(self._reigns)
            return
        assert copy is not None, "what is not durable comes to what is"
        yield from copy.forget_transients()
        yield from copy.apply_in_steps(self.snapshot_index, is_durable_only=True)
        assert copy.state.applied == self.snapshot_index, (copy.state.applied, self.snapshot_index)
        yield from copy.state.overlay_in_steps(self._items)
        copy.is_durable_only = False
        copy.transients_from = max(copy.transients_from, self.snapshot_index)

    def take_apart(self) -> Iterator[int]:
        """It is void: leave nothing of it, in steps that say what they cost (`taking_apart`)."""
        yield from emptied(self._items, lambda item: cost_of_bytes(len(item.value)))
        yield from self._restoration.take_apart()
        yield from self._state.take_apart()

    def whole_copy(self) -> LogCopy:
        """The memory of a newcomer that got everything. How much of that is committed it hears behind it (R11)."""
        settings = self._settings
        return LogCopy(
            self._state, LogIndex(0), settings.retained_bytes_max, settings.resident_body_bytes_max
        )
