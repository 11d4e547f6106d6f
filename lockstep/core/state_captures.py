"""State captures: contents and entries of a state as they were at one moment, read in pieces while the state goes on.

Law: what is read is what was there when the capture was made. What changes meanwhile is copied right before, in units that are
small however much there is: a shelf of contents, and of a queue what one record made visible. What came later lies behind, by
its numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lockstep.core.content_shelf import Shelf, ShelfCopy
from lockstep.core.deaths import Deaths
from lockstep.core.entry_pages import Piece
from lockstep.core.ids import LogIndex, QueueId, QueuePosition, index_of, place
from lockstep.core.queues import Queue

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState

_Said = TypeVar("_Said")
PIECE_ENTRIES = 2000
"""Entries that are kept one by one, or runs of others, in one piece: less than a millisecond's work."""
LOOKED_AT = 5000
"""Entries, or as many others, that are looked at in one piece where nothing is made of them."""
_PIECE_COST = 10
"""Of a piece without anything in it, in entries."""
MARKED_MAX = 20_000
"""So many entries of a durable queue that are not durable are put in order in one go; of more the whole queue is walked over."""
_SKIPPED_QUEUES = 16
"""Queues without anything that is wanted, looked at in one piece."""
_SKIPPED_SHELVES = 2000
"""Shelves without anything transient, looked at in one piece."""


class EntriesPiece(NamedTuple):
    """Some entries of one queue in their order, with what was said of them."""

    queue: QueueId
    is_durable: bool
    """Whether the queue is."""
    pieces: list[Piece]
    counts: Mapping[QueuePosition, int]
    expiries: Mapping[QueuePosition, int]
    transient: Collection[QueuePosition]
    deaths: Mapping[QueuePosition, Deaths]
    annotations: Mapping[QueuePosition, bytes]

    @property
    def cost(self) -> int:
        """Of a look at each of them, in entries."""
        return _PIECE_COST + sum([len(positions) for positions, _ in self.pieces])


class CapturedContents:
    """Lives as long as somebody reads it."""

    __slots__ = ("__weakref__", "_durable", "_numbers", "_place", "_ready", "_saved", "_shelves")

    def __init__(self, state: SetState, durable: bool) -> None:
        """`durable` False: only shelves with contents that no durable reference holds are wanted."""
        self._shelves = state.contents.shelves
        self._durable = durable
        self._numbers = sorted(self._shelves)
        self._place = 0
        """Of the next shelf in `_numbers`."""
        self._saved: dict[int, ShelfCopy | None] = {}
        self._ready: deque[ShelfCopy] = deque()
        state.changes.captures.add_to_contents(self)

    def next(self) -> ShelfCopy | None:
        """The next shelf; None: not yet, unless it `is_over`."""
        if self._ready:
            return self._ready.popleft()
        for _ in range(_SKIPPED_SHELVES):
            if self._place == len(self._numbers):
                return None
            number = self._numbers[self._place]
            self._place += 1
            found = self._saved.pop(number) if number in self._saved else self._copy(self._shelves[number])
            if found is not None:
                return found
        return None

    @property
    def is_over(self) -> bool:
        return self._place == len(self._numbers) and not self._ready

    def _copy(self, shelf: Shelf) -> ShelfCopy | None:
        if not self._durable and not shelf.references:
            return None
        copy = shelf.copy()
        return copy if self._durable or copy.has_transients else None

    def shelf_changes(self, number: int, shelf: Shelf) -> None:
        is_ahead = (
            self._place < len(self._numbers) and self._numbers[self._place] <= number <= self._numbers[-1]
        )
        if is_ahead and number not in self._saved:
            # One that was not there then lies behind all others.
            self._saved[number] = self._copy(shelf)

    def finish(self) -> None:
        ready: list[ShelfCopy] = []
        while not self.is_over:
            if (found := self.next()) is not None:
                ready.append(found)
        self._ready.extend(ready)


