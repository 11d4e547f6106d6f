"""Items: a state cut into small keyed pieces, as the store keeps and streams carry them. Here: keys, values, their codec.

Law: a key begins with the letter of its kind, then big-endian numbers, so that keys in byte order are items in log order and
a range scan gives one kind or one queue. A key names one thing for ever. Values are MessagePack arrays; fields are added at
the end with a default, never removed or reused.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from lockstep.core.captures import Captures
from lockstep.core.ids import (
    Epoch,
    ExchangeId,
    LogIndex,
    MessageId,
    QueueId,
    QueuePosition,
    SessionKey,
    TransactionKey,
)
from lockstep.core.store_protocol import StateItem

META = b"a"
EPOCH = b"b"
EXCHANGE = b"c"
QUEUE = b"d"
ENTRY = b"e"
"""One message in one queue: message id and delivery count. Its lock is in its transaction's operation."""
BINDING = b"f"
MESSAGE = b"m"
"""Content, once however many entries and operations refer to it."""
SUBSCRIPTION = b"g"
"""A group that reads committed events."""
DELETED_RESOURCE = b"h"
"""The name of a durable queue that is gone, for events that are still to be read."""
OUTCOME = b"o"
SESSION = b"s"
TRANSACTION = b"t"
"""The durable part of an open or prepared transaction."""
OPERATION = b"u"
"""One publish or dequeue record of an open or prepared transaction."""
BEGINNING = b"v"
"""The transient part of a transaction: what `begin` said, whether it is rollback-only, who works in it."""
UNDONE = b"w"
"""An open branch that was rolled back behind the back of whoever knows its xid. Transient."""

KINDS = (
    META
    + EPOCH
    + EXCHANGE
    + QUEUE
    + ENTRY
    + BINDING
    + SUBSCRIPTION
    + DELETED_RESOURCE
    + MESSAGE
    + OUTCOME
    + SESSION
    + TRANSACTION
    + OPERATION
    + BEGINNING
    + UNDONE
)

_ONE = struct.Struct(">cQ")
_TWO = struct.Struct(">cQQ")
_THREE = struct.Struct(">cQQQ")
_NUMBERS = {1 + 8 * count: struct.Struct(f">{count}Q") for count in range(4)}
"""By the length of the whole key."""
_BINDING_ENCODER = msgspec.msgpack.Encoder()
_BINDING_DECODER = msgspec.msgpack.Decoder(tuple[str, tuple[tuple[str, str], ...]])


Item = StateItem
"""One piece of a state: key, value, and whether it is durable."""


class ItemsListener(Protocol):
    """Who is told which durable items came, changed or went: messages and entries, which are many, by their numbers."""

    def items_changed(self, keys: Iterable[bytes]) -> None:
        """Items of all other kinds."""

    def messages_changed(self, messages: Sequence[MessageId]) -> None: ...

    def entries_changed(self, queue: QueueId, positions: Sequence[QueuePosition]) -> None: ...


class Changes:
    """Where the parts of one state tell which durable items they changed, and what is about to; they share it, and nobody listens
    by default.
    """

    __slots__ = ("captures", "listener")

    def __init__(self) -> None:
        self.captures = Captures()
        self.listener: ItemsListener | None = None
        """Keys are not even made without it."""


META_KEY = META


def epoch_key(epoch: Epoch) -> bytes:
    return _ONE.pack(EPOCH, epoch)


def exchange_key(exchange: ExchangeId) -> bytes:
    return _ONE.pack(EXCHANGE, exchange)


def queue_key(queue: QueueId) -> bytes:
    return _ONE.pack(QUEUE, queue)


def entry_key(queue: QueueId, position: QueuePosition) -> bytes:
    return _TWO.pack(ENTRY, queue, position)


def entry_keys(queue: QueueId, positions: Iterable[QueuePosition]) -> list[bytes]:
    """The same of many."""
    pack = _TWO.pack
    return [pack(ENTRY, queue, position) for position in positions]


def binding_key(
    exchange: ExchangeId, queue: QueueId, key: str, arguments: tuple[tuple[str, str], ...]
) -> bytes:
    return _TWO.pack(BINDING, exchange, queue) + _BINDING_ENCODER.encode((key, arguments))


def message_key(message: MessageId) -> bytes:
    return _ONE.pack(MESSAGE, message)


def message_keys(messages: Iterable[MessageId]) -> list[bytes]:
    """The same of many."""
    pack = _ONE.pack
    return [pack(MESSAGE, message) for message in messages]


def subscription_key(subscription: LogIndex) -> bytes:
    return _ONE.pack(SUBSCRIPTION, subscription)


def deleted_resource_key(resource: int) -> bytes:
    """Of a queue or an exchange."""
    return _ONE.pack(DELETED_RESOURCE, resource)


def outcome_key(transaction: TransactionKey) -> bytes:
    return _TWO.pack(OUTCOME, *transaction)


def session_key(session: SessionKey) -> bytes:
    return _ONE.pack(SESSION, session)


def transaction_key(transaction: TransactionKey) -> bytes:
    return _TWO.pack(TRANSACTION, *transaction)


def operation_key(transaction: TransactionKey, index: LogIndex) -> bytes:
    return _THREE.pack(OPERATION, *transaction, index)


def beginning_key(transaction: TransactionKey) -> bytes:
    return _TWO.pack(BEGINNING, *transaction)


def undone_key(transaction: TransactionKey) -> bytes:
    return _TWO.pack(UNDONE, *transaction)


def numbers_in(key: bytes) -> tuple[int, ...]:
    """The big-endian numbers of a key of any kind but `META` (none) and `BINDING` (`parse_binding_key`)."""
    return _NUMBERS[len(key)].unpack_from(key, 1)


def parse_binding_key(key: bytes) -> tuple[ExchangeId, QueueId, str, tuple[tuple[str, str], ...]]:
    """Inverse of `binding_key`."""
    _, exchange, queue = _TWO.unpack_from(key)
    text, arguments = _BINDING_DECODER.decode(key[_TWO.size :])
    return ExchangeId(exchange), QueueId(queue), text, arguments
