"""Queues: which messages are where, in which order, and who holds a lock on them.

Law: entries are in position order (`QueueEntries`), and a position is given once: what comes back keeps its own. An entry is
durable only if the record that made it and its queue are; a transient record never takes away a durable entry. Locks belong to
open or prepared transactions. Contents are elsewhere (`Contents`); an entry is one reference to one.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, takewhile

import msgspec

from lockstep.core.amqp.annotations import combined
from lockstep.core.content import Content
from lockstep.core.contents import Contents
from lockstep.core.deaths import Deaths
from lockstep.core.entry_pages import Pairs, Piece
from lockstep.core.entry_runs import EntryRun
from lockstep.core.ids import MessageId, QueueId, QueuePosition, TransactionKey
from lockstep.core.items import Changes
from lockstep.core.position_tables import PositionTable
from lockstep.core.priorities import Priorities
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.queue_entries import QueueEntries
from lockstep.core.records import DeclareQueue, Message

RESTORED_IN_ONE = 500
"""Entries of a snapshot that are put into a queue in one go."""
_WHOLE = {Message}


class Removed(msgspec.Struct, gc=False):
    """What `Queue.remove` took out."""

    positions: list[QueuePosition] = []
    durable: list[Sequence[MessageId]] = []
    """Contents that lost a durable reference, in batches."""
    transient: list[Sequence[MessageId]] = []


class Queue(QueueEntries):
    """One queue, from its declaration to its deletion. Only the state that it belongs to changes it; anyone reads it."""

    __slots__ = (
        "_captures",
        "_changes",
        "_contents",
        "_said",
        "annotations",
        "bytes",
        "deaths",
        "definition",
        "delivery_counts",
        "expiries",
        "id",
        "is_durable",
        "length",
        "locks",
        "name",
        "priorities",
        "reserved_bytes",
        "reserved_length",
        "transient_positions",
    )

    def __init__(
        self,
        queue_id: QueueId,
        definition: DeclareQueue,
        contents: Contents,
        changes: Changes,
        page_entries: int,
    ) -> None:
        super().__init__(page_entries)
        self.id = queue_id
        self.definition = definition
        """The record that declared it, without its command; and whether it was used since."""
        self.name = definition.name
        self.is_durable = definition.is_durable
        self._contents = contents
        self._changes = changes
        self._captures = changes.captures
        self.length = 0
        """Messages in the queue, locked ones included."""
        self.transient_positions: PositionTable[None] = PositionTable()
        """Entries of a durable queue that are not durable; not used by a transient queue, where none is."""
        self.delivery_counts: PositionTable[int] = PositionTable()
        """Failed deliveries of entries that have any."""
        self.expiries: PositionTable[int] = PositionTable()
        """When entries expire that were moved here (TimeMs; 0: never): for all others their contents say it."""
        self.deaths: PositionTable[Deaths] = PositionTable()
        """Of entries that are dead letters: why."""
        self.annotations: PositionTable[bytes] = PositionTable()
        """Of entries of which somebody who gave them back said something: as `Annotate` has it, combined."""
        self.priorities: Priorities | None = None
        """Of entries that have another than the default one; None: there is no such entry."""
        self.locks: PositionTable[TransactionKey] = PositionTable()
        """Entries that a transaction will remove when it commits."""
        self._said = self.delivery_counts, self.expiries, self.deaths, self.annotations, self.locks
        """What goes with an entry."""
        self.bytes = 0
        """Of properties and bodies of all entries."""
        self.reserved_length = 0
        """Messages that open and prepared transactions will add."""
        self.reserved_bytes = 0

    # --- asking ---

    @property
    def unlocked_length(self) -> int:
        return self.length - len(self.locks)

    def message(self, position: QueuePosition) -> Message | None:
        """The message at a position; None if there is none or its body is away."""
        message_id = self.message_id(position)
        return self._contents.get(message_id) if message_id is not None else None

    def messages(self, positions: Sequence[QueuePosition]) -> list[Message]:
        """The messages at positions that are there, up to the first whose body is away."""
        found: list[Content] = []
        for _, ids in self.pieces(positions):
            found += self._contents.of(ids)
        if not set(map(type, found)) <= _WHOLE:
            found = list(takewhile(lambda content: type(content) is Message, found))
        return found  # type: ignore[return-value]

    def size_of(self, positions: Sequence[QueuePosition]) -> int:
        """Bytes of the messages at positions that are there, as `bytes` counts them, whether or not their bodies are away."""
        return sum([self._contents.total_size(ids) for _, ids in self.pieces(positions)])

    def delivery_count(self, position: QueuePosition) -> int:
        return self.delivery_counts.get(position, 0)

    def is_worn_out(self, position: QueuePosition) -> bool:
        """Whether a message failed as often as the queue allows."""
        limit = self.definition.delivery_count_max
        return bool(limit) and self.delivery_count(position) >= limit

    def expires_ms(self, position: QueuePosition) -> int:
        """When the message at a position that is there expires (TimeMs); 0: never."""
        moved = self.expiries.get(position) if self.expiries.pages else None
        if moved is not None:
            return moved
        (content,) = self._contents.of(self.message_ids((position,)))
        return content.expires_ms

    def ends_of(self, positions: Sequence[QueuePosition]) -> Iterator[tuple[QueuePosition, int]]:
        """Those of these positions whose messages are there and expire, and when (TimeMs)."""
        moved, contents = self.expiries, self._contents
        for piece, ids in self.pieces(positions):
            for position, content in zip(piece, contents.of(ids), strict=True):
                expires_ms = moved.get(position, content.expires_ms) if moved.pages else content.expires_ms
                if expires_ms:
                    yield position, expires_ms

    def priority(self, position: QueuePosition) -> int:
        """The level of the message at a position; the default one if there is none."""
        return self.priorities.level(position) if self.priorities is not None else PRIORITY_DEFAULT

    def is_entry_durable(self, position: QueuePosition) -> bool:
        """Whether the entry at this position, which is there, survives a restart."""
        return self.is_durable and position not in self.transient_positions

    # --- changing it ---

    def append(
        self, positions: Sequence[QueuePosition], ids: Sequence[MessageId], size: int, is_durable: bool
    ) -> None:
        """Add entries behind all others. `size`: bytes of all of them. References are counted by the caller."""
        self._put(positions, ids, size)
        self.length += len(positions)
        self.bytes += size
        if self.is_durable:
            if not is_durable:
                self.transient_positions.say(positions, None)
            elif self._changes.listener is not None:
                self._tell(positions)

    def prioritise(self, positions: Sequence[QueuePosition], levels: Sequence[int]) -> None:
        """Entries that were just added have these priorities, one of which at least is not the default one."""
        if self.priorities is None:
            self.priorities = Priorities()
        self.priorities.add(positions, levels)

    def remove(self, positions: Sequence[QueuePosition], is_durable: bool) -> Removed:
        """Take entries out with their counts and locks, on behalf of a durable record or not. What is not there is skipped.

        References to their contents are the caller's to release.
        """
        if self._captures.of_entries:
            self._captures.entries_change(self, positions)
        removed = Removed()
        marked = self.transient_positions
        if not self.is_durable:
            self._take_out(positions, False, removed)
        elif not (marked.pages and marked.any_of(positions)):
            # Nearly always: a record is of entries of one kind.
            if is_durable:
                self._take_out(positions, True, removed)
        else:
            for is_marked, alike in groupby(positions, marked.__contains__):
                if is_marked or is_durable:
                    self._take_out(tuple(alike), not is_marked, removed)
            marked.remove(removed.positions)
        for said in self._said:
            if said.pages:
                said.remove(removed.positions)
        if self.priorities is not None:
            self.priorities.remove(removed.positions)
            if not self.priorities:
                self.priorities = None
        return removed

    def _take_out(self, positions: Sequence[QueuePosition], are_durable: bool, removed: Removed) -> None:
        """Take out those of these that are there."""
        for page, some in self._by_page(positions):
            for run, piece in page.pieces(some):
                ids = page.ids(run, piece)
                if run is None:
                    size = self._contents.total_size(ids)
                    for position in piece:
                        del page.single[position]
                elif len(piece) == run.left:
                    size = run.size
                    page.runs.remove(run)
                else:
                    size = self._contents.total_size(ids)
                    run.remove(piece, size)
                self.length -= len(piece)
                self.bytes -= size
                removed.positions.extend(piece)
                (removed.durable if are_durable else removed.transient).append(ids)
                if are_durable and self._changes.listener is not None:
                    self._tell(piece)
            self._trim(page)

    def lock(self, positions: Iterable[QueuePosition], owner: TransactionKey, is_durable: bool) -> None:
        """Lock entries that are there and free, and durable ones only on behalf of a durable record."""
        there = self.present(positions)
        if not is_durable:
            there = [position for position in there if not self.is_entry_durable(position)]
        self.locks.say_first(there, owner)

    def locked_by(self, owner: TransactionKey, positions: Iterable[QueuePosition]) -> list[QueuePosition]:
        """Those of these positions that `owner` has locked."""
        return self.locks.those_of(positions, owner)

    def unlock(self, positions: Iterable[QueuePosition]) -> None:
        """Remove the locks on these positions, which are there."""
        self.locks.remove(positions)

    def take_apart(self) -> Iterator[int]:
        """As of its entries, and what is said of them."""
        yield from super().take_apart()
        for said in (self.transient_positions, *self._said):
            yield from said.take_apart()
        if self.priorities is not None:
            yield from self.priorities.take_apart()

    def annotate(self, positions: Iterable[QueuePosition], annotations: bytes, is_durable: bool) -> None:
        """Combine what is said of entries that are there with what was said before; of durable ones only for a durable record."""
        known: dict[bytes, bytes] = {}
        for position in self._to_change(positions, is_durable):
            before = self.annotations.get(position, b"")
            if before not in known:
                known[before] = combined(before, annotations)
            self.annotations[position] = known[before]
            if self.is_entry_durable(position):
                self._tell((position,))

    def _to_change(self, positions: Iterable[QueuePosition], is_durable: bool) -> list[QueuePosition]:
        """Those that are there; durable ones only for a durable record. They are about to be changed."""
        found = [
            position
            for position in self.present(positions)
            if is_durable or not self.is_entry_durable(position)
        ]
        if self._captures.of_entries:
            self._captures.entries_change(self, found)
        return found

    def count_delivery(self, positions: Iterable[QueuePosition], is_durable: bool) -> list[QueuePosition]:
        """One more failed delivery of entries that are there; of durable ones only for a durable record. Answers which."""
        counted = self._to_change(positions, is_durable)
        self.delivery_counts.count(counted)
        if self._changes.listener is not None:
            self._tell([position for position in counted if self.is_entry_durable(position)])
        return counted

    def restore(self, entries: Pairs, runs: Sequence[EntryRun], are_durable: bool) -> Iterator[Piece]:
        """Add entries of a snapshot, both kinds in order, wherever their positions belong; contents that they refer to are here.
        Each piece is counted when it is given; the queue is whole when all were.
        """
        for part in _parts(entries, runs):
            yield self._restored(part, are_durable)

    def _restored(self, part: Pairs | EntryRun, are_durable: bool) -> Piece:
        positions: Sequence[QueuePosition]
        ids: Sequence[MessageId]
        if isinstance(part, EntryRun):
            positions = range(part.first, part.end)  # type: ignore[assignment]
            first = MessageId(part.first + part.shift)
            ids = range(first, first + len(positions))  # type: ignore[assignment]
            part.size = size = self._contents.total_size(ids)
        else:
            positions, ids = [position for position, _ in part], [message_id for _, message_id in part]
            size = self._contents.total_size(ids)
        levels = self._contents.priorities(ids)
        if levels is not None:
            self.prioritise(positions, levels)
        self._put_between(part)
        self.length += len(positions)
        self.bytes += size
        if self.is_durable and not are_durable:
            self.transient_positions.update([(position, None) for position in positions])
        return positions, ids

    def _tell(self, positions: Sequence[QueuePosition]) -> None:
        listener = self._changes.listener
        if listener is not None:
            listener.entries_changed(self.id, positions)

    def __repr__(self) -> str:
        return f"Queue({self.id}, {self.name!r}, length={self.length}, bytes={self.bytes})"


def _parts(entries: Pairs, runs: Sequence[EntryRun]) -> Iterator[Pairs | EntryRun]:
    """Both together in their order: runs, and between them some entries at a time."""
    begin = 0
    for run in runs:
        end = bisect_left(entries, (run.first,), begin)
        for part in range(begin, end, RESTORED_IN_ONE):
            yield entries[part : min(part + RESTORED_IN_ONE, end)]
        begin = end
        yield run
    for part in range(begin, len(entries), RESTORED_IN_ONE):
        yield entries[part : part + RESTORED_IN_ONE]


class Queues:
    """All queues of one resource set's state, which alone changes them."""

    __slots__ = ("by_id", "by_name")

    def __init__(self) -> None:
        self.by_id: dict[QueueId, Queue] = {}
        self.by_name: dict[str, Queue] = {}

    def get(self, name: str) -> Queue | None:
        return self.by_name.get(name)

    def add(self, queue: Queue) -> None:
        self.by_id[queue.id] = queue
        self.by_name[queue.name] = queue

    def remove(self, queue: Queue) -> None:
        del self.by_id[queue.id]
        if self.by_name.get(queue.name) is queue:
            del self.by_name[queue.name]
