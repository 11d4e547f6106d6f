"""Recovery: which transactions of the log need somebody, and that it is us (DESIGN T4).

Law: taking one up decides nothing. Undecided, it is aborted by winning the decision under the very entry that was found;
decided, it is completed as decided. So any number of recoverers may take up the same one, and a coordinator that lives and is
only slow loses its transaction, never its meaning.

A coordinator without presence is gone, or was paused for longer than its lease, and what it began is taken up at once. One that
lives finishes by itself, and is helped when that takes too long.
"""

from lockstep.core.clock import Now
from services.coordinator.core.context import Context
from services.coordinator.core.messages import LoggedTransaction, LogListed


class Recovery:
    """Lives as long as the core; asked at each tick whether it is time to look."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._due_ms = 0
        """CLOCK_BOOTTIME: of the next look, not before."""
        self._asked_ms: int | None = None
        """Of the listing that was heard since the last tick."""

    def is_due(self, now: Now) -> bool:
        """At the start and periodically; True restarts the pause."""
        limits = self._context.limits
        if self._asked_ms is not None:
            took_ms, self._asked_ms = now.boottime_ms - self._asked_ms, None
            rest_ms = min(limits.recovery_rest * took_ms, limits.recovery_rest_ms_max)
            self._due_ms = max(self._due_ms, now.boottime_ms + rest_ms)
        if now.boottime_ms < self._due_ms:
            return False
        self._due_ms = now.boottime_ms + limits.recovery_every_ms
        return True

    def listed(self, asked_ms: int) -> None:
        """The log was listed, asked for at `asked_ms`. What comes of that is done, too, when the next tick comes."""
        self._asked_ms = asked_ms

    def orphans(self, listed: LogListed, now: Now) -> list[LoggedTransaction]:
        """Those to take up, the oldest first, as many as one look may; some of them may be in hand here already."""
        found = [one for one in listed.transactions if self._is_orphan(one, listed, now)]
        found.sort(key=lambda one: (one.entry.written_ms, one.global_id))
        return found

    def _is_orphan(self, one: LoggedTransaction, listed: LogListed, now: Now) -> bool:
        limits, entry = self._context.limits, one.entry
        if one.decision is None and entry.generation != listed.generation:
            # Its decision may be lost with a part of the cluster's history: an operator has to look (history 26).
            return False
        age_ms = now.wall_ms - entry.written_ms
        if entry.owner not in listed.owners:
            return True
        if entry.is_closed and one.decision is None:
            return age_ms >= limits.closed_ms
        # Ours, and not in hand: written after we had given it up.
        return entry.owner == self._context.process or age_ms >= limits.elsewhere_ms
