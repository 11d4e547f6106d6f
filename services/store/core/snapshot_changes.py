"""What the consolidator has changed since its last write to the snapshot, and the batch that writes it.

Law: what is new is written in blocks, what was there before is changed where it lies; what came and went between two writes is
never written. A body leaves the state when it is written.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from lockstep.core.block_cutting import (
    MessageRun,
    cut_entries,
    cut_messages,
    durable_entries,
    message_runs,
    messages_block,
)
from lockstep.core.contents import Contents
from lockstep.core.ids import LogIndex, MessageId, QueueId, QueuePosition
from lockstep.core.item_blocks import (
    Block,
    EntryRunValue,
    entries_block,
    entries_block_key,
    left_item,
    left_key,
    messages_block_key,
)
from lockstep.core.items import OPERATION, TRANSACTION, entry_keys, message_keys, numbers_in
from lockstep.core.queues import Queue
from lockstep.core.records import Message
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import StateItem
from lockstep.core.taking_apart import emptied
from services.store.core.block_places import BlockPlaces, KeptBlock
from services.store.core.blocks import without
from services.store.core.changed_numbers import ChangedNumbers

SPARSE_FRACTION = 4
"""A block of messages is written anew when at most this part of it is left: it takes the room of as many messages at most."""
_OF_TRANSACTIONS = (TRANSACTION, OPERATION)
THINNED_MAX = 64
"""Blocks of messages that are written anew behind one write: whoever wants to read the snapshot waits for them."""


class Batch(NamedTuple):
    """One write."""

    puts: tuple[StateItem, ...]
    deletes: tuple[bytes, ...]
    sparse: tuple[MessageId, ...]
    """Names of blocks of messages that are to be written anew: `SnapshotChanges.thinned`."""


class SnapshotChanges:
    """Of one consolidator's state, for as long as it has that."""

    def __init__(self) -> None:
        self._keys: dict[bytes, None] = {}
        """Changed since the last write, in the order of their first change."""
        self._messages = ChangedNumbers[MessageId]()
        self._entries: dict[QueueId, ChangedNumbers[QueuePosition]] = {}
        self._message_places = BlockPlaces[MessageId]()
        self._sparse: dict[MessageId, None] = {}
        """Of these blocks little is left: what is read from its head to its end is not worth the work."""
        self._entry_places: dict[QueueId, BlockPlaces[QueuePosition]] = {}

    def __len__(self) -> int:
        """Items, more or less."""
        return len(self._keys) + len(self._messages) + sum(map(len, self._entries.values()))

    # --- as a listener of the state ---

    def items_changed(self, keys: Iterable[bytes]) -> None:
        self._keys.update(dict.fromkeys(keys))

    def messages_changed(self, messages: Sequence[MessageId]) -> None:
        self._messages.add(messages)

    def entries_changed(self, queue: QueueId, positions: Sequence[QueuePosition]) -> None:
        changed = self._entries.get(queue)
        if changed is None:
            changed = self._entries[queue] = ChangedNumbers[QueuePosition]()
        changed.add(positions)

    # --- for the consolidator ---

    def found(self, blocks: Iterable[Block]) -> None:
        """Blocks that a snapshot has, in their order."""
        for found in blocks:
            if found.queue:
                positions: list[Sequence[QueuePosition]] = list(found.runs)  # type: ignore[arg-type]
                self._places_of(found.queue).add(QueuePosition(found.last), KeptBlock(positions))
            else:
                name, ids = MessageId(found.last), list[Sequence[MessageId]](found.runs)  # type: ignore[arg-type]
                block = KeptBlock(ids)
                if found.left is not None:
                    numbers = block.numbers()
                    block.gone = set(numbers).difference([numbers[place] for place in found.left])
                self._message_places.add(name, block)
                self._see_whether_sparse(name, block)

    def take(self, state: SetState, written: LogIndex) -> Batch:
        """What has changed since the snapshot was at `written`; from now on it counts as written."""
        puts: list[StateItem] = []
        deletes: list[bytes] = []
        self._take_keys(state, self._keys, puts, deletes)
        self._keys.clear()
        deletes = [key for key in deletes if not _began_behind(written, key)]
        sparse = self._take_messages(state.contents, written, puts, deletes)
        for queue_id, changed in self._entries.items():
            self._take_entries(state, queue_id, changed, written, puts, deletes)
        self._entries.clear()
        return Batch(tuple(puts), tuple(deletes), sparse)

    def thinned(self, name: MessageId, block: bytes | None) -> Batch:
        """A block of messages, by its present value, written anew with what is left of it. Raises `DiskError`."""
        kept = self._message_places.blocks.get(name)
        if block is None or kept is None:
            return Batch((), (), ())
        value, runs = without(block, kept.gone)
        self._message_places.blocks[name] = KeptBlock(runs)
        return Batch((StateItem(messages_block_key(name), value, True),), (left_key(name),), ())

    def take_apart(self) -> Iterator[int]:
        """The state is gone: leave nothing, in steps that say what they cost (`taking_apart`)."""
        yield from emptied(self._keys)
        yield from emptied(self._sparse)
        yield from self._messages.take_apart()
        yield from self._message_places.take_apart()
        for by_queue in (self._entries, self._entry_places):
            while by_queue:
                yield from by_queue.popitem()[1].take_apart()
                yield 1

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
        self, contents: Contents, written: LogIndex, puts: list[StateItem], deletes: list[bytes]
    ) -> tuple[MessageId, ...]:
        changed = self._messages.take(written)
        new: list[MessageRun] = []
        for ids in changed.new:
            new += _new_messages(contents, ids)
        for runs in cut_messages(new):
            name = runs[-1].ids[-1]
            puts.append(messages_block(name, runs))
            written_ids = [run.ids for run in runs]
            self._message_places.add(name, KeptBlock(written_ids))
            for ids in written_ids:
                contents.drop(ids, with_checksums=False)
        others = [number for number in changed.others if not contents.is_durable(number)]
        return self._remove_messages([*changed.gone, others], puts, deletes)

    def _remove_messages(
        self, gone: Sequence[Sequence[MessageId]], puts: list[StateItem], deletes: list[bytes]
    ) -> tuple[MessageId, ...]:
        """Those that were written before: nothing happens to them but that they go."""
        sparse_before, blocks = self._sparse, self._message_places.blocks
        self._sparse = {}
        touched: dict[MessageId, None] = {}
        for numbers in gone:
            for name, ids in self._message_places.pieces(numbers):
                if name is None:
                    deletes += message_keys(ids)
                else:
                    blocks[name].gone.update(ids)
                    touched[name] = None
        for name in touched:
            block = blocks[name]
            if not block.left:
                deletes += (messages_block_key(name), left_key(name))
                self._message_places.remove(name)
                continue
            puts.append(left_item(name, block.places_left()))
            self._see_whether_sparse(name, block)
        stuck = [name for name in sparse_before if name in blocks and name not in self._sparse]
        self._sparse.update(dict.fromkeys(stuck[THINNED_MAX:]))
        return tuple(stuck[:THINNED_MAX])

    def _see_whether_sparse(self, name: MessageId, block: KeptBlock[MessageId]) -> None:
        if block.left * SPARSE_FRACTION <= block.count:
            self._sparse[name] = None

    # --- entries ---

    def _take_entries(
        self,
        state: SetState,
        queue_id: QueueId,
        told: ChangedNumbers[QueuePosition],
        written: LogIndex,
        puts: list[StateItem],
        deletes: list[bytes],
    ) -> None:
        queue, places, changed = (
            state.queues.by_id.get(queue_id),
            self._places_of(queue_id),
            told.take(written),
        )
        touched: dict[QueuePosition, None] = {}
        for name, positions in places.pieces(changed.others):
            if name is None:
                self._take_keys(state, entry_keys(queue_id, positions), puts, deletes)
            else:
                places.blocks[name].gone.update(_gone(queue, positions))
                touched[name] = None
        for numbers in changed.gone:
            for name, positions in places.pieces(numbers):
                assert name is not None, f"entries from {numbers[0]} on came together and are in no block"
                places.blocks[name].gone.update(positions)
                touched[name] = None
        for name in touched:
            block = places.blocks[name]
            if block.left and queue is not None:
                puts.append(entries_block(queue_id, name, tuple(_entries(queue, block.numbers_left()))))
            else:
                deletes.append(entries_block_key(queue_id, name))
                places.remove(name)
        if queue is None:
            del self._entry_places[queue_id]
            return
        new: list[EntryRunValue] = []
        for positions in changed.new:
            new += _entries(queue, positions)
        for runs in cut_entries(new):
            name = runs[-1].positions[-1]
            puts.append(entries_block(queue_id, name, runs))
            places.add(name, KeptBlock([run.positions for run in runs]))

    def _places_of(self, queue: QueueId) -> BlockPlaces[QueuePosition]:
        places = self._entry_places.get(queue)
        if places is None:
            places = self._entry_places[queue] = BlockPlaces[QueuePosition]()
        return places


