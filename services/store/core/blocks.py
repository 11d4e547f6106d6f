"""Reading a snapshot that keeps messages and entries in blocks: as they lie, item by item, or some messages."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from lockstep.core.ids import LogIndex, MessageId, QueueId
from lockstep.core.item_blocks import (
    LEFT,
    DeadEntryRunValue,
    RawRun,
    check_block,
    encode_messages,
    entries_in,
    is_block,
    raw_messages_in,
)
from lockstep.core.item_values import WHOLE_PREFIX, encode_entry
from lockstep.core.items import MESSAGE, entry_key, message_key, numbers_in
from lockstep.core.store_protocol import StateItem
from services.store.core.disk import DiskError, DiskProblem, ReadSnapshotItems, Unusable
from services.store.core.known_snapshot import known_snapshot
from services.store.core.procedure import Procedure, compute, read_items
from services.store.core.stored_set import StoredSet

PIECE_ITEMS_MAX = 4096
"""Handed out at once: as many as a chunk of single items has that count 256 bytes each (`SnapshotDb`). Whoever gets a piece takes
it in as a whole, and heartbeats wait meanwhile; in blocks the bytes of one may hold ten times as many.
"""
PIECE_BLOCKS_MAX = 64
"""The same of blocks: as many messages as two pieces of single items, in a fraction of the time."""
_KEPT_BYTES = 64 << 10
"""Read at once for whoever wants single messages: less than a block, more than one item of its own."""


def without(block: bytes, gone: Collection[MessageId]) -> tuple[bytes, list[Sequence[MessageId]]]:
    """The value of a block of messages, less some, and the ids in it. Raises `DiskError`."""
    left: list[RawRun] = []
    with damage():
        messages = raw_messages_in(block)
    for number, raw in messages:
        if number in gone:
            continue
        if left and left[-1][0] + len(left[-1][1]) == number:
            left[-1][1].append(raw)
        else:
            left.append((number, [raw]))
    runs = [range(first, first + len(raws)) for first, raws in left]
    return encode_messages(left), runs  # type: ignore[return-value]


@contextmanager
def damage() -> Iterator[None]:
    """What is read in it are blocks, or other items of a state."""
    try:
        yield
    except msgspec.MsgspecError as error:
        # It names the step that read it, which read well: what says so is taken to be damage of the snapshot.
        step = ReadSnapshotItems(b"", 0)
        raise DiskError(DiskProblem.CORRUPT, f"a block of the snapshot: {error}", step) from error
    except (DiskError, MemoryError):
        raise
    except Exception as error:
        raise Unusable(LogIndex(0), f"the snapshot is that of no state: {error!r}") from error


def scan_of(the: StoredSet, from_key: bytes = b"") -> Procedure["Scan"]:
    """A scan of what the set's snapshot is now; as `known_snapshot`."""
    yield from known_snapshot(the)
    return Scan(the, from_key)


