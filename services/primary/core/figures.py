"""What a replica counts of its reigns over a resource set, for operators.

Law: nothing is decided by it, and nothing is counted per message: once for a frame, a batch of a queue, a transaction's end.
"""

from collections import Counter

from lockstep.core.histogram import Histogram
from lockstep.core.outcomes import Outcome
from lockstep.core.records import RollbackReason
from lockstep.core.transaction_states import TransactionState
from services.primary.core.gone_before import GoneBefore

COMMIT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""From one sync of a fast disk to a set that waits for a swap. Cores have milliseconds: below 1 ms nothing can be told apart."""

FAILOVER = "failover"
OUTCOMES = (
    "committed",
    "rolled_back",
    FAILOVER,
    "heuristically_committed",
    "heuristically_rolled_back",
)
"""How transactions end; `failover`: open when a new epoch began, which rolled them back."""


class Figures:
    """Lives as long as the process serves the set, over all its reigns; written by the primary core alone."""

    __slots__ = (
        "commit_seconds",
        "dead_letters_limited",
        "dead_letters_lost",
        "dequeued",
        "ended",
        "enqueued",
        "fenced",
        "resumed",
    )

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        """Transactions by `OUTCOMES`, as this primary's log has them."""
        self.enqueued = 0
        """Messages that became visible."""
        self.dequeued = 0
        """Messages that left for good."""
        self.dead_letters_lost = 0
        """Of them, those that left a queue with a dead-letter target and came to none: it is not there, full, or too costly
        to find."""
        self.dead_letters_limited = 0
        """Messages that left a queue for as many targets as one message may go to, or as were found in time, and not for all."""
        self.resumed = 0
        """Sessions that came back on a new stream."""
        self.fenced = 0
        """Words of backups that speak of a lower epoch."""
        self.commit_seconds = Histogram(COMMIT_SECONDS)
        """Of each frame: from the append of its oldest record to the commit index behind it."""

    def transaction_ended(self, outcome: Outcome) -> None:
        is_failover = outcome.reason == RollbackReason.FAILOVER
        self.ended[FAILOVER if is_failover else _NAMES[outcome.state]] += 1

    def gone_before(self, gone: GoneBefore) -> None:
        """What the record of an epoch that begins does not tell any more."""
        if gone.aborted:
            self.ended[FAILOVER] += gone.aborted
        self.dequeued += gone.lost


_NAMES = {
    state: state.name.lower()
    for state in (
        TransactionState.COMMITTED,
        TransactionState.ROLLED_BACK,
        TransactionState.HEURISTICALLY_COMMITTED,
        TransactionState.HEURISTICALLY_ROLLED_BACK,
    )
}