def _began_behind(written: LogIndex, key: bytes) -> bool:
    """Whether it names a transaction, or what one does, that began or was done behind `written`: no snapshot has it."""
    kind, numbers = key[:1], numbers_in(key) if key[:1] in _OF_TRANSACTIONS else ()
    return (kind == TRANSACTION and numbers[0] > written) or (kind == OPERATION and numbers[2] > written)


def _new_messages(contents: Contents, ids: Sequence[MessageId]) -> list[MessageRun]:
    """Those of these neighbours that are there, and durable."""
    if not contents.has_transients and (packed := contents.packed(ids)) is not None:
        return message_runs(ids, packed)
    there: list[MessageId] = []
    messages: list[Message] = []
    for message_id, content in zip(ids, contents.find_all(ids), strict=False):
        if content is None or not contents.is_durable(message_id):
            continue
        assert type(content) is Message, f"the body of {message_id} left before it was written"
        there.append(message_id)
        messages.append(content)
    return message_runs(there, messages)


def _gone(queue: Queue | None, positions: Sequence[QueuePosition]) -> Sequence[QueuePosition]:
    """Those of these entries that are not there, or not durable."""
    if queue is None or not queue.is_durable:
        return positions
    marked = queue.transient_positions
    there = {position for position in queue.present(positions) if position not in marked}
    return [position for position in positions if position not in there]


def _entries(queue: Queue, positions: Sequence[QueuePosition]) -> Iterator[EntryRunValue]:
    """Those of these entries that are there, and durable."""
    pieces = queue.pieces(positions) if queue.is_durable else ()
    return durable_entries(
        pieces,
        queue.delivery_counts,
        queue.expiries,
        queue.transient_positions,
        queue.deaths,
        queue.annotations,
    )