class Scan:
    """Reads a snapshot piece by piece, in key order from `from_key` on; it must not change while a piece is read, and once it has
    there are no more.
    """

    def __init__(self, the: StoredSet, from_key: bytes = b"") -> None:
        self.index = the.snapshot_index
        """Everything that is read is of the state there."""
        self._the, self._snapshot = the, the.snapshot
        self._from_key = self._next_key = from_key
        self._left: bytes | None = None
        """Of the block that comes next."""
        self._read: tuple[StateItem, ...] = ()
        """What was not handed out yet."""
        self._is_last_read = self.is_empty

    @property
    def is_empty(self) -> bool:
        """There is no snapshot."""
        return self._snapshot is None

    @property
    def is_over(self) -> bool:
        """The snapshot is not, or may not be, what it was at the beginning."""
        return not self._the.is_snapshot_known or self._the.snapshot is not self._snapshot

    def blocks(self, bytes_max: int) -> Procedure[tuple[tuple[StateItem, ...], bool]]:
        """About `bytes_max` bytes of items as they lie, those of blocks checked, perhaps none; and whether they are the last."""
        yield from self._read_more(bytes_max, _checked)
        return self._piece(PIECE_BLOCKS_MAX)

    def next(self, bytes_max: int) -> Procedure[tuple[tuple[StateItem, ...], bool]]:
        """The same, each by itself."""
        yield from self._read_more(bytes_max, self._items)
        return self._piece(PIECE_ITEMS_MAX)

    def some(self, bytes_max: int) -> Procedure[tuple[tuple[StateItem, ...], bool]]:
        """The same, at least one unless there are none."""
        items, is_last = yield from self.next(bytes_max)
        while not items and not is_last:
            items, is_last = yield from self.next(bytes_max)
        return items, is_last

    def _read_more(
        self, bytes_max: int, form: Callable[[tuple[StateItem, ...]], tuple[StateItem, ...]]
    ) -> Procedure[None]:
        """If all that was read is handed out."""
        if self._read or self._is_last_read:
            return
        kept, self._is_last_read = yield from read_items(self._next_key, bytes_max)
        if self._the.snapshot is not self._snapshot:
            raise DiskError(DiskProblem.FAILED, "the snapshot was lost, and read anew, meanwhile")
        if kept:
            self._next_key = kept[-1].key + b"\0"
        has_blocks = any(is_block(item.key) for item in kept)
        self._read = (yield from compute(partial(form, kept))) if has_blocks else kept

    def _piece(self, items_max: int) -> tuple[tuple[StateItem, ...], bool]:
        items, self._read = self._read[:items_max], self._read[items_max:]
        return items, self._is_last_read and not self._read

    def _items(self, kept: tuple[StateItem, ...]) -> tuple[StateItem, ...]:
        items: list[StateItem] = []
        with damage():
            for item in kept:
                if not is_block(item.key):
                    items.append(item)
                elif item.key[-1:] == LEFT:
                    self._left = item.value
                else:
                    items += self._items_of(item)
                    self._left = None
        if items and items[0].key < self._from_key:
            items = [item for item in items if item.key >= self._from_key]
        return tuple(items)

    def _items_of(self, block: StateItem) -> list[StateItem]:
        *queues, _ = numbers_in(block.key[:-1])
        new = tuple.__new__  # As of `SnapshotDb.read_items`: there are millions.
        if not queues:
            messages = raw_messages_in(block.value)
            if self._left is not None:
                messages = [messages[place] for place in self._left]
            return [
                new(StateItem, (message_key(MessageId(number)), b"".join((WHOLE_PREFIX, raw)), True))
                for number, raw in messages
            ]
        return [
            new(StateItem, (entry_key(QueueId(queues[0]), position), value, True))
            for run in entries_in(block.value)
            for position, value in zip(run.positions, _values(run), strict=True)
        ]


def _checked(kept: tuple[StateItem, ...]) -> tuple[StateItem, ...]:
    with damage():
        for item in kept:
            if is_block(item.key):
                check_block(item)
    return kept


def _values(run: DeadEntryRunValue) -> list[bytes]:
    count, expires_ms, deaths, said = run.delivery_count, run.expires_ms, run.deaths, run.annotations
    return [encode_entry(number, count, expires_ms, deaths, said) for number in run.messages]


def kept_messages(
    the: StoredSet, messages: Iterable[MessageId], bytes_max: int
) -> Procedure[tuple[dict[MessageId, bytes], set[MessageId]]]:
    """The values of those of these contents that the snapshot has, the lowest first, about `bytes_max`; and those that were not
    looked for then.
    """
    wanted, found = sorted(set(messages)), dict[MessageId, bytes]()
    place = size = 0
    while place < len(wanted):
        if size >= bytes_max:
            return found, set(wanted[place:])
        scan = yield from scan_of(the, message_key(wanted[place]))
        items, is_last = yield from scan.some(_KEPT_BYTES)
        numbers = [MessageId(numbers_in(item.key)[0]) for item in items if item.key[:1] == MESSAGE]
        if not numbers:
            break
        behind = bisect_right(wanted, numbers[-1])
        asked_for = set(wanted[place:behind])
        for number, item in zip(numbers, items, strict=False):
            if number in asked_for:
                found[number] = item.value
                size += len(item.value)
        if is_last or len(numbers) < len(items):
            break
        place = behind
    return found, set()
