"""How long a backup bears with its own store (history 21, R5).

Law: whoever waits for this disk does not wait as long as it hangs; and a memory whose disk refuses for long does not keep
restarted members from standing for promotion.
"""

from lockstep.core.clock import Now
from services.backup.core.settings import BackupSettings


class StoreWatch:
    """Lives as long as its backup core, which tells it what the store does."""

    def __init__(self, settings: BackupSettings) -> None:
        self._settings = settings
        self._progress_ms = 0
        """When the store last owed nothing, or said something of what it owes."""
        self._refused_since_ms: int | None = None

    def took(self, now: Now) -> None:
        """It owes nothing, or has more than before; of what is big perhaps a piece."""
        self._progress_ms = now.boottime_ms

    def is_well(self) -> None:
        """It took all, or more, of what it has to take before this replica may stand: a piece of what is big is nothing yet."""
        self._refused_since_ms = None

    def refused(self, now: Now) -> None:
        if self._refused_since_ms is None:
            self._refused_since_ms = now.boottime_ms

    def is_silent(self, now: Now) -> bool:
        """Whether it has owed an answer for too long."""
        return now.boottime_ms - self._progress_ms > self._settings.store_patience_ms

    def is_hopeless(self, now: Now) -> bool:
        """Whether it has refused for too long."""
        since = self._refused_since_ms
        return since is not None and now.boottime_ms - since > self._settings.memory_patience_ms
