"""XA: what a verb of a branch answers, and in which state it found the branch (the DTX contract).

Law: a verb answers a status, which is its command's answer value, or is rejected with one of six exceptions. Which state a branch
is in follows from the replicated state alone, so that a successor answers as its predecessor would have.
"""

from enum import IntEnum

from lockstep.core.errors import ErrorCode
from lockstep.core.transaction_states import TransactionState


class XaStatus(IntEnum):
    """X/Open's results, with AMQP 0-10's numbers. On the wire and in the log: added, never reused."""

    OK = 0
    RBROLLBACK = 1
    RBTIMEOUT = 2
    HEURHAZ = 3
    HEURCOM = 4
    HEURRB = 5
    HEURMIX = 6
    RDONLY = 7


class BranchState(IntEnum):
    """What a verb found. On the wire and in the log: added, never reused."""

    UNKNOWN = 0
    ACTIVE = 1
    """Some session is associated with it."""
    SUSPENDED = 2
    """Sessions are associated with it, and all of them have suspended it."""
    ENDED = 3
    """Open, and no session is associated: it can be prepared."""
    ROLLBACK_ONLY = 4
    """Open, but it can only be rolled back."""
    PREPARED = 5
    HEURISTICALLY_COMMITTED = 6
    HEURISTICALLY_ROLLED_BACK = 7
    ROLLED_BACK = 8
    """While open, by nobody who knew its xid; kept until somebody hears it."""
    TIMED_OUT = 9
    """The same, by its time-out."""
    COMMITTED = 10
    """It is gone, and its outcome is still known."""
    FORGOTTEN = 11
    """It is not there, and may have ended: outcomes are forgotten of branches whose transactions were begun no earlier."""


HEURISTIC_STATUS = {
    BranchState.HEURISTICALLY_COMMITTED: XaStatus.HEURCOM,
    BranchState.HEURISTICALLY_ROLLED_BACK: XaStatus.HEURRB,
}
UNDONE_STATUS = {
    BranchState.ROLLED_BACK: XaStatus.RBROLLBACK,
    BranchState.TIMED_OUT: XaStatus.RBTIMEOUT,
}

EXCEPTIONS = {
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.ILLEGAL_STATE: 409,
    ErrorCode.COMMAND_INVALID: 503,
    ErrorCode.NOT_ALLOWED: 530,
    ErrorCode.NOT_IMPLEMENTED: 541,
    ErrorCode.INVALID_ARGUMENT: 542,
}
"""The exception codes of AMQP 0-10 that a rejected verb stands for."""


def end_status(state: TransactionState) -> XaStatus:
    """What a completing verb answers when the branch ended so by it, or before it."""
    match state:
        case TransactionState.HEURISTICALLY_COMMITTED:
            return XaStatus.HEURCOM
        case TransactionState.HEURISTICALLY_ROLLED_BACK:
            return XaStatus.HEURRB
        case _:
            return XaStatus.OK
