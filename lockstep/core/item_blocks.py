"""Blocks of items: messages or entries of a snapshot, which are many and small, as one item for a run of them.

Law: a block holds items of one kind (of entries: of one queue) that were written together, in the order of their numbers, and its
place among the keys is that of its last. Blocks and items of their own never interleave: what is written is behind all that was.
So whoever reads in key order gets every item in its order, and cannot tell how it was kept. Of messages, those that are gone
leave the block at last: until then a second item before it says which ones are left.

    <kind><numbers of the last item> A    bytes: places in the block of those that are left
    <kind><numbers of the last item> B    MessagePack: 1, and a list of runs of neighbours

Older ones hold a list of pairs of number and value instead.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from lockstep.core.deaths import Deaths
from lockstep.core.ids import MessageId, QueueId, QueuePosition, neighbours
from lockstep.core.item_values import WHOLE_PREFIX, decode_entry, encode
from lockstep.core.items import ENTRY, MESSAGE, entry_key, message_key
from lockstep.core.records import Message
from lockstep.core.store_protocol import StateItem

LEFT, _ITEMS = b"A", b"B"
_MESSAGE_KEY_BYTES, _ENTRY_KEY_BYTES = 10, 18
_FORMAT = 1


class EntryRunValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Neighbouring entries with neighbouring contents; `delivery_count` and `expires_ms` are of an entry alone (`EntryValue`)."""

    first: QueuePosition
    message: MessageId
    count: int
    delivery_count: int = 0
    expires_ms: int | None = None

    @property
    def positions(self) -> Sequence[QueuePosition]:
        return range(self.first, self.first + self.count)  # type: ignore[return-value]

    @property
    def messages(self) -> Sequence[MessageId]:
        return range(self.message, self.message + self.count)  # type: ignore[return-value]


class DeadEntryRunValue(EntryRunValue, frozen=True, array_like=True, gc=False):
    """An entry alone (`DeadEntryValue`), and what is read of any entries."""

    deaths: Deaths = ()
    annotations: bytes = b""


class MessagePiece(NamedTuple):
    """Neighbours in a block of messages."""

    first: MessageId
    messages: Sequence[Message]
    encoded: msgspec.Raw | None
    """MessagePack, an array of them; None: they do not lie together."""


class Block(msgspec.Struct, frozen=True, gc=False):
    """One block as it was found."""

    queue: QueueId
    """0: of messages."""
    last: int
    """What it is named by."""
    runs: tuple[Sequence[int], ...]
    """All numbers that are in it."""
    left: bytes | None
    """Places of those that are left; None: all."""


RawRun = tuple[int, list[msgspec.Raw]]
"""The number of the first, and each as `Message`."""
_decode_raw = msgspec.msgpack.Decoder(tuple[int, list[RawRun]]).decode
_decode_arrays = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, msgspec.Raw]]]).decode
_decode_messages = msgspec.msgpack.Decoder(list[Message]).decode
_decode_message = msgspec.msgpack.Decoder(Message).decode
_decode_entries = msgspec.msgpack.Decoder(tuple[int, list[DeadEntryRunValue]]).decode
_decode_pairs = msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]]).decode
_PREFIX = encode((_FORMAT, ()))[:2]
"""Of all but the older ones, which begin with a pair."""


def is_block(key: bytes) -> bool:
    """Whether a key is one of the two of a block, and not of an item of its own."""
    kind = key[:1]
    return (kind == MESSAGE and len(key) == _MESSAGE_KEY_BYTES) or (
        kind == ENTRY and len(key) == _ENTRY_KEY_BYTES
    )


def messages_block_key(last: MessageId) -> bytes:
    return message_key(last) + _ITEMS


def left_key(last: MessageId) -> bytes:
    return message_key(last) + LEFT


def left_item(last: MessageId, places: Iterable[int]) -> StateItem:
    """Which messages of a block, by their places in it, are left."""
    return StateItem(left_key(last), bytes(places), True)


def encode_messages(runs: Sequence[tuple[int, object]]) -> bytes:
    """The value of a block of messages: numbers of the first, and what is encoded as an array of `Message`, ascending."""
    return encode((_FORMAT, runs))


def entries_block_key(queue: QueueId, last: QueuePosition) -> bytes:
    return entry_key(queue, last) + _ITEMS


def entries_block(queue: QueueId, last: QueuePosition, runs: Sequence[EntryRunValue]) -> StateItem:
    """Entries of one queue, in ascending order; `last`: what the block is named by, whether or not that is there."""
    return StateItem(entries_block_key(queue, last), encode((_FORMAT, runs)), True)


def check_block(item: StateItem) -> None:
    """Raises `msgspec.MsgspecError` for a value that is none of a block's."""
    key, value, _ = item
    if key[-1:] == LEFT:
        return
    if not value.startswith(_PREFIX):
        _decode_pairs(value)
    elif key[:1] == MESSAGE:
        _decode_arrays(value)
    else:
        _decode_entries(value)


def raw_messages_in(value: bytes) -> list[tuple[int, msgspec.Raw]]:
    """Numbers and contents, as `Message`, of a block's value. Raises `msgspec.MsgspecError`."""
    if not value.startswith(_PREFIX):
        return [(number, _without_prefix(whole)) for number, whole in _decode_pairs(value)]
    return [pair for first, raws in _decode_raw(value)[1] for pair in enumerate(raws, first)]


def messages_in(last: int, value: bytes, left: bytes | None) -> tuple[list[MessagePiece], Block]:
    """The messages that are left of a block, and what the block is. Raises `msgspec.MsgspecError`."""
    if value.startswith(_PREFIX):
        pieces = [
            MessagePiece(MessageId(first), _decode_messages(array), array)
            for first, array in _decode_arrays(value)[1]
        ]
    else:
        pairs = [(number, _decode_message(_without_prefix(whole))) for number, whole in _decode_pairs(value)]
        pieces = _together(pairs)
    runs = tuple(range(first, first + len(messages)) for first, messages, _ in pieces)
    if left is not None:
        pairs = [pair for first, messages, _ in pieces for pair in enumerate(messages, first)]
        pieces = _together([pairs[place] for place in left])
    return pieces, Block(QueueId(0), last, runs, left)


def entries_in(value: bytes) -> list[DeadEntryRunValue]:
    """The entries of a block's value. Raises `msgspec.MsgspecError`."""
    if value.startswith(_PREFIX):
        return _decode_entries(value)[1]
    return [
        DeadEntryRunValue(
            QueuePosition(number),
            entry.message,
            1,
            entry.delivery_count,
            entry.expires_ms,
            entry.deaths,
            entry.annotations,
        )
        for number, raw in _decode_pairs(value)
        for entry in (decode_entry(raw),)
    ]


def _without_prefix(whole: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(bytes(whole)[len(WHOLE_PREFIX) :])


def _together(pairs: Sequence[tuple[int, Message]]) -> list[MessagePiece]:
    """Numbers and messages, ascending, as pieces of neighbours."""
    numbers = [number for number, _ in pairs]
    messages = [message for _, message in pairs]
    pieces: list[MessagePiece] = []
    place = 0
    for run in neighbours(numbers):
        pieces.append(MessagePiece(MessageId(run[0]), messages[place : place + len(run)], None))
        place += len(run)
    return pieces
