"""Replies: what applying one record says to the client whose command it answers (DESIGN 6)."""

from typing import NamedTuple

from lockstep.core.errors import ErrorCode
from lockstep.core.outcomes import Outcome
from lockstep.core.transaction_states import COMMITS, ROLLBACKS, TransactionState


class Reply(NamedTuple):
    """An `Answer` without its index."""

    code: int = ErrorCode.NONE
    message: str = ""
    value: int = 0


DONE = Reply()


def refused(outcome: Outcome) -> Reply:
    """To a record that names a transaction in which it can do nothing any more."""
    state = outcome.state
    if state in ROLLBACKS:
        return Reply(ErrorCode.ROLLED_BACK, "the transaction was rolled back", state)
    if state in COMMITS:
        return Reply(ErrorCode.TRANSACTION_FINISHED, "the transaction has committed", state)
    if state is TransactionState.EXPIRED:
        return Reply(ErrorCode.EXPIRED, "the transaction's outcome was forgotten", state)
    if state is TransactionState.UNKNOWN:
        return Reply(ErrorCode.UNKNOWN_TRANSACTION, "the transaction was never begun", state)
    return Reply(ErrorCode.ILLEGAL_STATE, f"the transaction is {state.name.lower()}", state)
