"""Queues: which messages are where, in which order, and who holds a lock on them.

Law: entries are in position order, and a position is given once: what comes back keeps its own. An entry is durable only if
the record that made it and its queue are; a transient record never takes away a durable entry. Locks belong to open or
prepared transactions. Contents are elsewhere (`Contents`); an entry is one reference to one.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from lockstep.core.contents import Contents
from lockstep.core.ids import MessageId, QueueId, QueuePosition, TransactionKey
from lockstep.core.items import Changes
from lockstep.core.records import DeclareQueue, Message

_SLACK = 64
"""Positions without an entry that the order list may keep beyond the number of entries: removing stays O(1) amortised."""
_WHOLE = {Message}


class Removed(NamedTuple):
    """What `Queue.remove` took out."""

    positions: list[QueuePosition]
    durable: list[MessageId]
    """Contents that lost a durable reference."""
    transient: list[MessageId]


class Queue:
    """One queue, from its declaration to its deletion. Only the state that it belongs to changes it; anyone reads it."""

    __slots__ = (
        "_changes",
        "_contents",
        "_order",
        "_start",
        "bytes",
        "definition",
        "delivery_counts",
        "entries",
        "expiries",
        "id",
        "is_durable",
        "locks",
        "name",
        "reserved_bytes",
        "reserved_length",
        "transient_positions",
    )

    def __init__(
        self, queue_id: QueueId, definition: DeclareQueue, contents: Contents, changes: Changes
    ) -> None:
        self.id = queue_id
        self.definition = definition
        """The record that declared it, without its command."""
        self.name = definition.name
        self.is_durable = definition.is_durable
        self._contents = contents
        self._changes = changes
        self.entries: dict[QueuePosition, MessageId] = {}
        self.transient_positions: set[QueuePosition] = set()
        """Entries of a durable queue that are not durable; not used by a transient queue, where none is."""
        self.delivery_counts: dict[QueuePosition, int] = {}
        """Failed deliveries of entries that have any."""
        self.expiries: dict[QueuePosition, int] = {}
        """When entries expire that were moved here (TimeMs; 0: never): for all others their contents say it."""
        self.locks: dict[QueuePosition, TransactionKey] = {}
        """Entries that a transaction will remove when it commits."""
        self.bytes = 0
        """Of properties and bodies of all entries."""
        self.reserved_length = 0
        """Messages that open and prepared transactions will add."""
        self.reserved_bytes = 0
        self._order: list[QueuePosition] = []
        """Ascending positions from `_start` on: all entries, and some that are gone."""
        self._start = 0

    @property
    def length(self) -> int:
        """Messages in the queue, locked ones included."""
        return len(self.entries)

    @property
    def unlocked_length(self) -> int:
        return len(self.entries) - len(self.locks)

    def head(self) -> QueuePosition | None:
        """The first position, None if the queue is empty. O(1) amortised."""
        order, entries, start = self._order, self.entries, self._start
        while start < len(order) and order[start] not in entries:
            start += 1
        self._start = start
        return order[start] if start < len(order) else None

    def positions(self, start: int = 0, limit: int | None = None) -> list[QueuePosition]:
        """Positions from `start` on, ascending, at most `limit`; locked ones included. A copy: the queue may change after."""
        self.head()  # Moves `_start` past what is gone, so that nobody walks over it again.
        entries, order = self.entries, self._order
        place = max(self._start, bisect_left(order, start)) if start else self._start
        if limit is None:
            return [position for position in order[place:] if position in entries]
        found: list[QueuePosition] = []
        while place < len(order) and len(found) < limit:
            step = order[place : place + limit]
            found += [position for position in step if position in entries]
            place += len(step)
        return found[:limit]

    def message(self, position: QueuePosition) -> Message | None:
        """The message at a position; None if there is none or its body is away."""
        message_id = self.entries.get(position)
        return self._contents.get(message_id) if message_id is not None else None

    def messages(self, positions: Iterable[QueuePosition]) -> list[Message]:
        """The messages at positions that are there, up to the first whose body is away."""
        entries, contents = self.entries, self._contents.messages
        found = [contents[entries[position]] for position in positions]
        if not set(map(type, found)) <= _WHOLE:
            found = list(takewhile(lambda content: type(content) is Message, found))
        return found  # type: ignore[return-value]

    def size_of(self, position: QueuePosition) -> int:
        """Bytes of the message at a position that is there, as `bytes` counts them, whether or not its body is away."""
        return self._contents.total_size((self.entries[position],))

    def delivery_count(self, position: QueuePosition) -> int:
        return self.delivery_counts.get(position, 0)

    def expires_ms(self, position: QueuePosition) -> int:
        """When the message at a position that is there expires (TimeMs); 0: never."""
        moved = self.expiries.get(position) if self.expiries else None
        return self._contents.messages[self.entries[position]].expires_ms if moved is None else moved

    def is_entry_durable(self, position: QueuePosition) -> bool:
        """Whether the entry at this position, which is there, survives a restart."""
        return self.is_durable and position not in self.transient_positions

    def append(
        self, positions: Sequence[QueuePosition], ids: Iterable[MessageId], size: int, is_durable: bool
    ) -> None:
        """Add entries behind all others. `size`: bytes of all of them. References are counted by the caller."""
        self.entries.update(zip(positions, ids, strict=True))
        self._order.extend(positions)
        self.bytes += size
        if self.is_durable:
            if is_durable:
                self._tell(positions)
            else:
                self.transient_positions.update(positions)

    def remove(self, positions: Iterable[QueuePosition], is_durable: bool) -> Removed:
        """Take entries out with their counts and locks, on behalf of a durable record or not. What is not there is skipped.

        References to their contents are the caller's to release.
        """
        entries = self.entries
        gone: list[QueuePosition] = []
        durable: list[MessageId] = []
        transient: list[MessageId] = []
        if self.is_durable and is_durable and not self.transient_positions:
            for position in positions:
                if (message_id := entries.pop(position, None)) is not None:
                    gone.append(position)
                    durable.append(message_id)
            self._tell(gone)
        else:
            for position in positions:
                if position not in entries:
                    continue
                if not self.is_entry_durable(position):
                    self.transient_positions.discard(position)
                    transient.append(entries.pop(position))
                elif is_durable:
                    durable.append(entries.pop(position))
                    self._tell((position,))
                else:
                    continue
                gone.append(position)
        self.bytes -= self._contents.total_size(durable) + self._contents.total_size(transient)
        for side in (self.delivery_counts, self.expiries, self.locks):
            if side:
                for position in gone:
                    side.pop(position, None)
        self._trim()
        return Removed(gone, durable, transient)

    def lock(self, positions: Iterable[QueuePosition], owner: TransactionKey, is_durable: bool) -> None:
        """Lock entries that are there and free, and durable ones only on behalf of a durable record."""
        entries, locks = self.entries, self.locks
        if is_durable or not self.is_durable:
            for position in positions:
                if position in entries:
                    locks.setdefault(position, owner)
        else:
            for position in positions:
                if position in entries and position in self.transient_positions:
                    locks.setdefault(position, owner)

    def locked_by(self, owner: TransactionKey, positions: Iterable[QueuePosition]) -> list[QueuePosition]:
        """Those of these positions that `owner` has locked."""
        locks = self.locks
        return [position for position in positions if locks.get(position) == owner]

    def unlock(self, positions: Iterable[QueuePosition]) -> None:
        """Remove the locks on these positions, which are there."""
        for position in positions:
            del self.locks[position]

    def count_delivery(self, positions: Iterable[QueuePosition], is_durable: bool) -> list[QueuePosition]:
        """One more failed delivery of entries that are there; of durable ones only for a durable record. Answers which."""
        counted = [
            position
            for position in positions
            if position in self.entries and (is_durable or not self.is_entry_durable(position))
        ]
        for position in counted:
            self.delivery_counts[position] = self.delivery_counts.get(position, 0) + 1
            if self.is_entry_durable(position):
                self._tell((position,))
        return counted

    def restore(
        self, entries: Iterable[tuple[QueuePosition, MessageId]], transient: Iterable[QueuePosition]
    ) -> None:
        """Add entries wherever their positions belong (a snapshot's). Derived values are the caller's to settle."""
        self.entries.update(entries)
        self.entries = dict(sorted(self.entries.items()))
        self.transient_positions.update(transient)
        self._order = list(self.entries)
        self._start = 0

    def _tell(self, positions: Iterable[QueuePosition]) -> None:
        listener = self._changes.listener
        if listener is not None:
            listener.entries_changed(self.id, positions)

    def _trim(self) -> None:
        live = len(self.entries)
        if not live:
            self.entries.clear()
            self._order.clear()
            self._start = 0
        elif len(self._order) > 2 * live + _SLACK:
            self._order = list(self.entries)
            self._start = 0

    def __repr__(self) -> str:
        return f"Queue({self.id}, {self.name!r}, length={self.length}, bytes={self.bytes})"


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
