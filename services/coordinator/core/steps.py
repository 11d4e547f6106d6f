"""The named steps of the protocol, in their order: where a coordinator may die and another has to go on.

Law: a core says `Reached` at each of them, among its other effects, when all before it has happened and nothing behind it has.
`STEPS` is the list from which tests make a kill point each.
"""

from enum import Enum


class Step(Enum):
    """One moment of one transaction's protocol."""

    CLOSE_ASKED = "close_asked"
    """The client wants the list fixed; nothing is in the log."""
    CLOSE_WRITTEN = "close_written"
    """In the log, and the client does not know."""
    COMMIT_ASKED = "commit_asked"
    """Two or more participants; nothing is in the log, unless the transaction was closed."""
    PARTICIPANTS_WRITTEN = "participants_written"
    """In the log; nobody was asked to prepare."""
    VOTE_RECEIVED = "vote_received"
    """The first one; others are prepared, or being asked."""
    VOTES_COMPLETE = "votes_complete"
    """Enough have voted to decide, and the decision is not written."""
    DECISION_WRITTEN = "decision_written"
    """In the log: the commit point, if it is COMMIT. No participant knows."""
    BRANCH_COMPLETED = "branch_completed"
    """The first participant has acknowledged; others may not have heard."""
    ALL_COMPLETED = "all_completed"
    """All have acknowledged; the client was not answered, and the log still has the transaction."""
    LOG_DELETED = "log_deleted"
    """It is out of the log, with an outcome left behind."""
    ONE_PHASE_COMPLETED = "one_phase_completed"
    """The only participant has answered, and the client was not. The log never knew."""


STEPS = tuple(step.value for step in Step)
"""By name, in order."""
