"""Item values: what the items of a snapshot say, as MessagePack arrays.

Law: fields are added at the end with a default, never removed or reused, and so are tags. Nothing that can be derived is in a
value: locks and reserved room follow from operations, lengths from entries, references from both.
"""

import msgspec

from lockstep.core.content import Content, DroppedMessage, DroppedPrioritised
from lockstep.core.deaths import Deaths
from lockstep.core.ids import (
    Epoch,
    LogIndex,
    MessageId,
    QueueId,
    QueuePosition,
    SessionId,
    SessionKey,
    TimeMs,
)
from lockstep.core.outcomes import Outcome
from lockstep.core.records import DeclareQueue, Message
from lockstep.core.sessions import Answer, DtxUse
from lockstep.core.subscriptions import DeletedResource, Group
from lockstep.core.transaction_states import TransactionState
from lockstep.core.tx_buffer import DequeueOperation, Operation, PublishOperation


class MetaValue(msgspec.Struct, frozen=True, array_like=True):
    """How far the state is."""

    applied: LogIndex
    time_ms: TimeMs
    retention_floor: LogIndex
    open_from: Epoch | None = None
    """None: written before epochs could be handed over, so it is the last one."""
    names_from: LogIndex = LogIndex(0)
    """As `Subscriptions` has it; 0: all names are known, or it was written before that was kept."""
    name_horizon_ms: int = 0
    """As `Outcomes` has it."""


class ExchangeValue(msgspec.Struct, frozen=True, array_like=True):
    name: str
    kind: str


class EntryValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    message: MessageId
    delivery_count: int = 0
    expires_ms: int | None = None
    """Of an entry that was moved; None: as its content says."""


class DeadEntryValue(EntryValue, frozen=True, array_like=True, gc=False):
    """Of a dead letter, or one of which more is said, and what is read of any entry."""

    deaths: Deaths = ()
    annotations: bytes = b""


class WholeMessage(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A content with its body."""

    message: Message


class BodilessMessage(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A content whose body is to be had from the store, and what every state hashes in place of a content."""

    message: DroppedMessage


class BodilessPrioritised(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The same of one whose priority is not the default one."""

    message: DroppedPrioritised


class SessionValue(msgspec.Struct, frozen=True, array_like=True):
    session_id: SessionId
    epoch: Epoch
    timeout_ms: int
    next_number: int
    answers: tuple[tuple[int, Answer], ...]
    dtx: DtxUse = DtxUse.NONE
    consumed: tuple[QueueId, ...] = ()


class TransactionValue(msgspec.Struct, frozen=True, array_like=True):
    """The durable part; the xid of an open branch is known from its transient `begin` alone and is not here."""

    state: TransactionState
    xid: bytes = b""
    prepared_ms: int = 0


class BeginningValue(msgspec.Struct, frozen=True, array_like=True):
    """The transient part."""

    xid: bytes
    session: SessionKey
    timeout_ms: int
    started_ms: int
    is_rollback_only: bool
    associations: tuple[tuple[SessionKey, bool], ...] = ()
    """Of a branch: (session, is suspended)."""


class UndoneValue(msgspec.Struct, frozen=True, array_like=True):
    """Its key is that of its transaction."""

    xid: bytes
    reason: int
    index: LogIndex


class PublishValue(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    ordinal: int
    count: int


class DequeueValue(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    ordinal: int
    queue: QueueId
    positions: tuple[QueuePosition, ...]
    reason: int


_ENCODER = msgspec.msgpack.Encoder()
encode = _ENCODER.encode

decode_meta = msgspec.msgpack.Decoder(MetaValue).decode
decode_epoch = msgspec.msgpack.Decoder(LogIndex).decode
decode_exchange = msgspec.msgpack.Decoder(ExchangeValue).decode
decode_queue = msgspec.msgpack.Decoder(DeclareQueue).decode
decode_entry = msgspec.msgpack.Decoder(DeadEntryValue).decode
decode_outcome = msgspec.msgpack.Decoder(Outcome).decode
decode_session = msgspec.msgpack.Decoder(SessionValue).decode
decode_transaction = msgspec.msgpack.Decoder(TransactionValue).decode
decode_group = msgspec.msgpack.Decoder(Group).decode
decode_deleted_resource = msgspec.msgpack.Decoder(DeletedResource).decode
decode_undone = msgspec.msgpack.Decoder(UndoneValue).decode
decode_beginning = msgspec.msgpack.Decoder(BeginningValue).decode
_decode_content = msgspec.msgpack.Decoder(WholeMessage | BodilessMessage | BodilessPrioritised).decode
_decode_operation = msgspec.msgpack.Decoder(PublishValue | DequeueValue).decode


def encode_entry(
    message: MessageId, delivery_count: int, expires_ms: int | None, deaths: Deaths, annotations: bytes
) -> bytes:
    """The value of an entry's item."""
    if deaths or annotations:
        return encode(DeadEntryValue(message, delivery_count, expires_ms, deaths, annotations))
    return encode(EntryValue(message, delivery_count, expires_ms))


def encode_content(content: Content) -> bytes:
    """The value of a content's item."""
    if isinstance(content, Message):
        return encode(WholeMessage(content))
    if isinstance(content, DroppedPrioritised):
        return encode(BodilessPrioritised(content))
    return encode(BodilessMessage(content))


def decode_content(value: bytes) -> Content:
    """The content in an item's value: a `Message`, or a `DroppedMessage` where the sender had no body."""
    decoded: WholeMessage | BodilessMessage | BodilessPrioritised = _decode_content(value)
    return decoded.message


WHOLE_PREFIX = encode(WholeMessage(Message((), b"", b"")))[:2]
"""What an item's value has before the message itself."""
_BODILESS_PREFIXES = (
    encode(BodilessMessage(DroppedMessage((), 0, 0, 0, 0, False)))[:2],
    encode(BodilessPrioritised(DroppedPrioritised((), 0, 0, 0, 0, False, 0)))[:2],
)


def is_bodiless(value: bytes) -> bool:
    """Whether a content's item comes without the body."""
    return value.startswith(_BODILESS_PREFIXES)


def encode_operation(operation: Operation) -> bytes:
    if isinstance(operation, PublishOperation):
        return encode(PublishValue(operation.ordinal, operation.count))
    return encode(DequeueValue(operation.ordinal, operation.queue, operation.positions, operation.reason))


def decode_operation(value: bytes, index: LogIndex, is_durable: bool) -> Operation:
    decoded = _decode_operation(value)
    if isinstance(decoded, PublishValue):
        return PublishOperation(index, decoded.ordinal, decoded.count, is_durable)
    return DequeueOperation(
        index, decoded.ordinal, decoded.queue, decoded.positions, decoded.reason, is_durable
    )
