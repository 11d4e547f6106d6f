"""Errors that a caller can get: *rejected* (it did not happen) or *in doubt* (it may have happened). If unsure: in doubt.

Law: every error carries a code of `ErrorCode` and the identifiers it speaks of. One table maps codes to gRPC status
(`lockstep/runtime/status.py`), one to AMQP conditions (`services/proxy/core/conditions.py`).
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Why a command was rejected. Numbers are on the wire and in the log: added, never reused."""

    NONE = 0
    NOT_FOUND = 1
    ALREADY_EXISTS = 2
    INVALID_ARGUMENT = 3
    TOO_LARGE = 4
    QUEUE_FULL = 5
    LOCKED = 6
    """The resource belongs to somebody else: an exclusive queue, a message in another's transaction or hands."""
    IN_USE = 7
    UNKNOWN_TRANSACTION = 8
    TRANSACTION_FINISHED = 9
    ROLLBACK_ONLY = 10
    ROLLED_BACK = 11
    SEQUENCE_GAP = 12
    """A command or operation number that is not the next one."""
    UNKNOWN_SESSION = 13
    STALE_DELIVERY = 14
    """An accept, release or reject of a delivery that its session does not hold (DESIGN T6)."""
    NOT_PRIMARY = 15
    WRONG_EPOCH = 16
    UNKNOWN_SET = 17
    UNAVAILABLE = 18
    """Push-back: it took no command number, try again."""
    STORE_FULL = 19
    OTHER_SET = 20
    """A transaction touched a queue of another resource set."""
    ILLEGAL_STATE = 21
    EXPIRED = 22
    """The outcome was forgotten: its transaction lies below the retention floor (DESIGN T5)."""
    COMMAND_INVALID = 23
    """A verb of a branch that makes no sense where its session or the branch stands (the DTX contract's 503)."""
    NOT_ALLOWED = 24
    """A branch of that xid exists already (the DTX contract's 530)."""
    NOT_IMPLEMENTED = 25
    UNAUTHORIZED = 26
    """Whoever asks may not do that."""
    OUT_OF_RANGE = 27
    """What is asked for lies below the lowest index that can still be read here; it does not come back (DESIGN 5, 7)."""
    POISON = 28
    """One primary after the other died over this command: its client does not send it any more."""


class LockstepError(Exception):
    """Base of both kinds. `code` says why, `details` carries the identifiers."""

    def __init__(self, code: ErrorCode, message: str, **details: object) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def __repr__(self) -> str:
        details = "".join(f", {name}={value!r}" for name, value in self.details.items())
        return f"{type(self).__name__}({self.code.name}, {self.message!r}{details})"


class Rejected(LockstepError):
    """It did not happen, and will not by itself."""


class InDoubt(LockstepError):
    """It may have happened; `GetOutcome` of a transaction, or the session's resumption, tells."""


class LimitReached(Rejected):
    """There is as much of something as may be. `limit`: the word for it, a setting mostly; whoever refuses has it logged, too."""

    def __init__(self, limit: str, code: ErrorCode, message: str, **details: object) -> None:
        super().__init__(code, message, **details)
        self.limit = limit
