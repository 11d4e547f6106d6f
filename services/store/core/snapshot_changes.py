"""What the consolidator has changed since its last write to the snapshot, and the batch that writes it.

Law: what is new is written in blocks, what was there before is changed where it lies; what came and went between two writes is
never written. A body leaves the state when it is written.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from lockstep.core.contents import size_of
from lockstep.core.ids import LogIndex, MessageId, QueueId, QueuePosition, index_of
from lockstep.core.item_values import EntryValue, WholeMessage
from lockstep.core.items import entry_keys, message_keys
from lockstep.core.queues import Queue
from lockstep.core.records import Message
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import StateItem
from services.store.core.blocks import (
    BLOCK_BYTES_MAX,
    BLOCK_ITEMS_MAX,
    Block,
    entries_block,
    entries_block_key,
    left_item,
    left_key,
    messages_block,
    messages_block_key,
    without,
)

SPARSE_FRACTION = 4
"""A block of messages is written anew when at most this part of it is left: it takes the room of as many messages at most."""
THINNED_MAX = 64
"""Blocks of messages that are written anew behind one write: whoever wants to read the snapshot waits for them."""

Number = TypeVar("Number", MessageId, QueuePosition)


class Batch(NamedTuple):
    """One write."""

    puts: tuple[StateItem, ...]
    deletes: tuple[bytes, ...]
    sparse: tuple[MessageId, ...]
    """Names of blocks of messages that are to be written anew: `SnapshotChanges.thinned`."""


class _Places(Generic[Number]):
    """Which numbers of one kind, of entries of one queue, are in which block."""

    __slots__ = ("_names", "blocks")

    def __init__(self) -> None:
        self._names: list[Number] = []
        """Of blocks, ascending."""
        self.blocks: dict[Number, list[Number]] = {}
        """What was in each when it was written last, ascending."""

    def add(self, name: Number, numbers: list[Number]) -> None:
        """A block behind all others."""
        assert not self._names or self._names[-1] < numbers[0], f"block {name} is not behind all others"
        self._names.append(name)
        self.blocks[name] = numbers

    def remove(self, name: Number) -> None:
        del self._names[bisect_left(self._names, name)]
        del self.blocks[name]

    def by_block(self, numbers: Iterable[Number]) -> dict[Number | None, list[Number]]:
        """Numbers by their block's name; None: those that have items of their own."""
        found: dict[Number | None, list[Number]] = {}
        names, blocks = self._names, self.blocks
        name: Number | None = None
        first = last = -1
        for number in numbers:
            if not first <= number <= last:
                place = bisect_left(names, number)
                name = names[place] if place < len(names) else None
                if name is not None:
                    first, last = blocks[name][0], name
                if name is None or number < first:
                    name, first, last = None, number, number
            found.setdefault(name, []).append(number)
        return found


