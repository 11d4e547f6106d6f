"""Names of transactions, (index, epoch) in their set, on the wire."""

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, TransactionKey
from lockstep.wire.v1 import session_pb2 as pb


def encode_name(transaction: TransactionKey) -> pb.TransactionName:
    """Raises `Rejected` (INVALID_ARGUMENT) for one that lacks a part."""
    name = pb.TransactionName()
    fill_name(transaction, name)
    return name


def fill_name(transaction: TransactionKey, wire: pb.TransactionName) -> None:
    """As `encode_name`, where the name stands."""
    index, epoch = transaction
    if not index or not epoch:
        raise _incomplete()
    wire.index, wire.epoch = index, epoch


def decode_name(name: pb.TransactionName) -> TransactionKey:
    """Raises `Rejected` (INVALID_ARGUMENT) for one that lacks a part."""
    if not name.index or not name.epoch:
        raise _incomplete()
    return LogIndex(name.index), Epoch(name.epoch)


def _incomplete() -> Rejected:
    return Rejected(ErrorCode.INVALID_ARGUMENT, "a transaction without index or epoch")
