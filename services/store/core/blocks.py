"""Blocks: messages and entries of a snapshot, which are many and small, as one item of the database for a run of them.

Law: a block holds items of one kind (of entries: of one queue) that were written together, in the order of their numbers, and its
place among the keys is that of its last. Blocks and items of their own never interleave: what is written is behind all that was.
So whoever reads in key order gets every item in its order, and cannot tell how it was kept. Of messages, those that are gone
leave the block at last: until then a second item before it says which ones are left.

    <kind><numbers of the last item> A    bytes: places in the block of those that are left
    <kind><numbers of the last item> B    MessagePack: pairs of number and value
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from lockstep.core.ids import MessageId, QueueId, QueuePosition
from lockstep.core.item_values import EntryValue, WholeMessage
from lockstep.core.items import ENTRY, MESSAGE, entry_key, message_key, numbers_in
from lockstep.core.store_protocol import StateItem
from services.store.core.disk import DiskError, DiskProblem, ReadSnapshotItems
from services.store.core.procedure import Procedure, compute, read_items

BLOCK_ITEMS_MAX = 128
"""A place fits a byte."""
BLOCK_BYTES_MAX = 128 << 10
"""Of contents, unless a single one is bigger: so much is read to have one of them."""
PIECE_ITEMS_MAX = 4096
"""Handed out at once: as many as a chunk of single items has that count 256 bytes each (`SnapshotDb`). Whoever gets a piece takes
it in as a whole, and heartbeats wait meanwhile; in blocks the bytes of one may hold ten times as many.
"""
_KEPT_BYTES = 64 << 10
"""Read at once for whoever wants single messages: less than a block, more than one item of its own."""
_LEFT, _ITEMS = b"A", b"B"
_MESSAGE_KEY_BYTES, _ENTRY_KEY_BYTES = 10, 18
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]]).decode


def messages_block(messages: Sequence[tuple[MessageId, WholeMessage]]) -> StateItem:
    """Contents, in ascending order of their ids."""
    return StateItem(messages_block_key(messages[-1][0]), _encode(messages), True)


def messages_block_key(last: MessageId) -> bytes:
    return message_key(last) + _ITEMS


def left_key(last: MessageId) -> bytes:
    return message_key(last) + _LEFT


def left_item(last: MessageId, places: Iterable[int]) -> StateItem:
    """Which messages of a block, by their places in it, are left."""
    return StateItem(left_key(last), bytes(places), True)


def entries_block(
    queue: QueueId, last: QueuePosition, entries: Sequence[tuple[QueuePosition, EntryValue]]
) -> StateItem:
    """Entries of one queue, in ascending order; `last`: what the block is named by, whether or not that is there."""
    return StateItem(entries_block_key(queue, last), _encode(entries), True)


def entries_block_key(queue: QueueId, last: QueuePosition) -> bytes:
    return entry_key(queue, last) + _ITEMS


def without(block: bytes, gone: frozenset[int]) -> bytes:
    """The value of a block of messages, less some. Raises `DiskError`."""
    return _encode([(number, value) for number, value in _pairs(block) if number not in gone])


def _pairs(block: bytes) -> list[tuple[int, msgspec.Raw]]:
    try:
        return _decode(block)
    except msgspec.MsgspecError as error:
        # It names the step that read it, which read well: what says so is taken to be damage of the snapshot.
        step = ReadSnapshotItems(b"", 0)
        raise DiskError(DiskProblem.CORRUPT, f"a block of the snapshot: {error}", step) from error


class Block(msgspec.Struct, frozen=True, gc=False):
    """One block as it was found."""

    queue: QueueId
    """0: of messages."""
    last: int
    """What it is named by."""
    numbers: tuple[int, ...]
    """Of all that is in it."""
    left: bytes | None
    """Places of those that are left; None: all."""


class Scan:
    """Reads a snapshot piece by piece, in key order from `from_key` on; the snapshot must not change meanwhile."""

    def __init__(self, from_key: bytes = b"", blocks: list[Block] | None = None) -> None:
        """`blocks`: gets what was found of them."""
        self._from_key = self._next_key = from_key
        self._blocks = blocks
        self._left: bytes | None = None
        """Of the block that comes next."""
        self._read: tuple[StateItem, ...] = ()
        """What was not handed out yet."""
        self._is_last_read = False

    def next(self, bytes_max: int) -> Procedure[tuple[tuple[StateItem, ...], bool]]:
        """About `bytes_max` bytes of items, perhaps none, and whether they are the last."""
        if not self._read:
            kept, self._is_last_read = yield from read_items(self._next_key, bytes_max)
            if kept:
                self._next_key = kept[-1].key + b"\0"
            is_in_blocks = any(map(_is_of_a_block, kept))
            self._read = (yield from compute(partial(self._items, kept))) if is_in_blocks else kept
        items, self._read = self._read[:PIECE_ITEMS_MAX], self._read[PIECE_ITEMS_MAX:]
        return items, self._is_last_read and not self._read

    def some(self, bytes_max: int) -> Procedure[tuple[tuple[StateItem, ...], bool]]:
        """The same, at least one unless there are none."""
        items, is_last = yield from self.next(bytes_max)
        while not items and not is_last:
            items, is_last = yield from self.next(bytes_max)
        return items, is_last

    def _items(self, kept: Iterable[StateItem]) -> tuple[StateItem, ...]:
        items: list[StateItem] = []
        for item in kept:
            if not _is_of_a_block(item):
                items.append(item)
            elif item.key[-1:] == _LEFT:
                self._left = item.value
            else:
                items += self._items_of(item)
                self._left = None
        if items and items[0].key < self._from_key:
            items = [item for item in items if item.key >= self._from_key]
        return tuple(items)

    def _items_of(self, block: StateItem) -> list[StateItem]:
        pairs, left = _pairs(block.value), self._left
        *queues, last = numbers_in(block.key[:-1])
        queue = QueueId(queues[0] if queues else 0)
        if self._blocks is not None:
            self._blocks.append(Block(queue, last, tuple(number for number, _ in pairs), left))
        if left is not None:
            pairs = [pairs[place] for place in left]
        new = tuple.__new__  # As of `SnapshotDb.read_items`: there are millions.
        if queues:
            return [
                new(StateItem, (entry_key(queue, QueuePosition(number)), bytes(value), True))
                for number, value in pairs
            ]
        return [
            new(StateItem, (message_key(MessageId(number)), bytes(value), True)) for number, value in pairs
        ]


def kept_messages(messages: Iterable[MessageId]) -> Procedure[dict[MessageId, bytes]]:
    """The values of those of these contents that a snapshot has."""
    wanted, found = sorted(set(messages)), dict[MessageId, bytes]()
    place = 0
    while place < len(wanted):
        items, is_last = yield from Scan(message_key(wanted[place])).some(_KEPT_BYTES)
        numbers = [MessageId(numbers_in(item.key)[0]) for item in items if item.key[:1] == MESSAGE]
        if not numbers:
            break
        behind = bisect_right(wanted, numbers[-1])
        asked_for = set(wanted[place:behind])
        found.update(
            (number, item.value) for number, item in zip(numbers, items, strict=False) if number in asked_for
        )
        if is_last or len(numbers) < len(items):
            break
        place = behind
    return found


def _is_of_a_block(item: StateItem) -> bool:
    key = item.key
    kind = key[:1]
    return (kind == MESSAGE and len(key) == _MESSAGE_KEY_BYTES) or (
        kind == ENTRY and len(key) == _ENTRY_KEY_BYTES
    )