class SnapshotChanges:
    """Of one consolidator's state, for as long as it has that."""

    def __init__(self) -> None:
        self._keys: dict[bytes, None] = {}
        """Changed since the last write, in the order of their first change; so are the next two."""
        self._messages: dict[MessageId, None] = {}
        self._entries: dict[QueueId, dict[QueuePosition, None]] = {}
        self._entry_count = 0
        self._message_places = _Places[MessageId]()
        self._written: dict[MessageId, tuple[MessageId, ...]] = {}
        """Of blocks of messages: all that is in them, whether or not it is left."""
        self._sparse: dict[MessageId, None] = {}
        """Of these blocks little is left: what is read from its head to its end is not worth the work."""
        self._entry_places: dict[QueueId, _Places[QueuePosition]] = {}

    def __len__(self) -> int:
        """Items, more or less."""
        return len(self._keys) + len(self._messages) + self._entry_count

    # --- as a listener of the state ---

    def items_changed(self, keys: Iterable[bytes]) -> None:
        self._keys.update(dict.fromkeys(keys))

    def messages_changed(self, messages: Iterable[MessageId]) -> None:
        self._messages.update(dict.fromkeys(messages))

    def entries_changed(self, queue: QueueId, positions: Iterable[QueuePosition]) -> None:
        entries = self._entries.get(queue)
        if entries is None:
            entries = self._entries[queue] = {}
        before = len(entries)
        entries.update(dict.fromkeys(positions))
        self._entry_count += len(entries) - before

    # --- for the consolidator ---

    def found(self, blocks: Iterable[Block]) -> None:
        """Blocks that a snapshot has, in their order."""
        for block in blocks:
            if block.queue:
                positions = [QueuePosition(number) for number in block.numbers]
                self._places_of(block.queue).add(QueuePosition(block.last), positions)
            else:
                name, ids = MessageId(block.last), tuple(MessageId(number) for number in block.numbers)
                places = range(len(ids)) if block.left is None else block.left
                left = [ids[place] for place in places]
                self._message_places.add(name, left)
                self._written[name] = ids
                self._see_whether_sparse(name, left)

    def take(self, state: SetState, written: LogIndex) -> Batch:
        """What has changed since the snapshot was at `written`; from now on it counts as written."""
        puts: list[StateItem] = []
        deletes: list[bytes] = []
        self._take_keys(state, self._keys, puts, deletes)
        self._keys.clear()
        sparse = self._take_messages(state, written, puts, deletes)
        for queue_id, positions in self._entries.items():
            self._take_entries(state, queue_id, positions, written, puts, deletes)
        self._entries.clear()
        self._entry_count = 0
        return Batch(tuple(puts), tuple(deletes), sparse)

    def thinned(self, name: MessageId, block: bytes | None) -> Batch:
        """A block of messages, by its present value, written anew with what is left of it. Raises `DiskError`."""
        if block is None or name not in self._written:
            return Batch((), (), ())
        left = self._message_places.blocks[name]
        gone = frozenset(self._written[name]).difference(left)
        self._written[name] = tuple(left)
        item = StateItem(messages_block_key(name), without(block, gone), True)
        return Batch((item,), (left_key(name),), ())

    @staticmethod
    def _take_keys(
        state: SetState, keys: Iterable[bytes], puts: list[StateItem], deletes: list[bytes]
    ) -> None:
        for key in keys:
            item = state.item(key)
            if item is not None and item.is_durable:
                puts.append(item)
            else:
                deletes.append(key)

    # --- messages ---

    def _take_messages(
        self, state: SetState, written: LogIndex, puts: list[StateItem], deletes: list[bytes]
    ) -> tuple[MessageId, ...]:
        contents, messages = state.contents, state.contents.messages
        new: list[tuple[MessageId, WholeMessage]] = []
        old: list[MessageId] = []
        for message_id in self._messages:
            if index_of(message_id) <= written:
                old.append(message_id)
                continue
            content = messages.get(message_id)
            if content is not None and contents.references(message_id)[0]:
                assert type(content) is Message, f"the body of {message_id} left before it was written"
                new.append((message_id, WholeMessage(content)))
        self._messages.clear()
        new.sort(key=itemgetter(0))
        for run in _runs(new):
            ids = [message_id for message_id, _ in run]
            puts.append(messages_block(run))
            self._message_places.add(ids[-1], ids)
            self._written[ids[-1]] = tuple(ids)
            for message_id in ids:
                contents.drop(message_id)
        return self._remove_messages(state, old, puts, deletes)

    def _remove_messages(
        self, state: SetState, old: Iterable[MessageId], puts: list[StateItem], deletes: list[bytes]
    ) -> tuple[MessageId, ...]:
        """Those that were written before: nothing happens to them but that they go."""
        contents, sparse_before = state.contents, self._sparse
        self._sparse = {}
        gone = [
            number for number in old if number not in contents.messages or not contents.references(number)[0]
        ]
        for name, ids in self._message_places.by_block(gone).items():
            if name is None:
                deletes += message_keys(ids)
                continue
            without_these = set(ids)
            left = [number for number in self._message_places.blocks[name] if number not in without_these]
            in_block = self._written[name]
            if not left:
                deletes += (messages_block_key(name), left_key(name))
                self._message_places.remove(name)
                del self._written[name]
                continue
            self._message_places.blocks[name] = left
            is_left = set(left)
            puts.append(
                left_item(name, (place for place, number in enumerate(in_block) if number in is_left))
            )
            self._see_whether_sparse(name, left)
        stuck = [name for name in sparse_before if name in self._written and name not in self._sparse]
        self._sparse.update(dict.fromkeys(stuck[THINNED_MAX:]))
        return tuple(stuck[:THINNED_MAX])

    def _see_whether_sparse(self, name: MessageId, left: Sequence[MessageId]) -> None:
        if len(left) * SPARSE_FRACTION <= len(self._written[name]):
            self._sparse[name] = None

    # --- entries ---

    def _take_entries(
        self,
        state: SetState,
        queue_id: QueueId,
        positions: Iterable[QueuePosition],
        written: LogIndex,
        puts: list[StateItem],
        deletes: list[bytes],
    ) -> None:
        queue, places = state.queues.by_id.get(queue_id), self._places_of(queue_id)
        old = [position for position in positions if index_of(position) <= written]
        for name, changed in places.by_block(old).items():
            if name is None:
                self._take_keys(state, entry_keys(queue_id, changed), puts, deletes)
                continue
            left = _entries(queue, places.blocks[name])
            if left:
                puts.append(entries_block(queue_id, name, left))
                places.blocks[name] = [position for position, _ in left]
            else:
                deletes.append(entries_block_key(queue_id, name))
                places.remove(name)
        if queue is None:
            del self._entry_places[queue_id]
            return
        new = _entries(queue, sorted(position for position in positions if index_of(position) > written))
        for begin in range(0, len(new), BLOCK_ITEMS_MAX):
            run = new[begin : begin + BLOCK_ITEMS_MAX]
            puts.append(entries_block(queue_id, run[-1][0], run))
            places.add(run[-1][0], [position for position, _ in run])

    def _places_of(self, queue: QueueId) -> _Places[QueuePosition]:
        places = self._entry_places.get(queue)
        if places is None:
            places = self._entry_places[queue] = _Places[QueuePosition]()
        return places


def _runs(messages: list[tuple[MessageId, WholeMessage]]) -> Iterator[list[tuple[MessageId, WholeMessage]]]:
    """Blocks of messages."""
    begin = size = 0
    for place, (_, value) in enumerate(messages):
        more = size_of(value.message)
        if place > begin and (place - begin == BLOCK_ITEMS_MAX or size + more > BLOCK_BYTES_MAX):
            yield messages[begin:place]
            begin, size = place, 0
        size += more
    if messages:
        yield messages[begin:]


def _entries(
    queue: Queue | None, positions: Sequence[QueuePosition]
) -> list[tuple[QueuePosition, EntryValue]]:
    """Those of these entries that are there, and durable."""
    if queue is None or not queue.is_durable:
        return []
    entries, counts, expiries = queue.entries, queue.delivery_counts, queue.expiries
    transient = queue.transient_positions
    return [
        (position, EntryValue(entries[position], counts.get(position, 0), expiries.get(position)))
        for position in positions
        if position in entries and position not in transient
    ]
