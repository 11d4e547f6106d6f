"""Blocks: messages and entries of a snapshot, which are many and small, as one item of the database for a run of them.

Law: a block holds items of one kind (of entries: of one queue) that were written together, in the order of their numbers, and its
place among the keys is that of its last. Blocks and items of their own never interleave: what is written is behind all that was.
So whoever reads in key order gets every item in its order, and cannot tell how it was kept. Of messages, those that are gone
leave the block at last: until then a second item before it says which ones are left.

    <kind><numbers of the last item> A    bytes: places in the block of those that are left
    <kind><numbers of the last item> B    MessagePack: 1, and a list of runs of neighbours

Older ones hold a list of pairs of number and value instead.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from lockstep.core.content import size_of, size_of_all
from lockstep.core.ids import MessageId, QueueId, QueuePosition
from lockstep.core.item_values import WHOLE_PREFIX, EntryValue, decode_entry, encode
from lockstep.core.items import ENTRY, MESSAGE, entry_key, message_key, numbers_in
from lockstep.core.records import Message
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
_FORMAT = 1


class MessageRun(NamedTuple):
    """Contents of neighbouring ids."""

    first: MessageId
    length: int
    size: int
    """Bytes of properties and bodies."""
    messages: Sequence[Message] | msgspec.Raw
    """Raw: MessagePack, an array of them; not of more than fit one block."""

    @property
    def ids(self) -> Sequence[MessageId]:
        return range(self.first, self.first + self.length)  # type: ignore[return-value]

    @classmethod
    def of(cls, first: int, messages: Sequence[Message]) -> "MessageRun":
        return cls(MessageId(first), len(messages), size_of_all(messages), messages)


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


_RawRun = tuple[int, list[msgspec.Raw]]
_encode = msgspec.msgpack.Encoder().encode
_decode_messages = msgspec.msgpack.Decoder(tuple[int, list[_RawRun]]).decode
_decode_entries = msgspec.msgpack.Decoder(tuple[int, list[EntryRunValue]]).decode
_decode_pairs = msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]]).decode
_PREFIX = _encode((_FORMAT, ()))[:2]
"""Of all but the older ones, which begin with a pair."""


def cut_messages(runs: Iterable[MessageRun]) -> Iterator[list[MessageRun]]:
    """What goes into one block each, of runs in ascending order."""
    block: list[MessageRun] = []
    count = size = 0
    for run in runs:
        if not fits_block(count + run.length, size + run.size):
            if block:
                yield block
                block, count, size = [], 0, 0
            if not fits_block(run.length, run.size):
                yield from ([piece] for piece in _cut(run))
                continue
        block.append(run)
        count += run.length
        size += run.size
    if block:
        yield block


def fits_block(length: int, size: int) -> bool:
    """Whether so many messages, of so many bytes together, may be in one block."""
    return length <= BLOCK_ITEMS_MAX and size <= BLOCK_BYTES_MAX


def _cut(run: MessageRun) -> Iterator[MessageRun]:
    """Pieces of a run that does not fit one block."""
    assert not isinstance(run.messages, msgspec.Raw), "what does not fit a block is not packed"
    begin = size = 0
    for place, message in enumerate(run.messages):
        more = size_of(message)
        if place > begin and (place - begin == BLOCK_ITEMS_MAX or size + more > BLOCK_BYTES_MAX):
            yield MessageRun.of(run.first + begin, run.messages[begin:place])
            begin, size = place, 0
        size += more
    yield MessageRun.of(run.first + begin, run.messages[begin:])


def cut_entries(runs: Iterable[EntryRunValue]) -> Iterator[list[EntryRunValue]]:
    """The same of entries."""
    block: list[EntryRunValue] = []
    room = BLOCK_ITEMS_MAX
    for run in runs:
        rest = run
        while rest.count > room:
            if room:
                block.append(replace(rest, count=room))
                rest = replace(
                    rest,
                    first=QueuePosition(rest.first + room),
                    message=MessageId(rest.message + room),
                    count=rest.count - room,
                )
            yield block
            block, room = [], BLOCK_ITEMS_MAX
        block.append(rest)
        room -= rest.count
    if block:
        yield block


def messages_block(last: MessageId, runs: Sequence[MessageRun]) -> StateItem:
    """Contents, in ascending order of their ids."""
    value = _encode((_FORMAT, [(run.first, run.messages) for run in runs]))
    return StateItem(messages_block_key(last), value, True)


def messages_block_key(last: MessageId) -> bytes:
    return message_key(last) + _ITEMS


def left_key(last: MessageId) -> bytes:
    return message_key(last) + _LEFT


def left_item(last: MessageId, places: Iterable[int]) -> StateItem:
    """Which messages of a block, by their places in it, are left."""
    return StateItem(left_key(last), bytes(places), True)


def entries_block(queue: QueueId, last: QueuePosition, runs: Sequence[EntryRunValue]) -> StateItem:
    """Entries of one queue, in ascending order; `last`: what the block is named by, whether or not that is there."""
    return StateItem(entries_block_key(queue, last), _encode((_FORMAT, runs)), True)


def entries_block_key(queue: QueueId, last: QueuePosition) -> bytes:
    return entry_key(queue, last) + _ITEMS


def without(block: bytes, gone: Collection[MessageId]) -> tuple[bytes, list[Sequence[MessageId]]]:
    """The value of a block of messages, less some, and the ids in it. Raises `DiskError`."""
    left: list[_RawRun] = []
    for number, raw in _messages_in(block):
        if number in gone:
            continue
        if left and left[-1][0] + len(left[-1][1]) == number:
            left[-1][1].append(raw)
        else:
            left.append((number, [raw]))
    return _encode((_FORMAT, left)), [range(first, first + len(raws)) for first, raws in left]  # type: ignore[misc]


def _messages_in(block: bytes) -> list[tuple[int, msgspec.Raw]]:
    """Numbers and contents, as `Message`."""
    with _damage():
        if not block.startswith(_PREFIX):
            pairs = _decode_pairs(block)
            return [(number, msgspec.Raw(bytes(value)[len(WHOLE_PREFIX) :])) for number, value in pairs]
        return [pair for first, raws in _decode_messages(block)[1] for pair in enumerate(raws, first)]


def _entries_in(block: bytes) -> list[EntryRunValue]:
    with _damage():
        if not block.startswith(_PREFIX):
            return [
                EntryRunValue(QueuePosition(number), entry.message, 1, entry.delivery_count, entry.expires_ms)
                for number, value in _decode_pairs(block)
                for entry in (decode_entry(value),)
            ]
        return _decode_entries(block)[1]


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
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
    runs: tuple[Sequence[int], ...]
    """All numbers that are in it."""
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
        *queues, last = numbers_in(block.key[:-1])
        new = tuple.__new__  # As of `SnapshotDb.read_items`: there are millions.
        if not queues:
            messages, left = _messages_in(block.value), self._left
            self._found(QueueId(0), last, neighbours([number for number, _ in messages]))
            if left is not None:
                messages = [messages[place] for place in left]
            return [
                new(StateItem, (message_key(MessageId(number)), b"".join((WHOLE_PREFIX, raw)), True))
                for number, raw in messages
            ]
        queue, runs = QueueId(queues[0]), _entries_in(block.value)
        self._found(queue, last, [run.positions for run in runs])
        return [
            new(StateItem, (entry_key(queue, position), encode(value), True))
            for run in runs
            for position, value in zip(run.positions, _values(run), strict=True)
        ]

    def _found(self, queue: QueueId, last: int, runs: Iterable[Sequence[int]]) -> None:
        if self._blocks is not None:
            self._blocks.append(Block(queue, last, tuple(runs), self._left))


def _values(run: EntryRunValue) -> list[EntryValue]:
    count, expires_ms = run.delivery_count, run.expires_ms
    return [
        EntryValue(MessageId(number), count, expires_ms)
        for number in range(run.message, run.message + run.count)
    ]


def neighbours(numbers: Iterable[int]) -> list[Sequence[int]]:
    """Ascending numbers as ranges of neighbours."""
    runs: list[range] = []
    for number in numbers:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return list[Sequence[int]](runs)


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
