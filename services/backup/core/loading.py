"""Loading: a replica's memory from its own disk, by what `LoadState` answers (DESIGN 5, R9).

Law: only what the commit index covers is applied; the rest of the journal is a suffix that a new primary may cut (R11).
"""

from lockstep.core.frames import Frame, check_frame
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.log_copy import LogCopy
from lockstep.core.restoration import Restoration
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import StateChunk
from services.backup.core.settings import BackupSettings


class Loading:
    """Lives from `LoadState` to `StateLoaded`; driven by the backup core."""

    def __init__(
        self, set_name: SetName, commit_index: LogIndex, log_end: LogIndex, settings: BackupSettings
    ) -> None:
        """`commit_index`, `log_end`: as the store told them when it opened the set."""
        self._commit_index = commit_index
        self._log_end = log_end
        self._settings = settings
        self._state = SetState(set_name)
        self._restoration: Restoration | None = None
        """While items come; each is restored at once, so that no single input takes long."""
        self._copy: LogCopy | None = None

    def take(self, chunk: StateChunk) -> None:
        """One part: items first, then frames."""
        if chunk.items:
            if self._restoration is None:
                self._restoration = Restoration(self._state, self._settings.resident_body_bytes_max)
            self._restoration.take(chunk.items)
        for durable in chunk.frames:
            self._whole().append(Frame(check_frame(durable), durable, b""))
        if self._copy is not None:
            self._copy.commit(self._commit_index)
            self._copy.bodies.trim(self._log_end)

    def finish(self) -> LogCopy:
        """The memory as the disk has it: without anything that is not durable."""
        copy = self._whole()
        copy.commit(self._commit_index)
        copy.transients_from = copy.log_end
        copy.is_durable_only = True
        return copy

    def _whole(self) -> LogCopy:
        if self._copy is None:
            if self._restoration is not None:
                self._restoration.settle()
                self._restoration = None
            settings = self._settings
            self._copy = LogCopy(
                self._state,
                self._commit_index,
                settings.retained_bytes_max,
                settings.resident_body_bytes_max,
            )
        return self._copy
