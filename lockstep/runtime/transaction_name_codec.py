"""Names of transactions, (index, epoch) in their set, on the wire."""

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, TransactionKey
from lockstep.wire.v1 import session_pb2 as pb


def encode_name(transaction: TransactionKey | None) -> pb.TransactionName | None:
    return transaction and pb.TransactionName(index=transaction[0], epoch=transaction[1])


def fill_name(transaction: TransactionKey, wire: pb.TransactionName) -> None:
    """As `encode_name`, where the name stands."""
    wire.index, wire.epoch = transaction


def decode_name(name: pb.TransactionName) -> TransactionKey:
    """Raises `Rejected` (INVALID_ARGUMENT) for one that lacks a part."""
    if not name.index or not name.epoch:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, "a transaction without index or epoch")
    return LogIndex(name.index), Epoch(name.epoch)
