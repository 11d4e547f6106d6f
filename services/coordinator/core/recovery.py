"""Recovery: which transactions of the log need somebody, and that it is us (DESIGN T4).

Law: taking one up decides nothing. Undecided, it is aborted by winning the decision under the very entry that was found;
decided, it is completed as decided. So any number of recoverers may take up the same one, and a coordinator that lives and is
only slow loses its transaction, never its meaning.

A coordinator without presence is gone, or was paused for longer than its lease, and what it began is taken up at once. One that
lives finishes by itself, and is helped when that takes too long.
"""

from collections.abc import Callable, Generator
from heapq import nsmallest

from lockstep.core.branch_names import GlobalId
from lockstep.core.clock import Now
from lockstep.core.doubt_watch import LOOKED_AT_IN_ONE
from services.coordinator.core.context import Context
from services.coordinator.core.messages import LoggedTransaction, LogListed


def _age(one: LoggedTransaction) -> tuple[int, GlobalId]:
    return one.entry.written_ms, one.global_id


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

    def orphans(
        self, listed: LogListed, is_in_hand: Callable[[GlobalId], bool], now: Now
    ) -> Generator[int, None, list[LoggedTransaction]]:
        """Those to take up, the oldest first, as many as one look may; those in hand are left out. In steps that say what they
        cost (`Pieces`).
        """
        oldest: list[LoggedTransaction] = []
        for begin in range(0, len(listed.transactions), LOOKED_AT_IN_ONE):
            some = listed.transactions[begin : begin + LOOKED_AT_IN_ONE]
            found = [
                one for one in some if self._is_orphan(one, listed, now) and not is_in_hand(one.global_id)
            ]
            if found:
                oldest = nsmallest(self._context.limits.recovered_max, oldest + found, key=_age)
            yield len(some) + len(found)
        return oldest

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
