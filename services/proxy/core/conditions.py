"""AMQP error conditions (AMQP 1.0, 2.8.14 to 2.8.18 and 4.5.8): which one says what an error code of ours says.

Law: one table; every code has a condition.
"""

from typing import NamedTuple

from lockstep.core.errors import ErrorCode, InDoubt, LockstepError


class Condition(NamedTuple):
    """What goes into an error: a symbol, and words for people."""

    name: str
    description: str


INTERNAL_ERROR = "amqp:internal-error"
NOT_FOUND = "amqp:not-found"
UNAUTHORIZED = "amqp:unauthorized-access"
DECODE_ERROR = "amqp:decode-error"
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
HANDLE_IN_USE = "amqp:session:handle-in-use"
NOT_ALLOWED = "amqp:not-allowed"
INVALID_FIELD = "amqp:invalid-field"
NOT_IMPLEMENTED = "amqp:not-implemented"
RESOURCE_LOCKED = "amqp:resource-locked"
PRECONDITION_FAILED = "amqp:precondition-failed"
RESOURCE_DELETED = "amqp:resource-deleted"
ILLEGAL_STATE = "amqp:illegal-state"
CONNECTION_FORCED = "amqp:connection:forced"
FRAMING_ERROR = "amqp:connection:framing-error"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
TRANSFER_LIMIT = "amqp:link:transfer-limit-exceeded"
UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"
ROLLED_BACK = "amqp:transaction:rollback"
TRANSACTION_TIMEOUT = "amqp:transaction:timeout"

_BY_CODE = {
    ErrorCode.NONE: INTERNAL_ERROR,
    ErrorCode.NOT_FOUND: NOT_FOUND,
    ErrorCode.ALREADY_EXISTS: PRECONDITION_FAILED,
    ErrorCode.INVALID_ARGUMENT: INVALID_FIELD,
    ErrorCode.TOO_LARGE: MESSAGE_SIZE_EXCEEDED,
    ErrorCode.QUEUE_FULL: RESOURCE_LIMIT,
    ErrorCode.LOCKED: RESOURCE_LOCKED,
    ErrorCode.IN_USE: RESOURCE_LOCKED,
    ErrorCode.UNKNOWN_TRANSACTION: UNKNOWN_TRANSACTION,
    ErrorCode.TRANSACTION_FINISHED: UNKNOWN_TRANSACTION,
    ErrorCode.ROLLBACK_ONLY: ROLLED_BACK,
    ErrorCode.ROLLED_BACK: ROLLED_BACK,
    ErrorCode.SEQUENCE_GAP: INTERNAL_ERROR,
    ErrorCode.UNKNOWN_SESSION: CONNECTION_FORCED,
    ErrorCode.STALE_DELIVERY: ILLEGAL_STATE,
    ErrorCode.NOT_PRIMARY: RESOURCE_LOCKED,
    ErrorCode.WRONG_EPOCH: RESOURCE_LOCKED,
    ErrorCode.UNKNOWN_SET: NOT_FOUND,
    ErrorCode.UNAVAILABLE: RESOURCE_LIMIT,
    ErrorCode.STORE_FULL: RESOURCE_LIMIT,
    ErrorCode.OTHER_SET: NOT_ALLOWED,
    ErrorCode.ILLEGAL_STATE: ILLEGAL_STATE,
    ErrorCode.EXPIRED: NOT_FOUND,
    ErrorCode.COMMAND_INVALID: ILLEGAL_STATE,
    ErrorCode.NOT_ALLOWED: NOT_ALLOWED,
    ErrorCode.NOT_IMPLEMENTED: NOT_IMPLEMENTED,
    ErrorCode.UNAUTHORIZED: UNAUTHORIZED,
    ErrorCode.OUT_OF_RANGE: NOT_FOUND,
    ErrorCode.POISON: INTERNAL_ERROR,
}


def condition_of(error: LockstepError) -> Condition:
    """What a client hears of an error."""
    return Condition(_BY_CODE[error.code], error.message)


def ends_connection(error: LockstepError) -> bool:
    """Whether the client has to connect again: nobody knows the outcome, or the session is over by which it had what it has."""
    return isinstance(error, InDoubt) or error.code is ErrorCode.UNKNOWN_SESSION


def condition_of_code(code: ErrorCode, message: str) -> Condition:
    return Condition(_BY_CODE[code], message)