class CapturedEntries:
    """Lives as long as somebody reads it."""

    __slots__ = (
        "__weakref__",
        "_durable",
        "_end",
        "_from",
        "_marked",
        "_piece_entries",
        "_queues",
        "_ready",
        "_saved",
        "_transient",
    )

    def __init__(
        self, state: SetState, durable: bool, transient: bool, piece_entries: int | None = None
    ) -> None:
        """`durable`, `transient`: whether these are wanted; pieces may have others, too."""
        self._durable, self._transient = durable, transient
        self._piece_entries = piece_entries or PIECE_ENTRIES
        self._end = place(state.applied + 1, 0)
        """Positions from here on came later."""
        queues = state.queues.by_id
        self._queues = deque(map(queues.__getitem__, sorted(queues)))
        """Those that are not read to their end."""
        self._from = LogIndex(0)
        """Of the first of them: what records before this one made visible is read."""
        self._marked: list[QueuePosition] | None = None
        """Its entries that are not durable, where only those are wanted, when it came to be the first."""
        self._saved: dict[QueueId, dict[LogIndex, EntriesPiece]] = {}
        self._ready: deque[EntriesPiece] = deque()
        state.changes.captures.add_to_entries(self)

    def _is_wanted(self, queue: Queue) -> bool:
        if queue.is_durable:
            return self._durable or bool(queue.transient_positions)
        return self._transient

    def next(self) -> EntriesPiece | None:
        """The next piece, perhaps with nothing in it; None: that was all."""
        if self._ready:
            return self._ready.popleft()
        for _ in range(_SKIPPED_QUEUES):
            if not self._queues:
                return None
            queue = self._queues[0]
            if self._is_wanted(queue) or queue.id in self._saved:
                break
            self._leave_queue()
        else:
            return EntriesPiece(queue.id, queue.is_durable, [], {}, {}, (), {}, {})
        pieces, following = self._read(queue)
        if following is not None and place(following, 0) >= self._end:
            following = None
        saved = self._saved.get(queue.id, {})
        before = [index for index in saved if following is None or index < following]
        piece = _piece_of(queue, _before(pieces, self._end))
        if before:
            piece = _joined(piece, {index: saved.pop(index) for index in before})
        if following is None:
            self._leave_queue()
            self._saved.pop(queue.id, None)
        else:
            self._from = following
        return piece

    def _leave_queue(self) -> None:
        """The first queue is read, or has nothing more that is wanted: the next one is read from its beginning."""
        self._queues.popleft()
        self._from, self._marked = LogIndex(0), None

    def _read(self, queue: Queue) -> tuple[list[Piece], LogIndex | None]:
        """The next entries that are there, and from which record on there are more."""
        if self._durable or not queue.is_durable or len(queue.transient_positions) > MARKED_MAX:
            return queue.pieces_from(self._from, self._piece_entries, _is_anything_said(queue))
        # Of a long durable queue nobody walks over what is durable.
        if self._marked is None:
            self._marked = sorted(queue.transient_positions)
        marked, begin = self._marked, bisect_left(self._marked, place(self._from, 0))
        end = begin + self._piece_entries
        if end >= len(marked):
            return list(queue.pieces(marked[begin:])), None
        following = LogIndex(index_of(marked[end]) + 1)
        end = bisect_left(marked, place(following, 0))
        return list(queue.pieces(marked[begin:end])), following

    def entries_change(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        if not self._queues or queue.id < self._queues[0].id:
            return
        if not self._durable and queue.is_durable:
            positions = [position for position in positions if position in queue.transient_positions]
        elif not self._transient and not queue.is_durable:
            return
        read_to = place(self._from, 0) if queue is self._queues[0] else 0
        for index in dict.fromkeys(
            index_of(position) for position in positions if read_to <= position < self._end
        ):
            saved = self._saved.setdefault(queue.id, {})
            if index not in saved:
                saved[index] = _piece_of(queue, queue.pieces_of(index))

    def finish(self) -> None:
        ready: list[EntriesPiece] = []
        while (piece := self.next()) is not None:
            ready.append(piece)
        self._ready.extend(ready)


def _is_anything_said(queue: Queue) -> bool:
    """Of any entry: then each is looked at."""
    return bool(
        queue.delivery_counts
        or queue.expiries
        or queue.deaths
        or queue.annotations
        or queue.transient_positions
    )


def _piece_of(queue: Queue, pieces: list[Piece]) -> EntriesPiece:
    """With copies of what the queue has beside these."""
    counts, expiries = _of(queue.delivery_counts, pieces), _of(queue.expiries, pieces)
    deaths, annotations = _of(queue.deaths, pieces), _of(queue.annotations, pieces)
    marked = queue.transient_positions
    transient = {each for positions, _ in pieces for each in positions if each in marked} if marked else ()
    return EntriesPiece(queue.id, queue.is_durable, pieces, counts, expiries, transient, deaths, annotations)


def _of(side: Mapping[QueuePosition, _Said], pieces: list[Piece]) -> dict[QueuePosition, _Said]:
    if not side:
        return {}
    return {each: side[each] for positions, _ in pieces for each in positions if each in side}


def _before(pieces: list[Piece], end: int) -> list[Piece]:
    """Those before a position."""
    while pieces and pieces[-1][0][0] >= end:
        pieces.pop()
    if pieces and pieces[-1][0][-1] >= end:
        positions, ids = pieces.pop()
        left = bisect_left(positions, end)
        pieces.append((positions[:left], ids[:left]))
    return pieces


def _joined(live: EntriesPiece, saved: Mapping[LogIndex, EntriesPiece]) -> EntriesPiece:
    """What is there still, with units that were saved in place of what is left of them."""
    units: dict[LogIndex, list[Piece]] = {}
    for positions, ids in live.pieces:
        if index_of(positions[0]) == index_of(positions[-1]):
            units.setdefault(index_of(positions[0]), []).append((positions, ids))
            continue
        for position, message_id in zip(positions, ids, strict=True):
            units.setdefault(index_of(position), []).append(((position,), (message_id,)))
    counts, expiries = _outside(live.counts, saved), _outside(live.expiries, saved)
    deaths, annotations = _outside(live.deaths, saved), _outside(live.annotations, saved)
    transient = {position for position in live.transient if index_of(position) not in saved}
    for index, unit in saved.items():
        units[index] = unit.pieces
        counts.update(unit.counts)
        expiries.update(unit.expiries)
        deaths.update(unit.deaths)
        annotations.update(unit.annotations)
        transient.update(unit.transient)
    pieces = [piece for _, unit_pieces in sorted(units.items()) for piece in unit_pieces]
    return EntriesPiece(live.queue, live.is_durable, pieces, counts, expiries, transient, deaths, annotations)


def _outside(
    side: Mapping[QueuePosition, _Said], units: Mapping[LogIndex, EntriesPiece]
) -> dict[QueuePosition, _Said]:
    return {position: value for position, value in side.items() if index_of(position) not in units}
