"""Queues: which messages are where, in which order, and who holds a lock on them.

Law: entries are in position order, and a position is given once: what comes back keeps its own. An entry is durable only if
the record that made it and its queue are; a transient record never takes away a durable entry. Locks belong to open or
prepared transactions. Contents are elsewhere (`Contents`); an entry is one reference to one.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

from lockstep.core.amqp.annotations import combined
from lockstep.core.content import Content
from lockstep.core.contents import Contents
from lockstep.core.deaths import Deaths
from lockstep.core.entry_runs import EntryRun, EntryRuns, contiguous
from lockstep.core.ids import LogIndex, MessageId, QueueId, QueuePosition, TransactionKey, index_of
from lockstep.core.ids import place as position_at
from lockstep.core.items import Changes
from lockstep.core.packed_messages import RUN_MIN
from lockstep.core.records import DeclareQueue, Message

_SLACK = 64
"""Positions without an entry that the order list may keep beyond the number of entries: removing stays O(1) amortised."""
RESTORED_IN_ONE = 500
"""Entries of a snapshot that are put into a queue in one go."""
_WHOLE = {Message}


Piece = tuple[Sequence[QueuePosition], Sequence[MessageId]]
"""Entries in the order of their positions, and whose places they are: ranges where both are neighbours."""


class Removed(NamedTuple):
    """What `Queue.remove` took out."""

    positions: list[QueuePosition]
    durable: list[Sequence[MessageId]]
    """Contents that lost a durable reference, in batches."""
    transient: list[Sequence[MessageId]]


class Queue:
    """One queue, from its declaration to its deletion. Only the state that it belongs to changes it; anyone reads it."""

    __slots__ = (
        "_captures",
        "_changes",
        "_contents",
        "_order",
        "_runs",
        "_single",
        "_start",
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
        "reserved_bytes",
        "reserved_length",
        "transient_positions",
    )

    def __init__(
        self, queue_id: QueueId, definition: DeclareQueue, contents: Contents, changes: Changes
    ) -> None:
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
        self._single: dict[QueuePosition, MessageId] = {}
        self._runs = EntryRuns()
        """What was published together and is together still; all other entries are kept one by one."""
        self.transient_positions: set[QueuePosition] = set()
        """Entries of a durable queue that are not durable; not used by a transient queue, where none is."""
        self.delivery_counts: dict[QueuePosition, int] = {}
        """Failed deliveries of entries that have any."""
        self.expiries: dict[QueuePosition, int] = {}
        """When entries expire that were moved here (TimeMs; 0: never): for all others their contents say it."""
        self.deaths: dict[QueuePosition, Deaths] = {}
        """Of entries that are dead letters: why."""
        self.annotations: dict[QueuePosition, bytes] = {}
        """Of entries of which somebody who gave them back said something: as `Annotate` has it, combined."""
        self.locks: dict[QueuePosition, TransactionKey] = {}
        """Entries that a transaction will remove when it commits."""
        self.bytes = 0
        """Of properties and bodies of all entries."""
        self.reserved_length = 0
        """Messages that open and prepared transactions will add."""
        self.reserved_bytes = 0
        self._order: list[QueuePosition | EntryRun] = []
        """Ascending, from `_start` on: all entries, and some that are gone."""
        self._start = 0

    # --- asking ---

    @property
    def unlocked_length(self) -> int:
        return self.length - len(self.locks)

    def __contains__(self, position: QueuePosition) -> bool:
        return position in self._single or self._runs.find(position) is not None

    def message_id(self, position: QueuePosition) -> MessageId | None:
        """Whose place this is; None if there is no entry."""
        message_id = self._single.get(position)
        if message_id is None:
            run = self._runs.find(position)
            return MessageId(position + run.shift) if run is not None else None
        return message_id

    def message_ids(self, positions: Sequence[QueuePosition]) -> list[MessageId]:
        """The same of all these positions, which are there."""
        return [message_id for _, ids in self.pieces(positions) for message_id in ids]

    def present(self, positions: Iterable[QueuePosition]) -> list[QueuePosition]:
        """Those of these positions that are there, in their order."""
        single = self._single
        if not self._runs:
            return [position for position in positions if position in single]
        return [position for _, piece in self._pieces(tuple(positions)) for position in piece]

    def head(self) -> QueuePosition | None:
        """The first position, None if the queue is empty. O(1) amortised."""
        order, single, start = self._order, self._single, self._start
        first: QueuePosition | None = None
        while start < len(order):
            element = order[start]
            if type(element) is EntryRun:
                if element.left:
                    first = element.first
                    break
            elif element in single:
                first = element
                break
            start += 1
        self._start = start
        return first

    def positions(self, start: int = 0, limit: int | None = None) -> list[QueuePosition]:
        """Positions from `start` on, ascending, at most `limit`; locked ones included. A copy: the queue may change after."""
        self.head()  # Moves `_start` past what is gone, so that nobody walks over it again.
        single, order = self._single, self._order
        place = max(self._start, bisect_left(order, start)) if start else self._start
        if not self._runs and limit is None:
            return [position for position in order[place:] if position in single]
        found: list[QueuePosition] = []
        while place < len(order) and (limit is None or len(found) < limit):
            element = order[place]
            if type(element) is EntryRun:
                found += element.positions(start, limit)
                place += 1
            elif self._runs:
                if element in single:
                    found.append(element)
                place += 1
            else:
                step = order[place : place + limit]  # type: ignore[operator]
                found += [position for position in step if position in single]
                place += len(step)
        return found[:limit]

    def pieces(self, positions: Sequence[QueuePosition]) -> Iterator[Piece]:
        """Those of these positions that are there, in their order."""
        return ((piece, self._ids(run, piece)) for run, piece in self._pieces(positions))

    def items(self) -> Iterator[tuple[QueuePosition, MessageId]]:
        """All entries in the order of their positions."""
        single = self._single
        for element in self._order[self._start :]:
            if type(element) is EntryRun:
                shift = element.shift
                yield from ((position, MessageId(position + shift)) for position in element.positions())
            elif element in single:
                yield element, single[element]

    def pieces_from(self, index: LogIndex, cost_max: int) -> tuple[list[Piece], LogIndex | None]:
        """Entries that records from `index` on made visible, all of each record: about `cost_max` of those that are kept one by
        one, or runs of others. And from which record on there are more; None: that was all.
        """
        order = self._order
        begin = end = max(self._start, bisect_left(order, position_at(index, 0)))
        cost = 0
        while end < len(order) and cost < cost_max:
            cost += _cost(order[end])
            end += 1
        if end == len(order):
            return self._pieces_of(order[begin:end]), None
        following = LogIndex(_index_in_order(order[end - 1]) + 1)
        end = bisect_left(order, position_at(following, 0), end)
        return self._pieces_of(order[begin:end]), following if end < len(order) else None

    def pieces_of(self, index: LogIndex) -> list[Piece]:
        """All entries that one record made visible."""
        order = self._order
        begin = bisect_left(order, position_at(index, 0), self._start)
        return self._pieces_of(order[begin : bisect_left(order, position_at(index + 1, 0), begin)])

    def _pieces_of(self, part: "list[QueuePosition | EntryRun]") -> list[Piece]:
        """The entries in a part of the order list."""
        single = self._single
        pieces: list[Piece] = []
        for is_run, elements in groupby(part, _is_run):
            if is_run:
                runs = [run for run in elements if type(run) is EntryRun and run.left]
                pieces += [(piece, self._ids(run, piece)) for run in runs for piece in run.pieces()]
            elif alone := [position for position in elements if position in single]:
                pieces.append((alone, [single[position] for position in alone]))
        return pieces

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
        moved = self.expiries.get(position) if self.expiries else None
        if moved is not None:
            return moved
        (content,) = self._contents.of(self.message_ids((position,)))
        return content.expires_ms

    def is_entry_durable(self, position: QueuePosition) -> bool:
        """Whether the entry at this position, which is there, survives a restart."""
        return self.is_durable and position not in self.transient_positions

    # --- changing it ---

    def append(
        self, positions: Sequence[QueuePosition], ids: Sequence[MessageId], size: int, is_durable: bool
    ) -> None:
        """Add entries behind all others. `size`: bytes of all of them. References are counted by the caller."""
        if len(positions) >= RUN_MIN and type(positions) is range and type(ids) is range:
            run = EntryRun(positions, ids.start - positions.start, size)
            self._runs.add(run)
            self._order.append(run)
        else:
            alone = list(positions)  # The same number objects serve for both: there may be millions.
            self._single.update(zip(alone, ids, strict=True))
            self._order.extend(alone)
        self.length += len(positions)
        self.bytes += size
        if self.is_durable:
            if is_durable:
                self._tell(positions)
            else:
                self.transient_positions.update(positions)

    def remove(self, positions: Sequence[QueuePosition], is_durable: bool) -> Removed:
        """Take entries out with their counts and locks, on behalf of a durable record or not. What is not there is skipped.

        References to their contents are the caller's to release.
        """
        if self._captures.of_entries:
            self._captures.entries_change(self, positions)
        removed = Removed([], [], [])
        marked = self.transient_positions
        if not self.is_durable:
            self._take_out(positions, False, removed)
        elif marked.isdisjoint(positions):
            # Nearly always: a record is of entries of one kind.
            if is_durable:
                self._take_out(positions, True, removed)
        else:
            for is_marked, alike in groupby(positions, marked.__contains__):
                if is_marked or is_durable:
                    self._take_out(tuple(alike), not is_marked, removed)
            marked.difference_update(positions)
        for side in (self.delivery_counts, self.expiries, self.deaths, self.annotations, self.locks):
            if side:
                for position in removed.positions:
                    side.pop(position, None)
        self._trim()
        return removed

    def _take_out(self, positions: Sequence[QueuePosition], are_durable: bool, removed: Removed) -> None:
        """Take out those of these that are there."""
        for run, piece in self._pieces(positions):
            ids = self._ids(run, piece)
            if run is None:
                size = self._contents.total_size(ids)
                for position in piece:
                    del self._single[position]
            elif len(piece) == run.left:
                size = run.size
                self._runs.remove(run)
            else:
                size = self._contents.total_size(ids)
                run.remove(piece, size)
            self.length -= len(piece)
            self.bytes -= size
            removed.positions.extend(piece)
            (removed.durable if are_durable else removed.transient).append(ids)
            if are_durable:
                self._tell(piece)

    def _pieces(
        self, positions: Sequence[QueuePosition]
    ) -> Iterator[tuple[EntryRun | None, Sequence[QueuePosition]]]:
        """Those of these positions that are there, in their order: neighbours in one run, and lists of those that are in none.
        Whoever goes through the pieces may take out each as it comes.
        """
        single = self._single
        if not self._runs:
            found = [position for position in positions if position in single]
            if found:
                yield None, found if len(set(found)) == len(found) else list(dict.fromkeys(found))
            return
        alone: dict[QueuePosition, None] = {}
        place = 0
        while place < len(positions):
            position = positions[place]
            if position in single:
                alone[position] = None
                place += 1
                continue
            run = self._runs.find(position)
            if run is None:
                place += 1
                continue
            if alone:
                yield None, list(alone)
                alone = {}
            piece = contiguous(positions, place, run)
            place += len(piece)
            yield run, piece
        if alone:
            yield None, list(alone)

    def _ids(self, run: EntryRun | None, piece: Sequence[QueuePosition]) -> Sequence[MessageId]:
        """Whose places these are, which are a piece."""
        if run is None:
            return [self._single[position] for position in piece]
        first = piece[0] + run.shift
        return range(first, first + len(piece))  # type: ignore[return-value]

    def lock(self, positions: Iterable[QueuePosition], owner: TransactionKey, is_durable: bool) -> None:
        """Lock entries that are there and free, and durable ones only on behalf of a durable record."""
        locks = self.locks
        for position in self.present(positions):
            if is_durable or not self.is_entry_durable(position):
                locks.setdefault(position, owner)

    def locked_by(self, owner: TransactionKey, positions: Iterable[QueuePosition]) -> list[QueuePosition]:
        """Those of these positions that `owner` has locked."""
        locks = self.locks
        return [position for position in positions if locks.get(position) == owner]

    def unlock(self, positions: Iterable[QueuePosition]) -> None:
        """Remove the locks on these positions, which are there."""
        for position in positions:
            del self.locks[position]

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
        for position in counted:
            self.delivery_counts[position] = self.delivery_counts.get(position, 0) + 1
            if self.is_entry_durable(position):
                self._tell((position,))
        return counted

    def restore(
        self, entries: Sequence[tuple[QueuePosition, MessageId]], runs: Sequence[EntryRun], are_durable: bool
    ) -> Iterator[Piece]:
        """Add entries of a snapshot, both kinds in order, wherever their positions belong; contents that they refer to are here.
        Each piece is counted when it is given; the queue is whole when all were.
        """
        old, order, taken = self._order, list[QueuePosition | EntryRun](), self._start
        last = _last_in_order(old[-1]) if old else 0
        for part in _parts(entries, runs):
            positions, ids = self._restored(part, are_durable)
            yield positions, ids
            elements: Sequence[QueuePosition | EntryRun] = [part] if isinstance(part, EntryRun) else positions
            if taken == len(old) or positions[0] > last:
                order += old[taken:]
                order += elements
                taken = len(old)
                continue
            for element in elements:
                behind = bisect_left(old, _place_in_order(element), taken)
                order += old[taken:behind]
                order.append(element)
                taken = behind
        order += old[taken:]
        self._order, self._start = order, 0

    def _restored(
        self, part: "Sequence[tuple[QueuePosition, MessageId]] | EntryRun", are_durable: bool
    ) -> Piece:
        positions: Sequence[QueuePosition]
        if isinstance(part, EntryRun):
            positions = range(part.first, part.end)  # type: ignore[assignment]
            ids = self._ids(part, positions)
            part.size = size = self._contents.total_size(ids)
            self._runs.add(part)
        else:
            pairs = dict(part)
            self._single.update(pairs)
            positions, ids = list(pairs), list(pairs.values())
            size = self._contents.total_size(ids)
        self.length += len(positions)
        self.bytes += size
        if self.is_durable and not are_durable:
            self.transient_positions.update(positions)
        return positions, ids

    def _tell(self, positions: Sequence[QueuePosition]) -> None:
        listener = self._changes.listener
        if listener is not None:
            listener.entries_changed(self.id, positions)

    def _trim(self) -> None:
        if not self.length:
            self._single.clear()
            self._order.clear()
            self._start = 0
        elif len(self._order) > 2 * (len(self._single) + len(self._runs)) + _SLACK:
            self.head()
            # Mostly what was in front is gone, and nobody needs to look at the rest.
            del self._order[: self._start]
            self._start = 0
            if len(self._order) > 2 * (len(self._single) + len(self._runs)) + _SLACK:
                self._order = [element for element in self._order if self._is_there(element)]

    def _is_there(self, element: "QueuePosition | EntryRun") -> bool:
        return element.left > 0 if isinstance(element, EntryRun) else element in self._single

    def __repr__(self) -> str:
        return f"Queue({self.id}, {self.name!r}, length={self.length}, bytes={self.bytes})"


def _is_run(element: QueuePosition | EntryRun) -> bool:
    return type(element) is EntryRun


def _cost(element: QueuePosition | EntryRun) -> int:
    """Of its pieces: a run is one, unless some of it are gone."""
    return element.left + 1 if isinstance(element, EntryRun) and element.has_gaps else 1


def _index_in_order(element: QueuePosition | EntryRun) -> LogIndex:
    return index_of(_last_in_order(element))


def _last_in_order(element: QueuePosition | EntryRun) -> int:
    return element.end - 1 if isinstance(element, EntryRun) else element


def _parts(
    entries: Sequence[tuple[QueuePosition, MessageId]], runs: Sequence[EntryRun]
) -> "Iterator[Sequence[tuple[QueuePosition, MessageId]] | EntryRun]":
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


def _place_in_order(element: QueuePosition | EntryRun) -> int:
    return element.first if isinstance(element, EntryRun) else element


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
