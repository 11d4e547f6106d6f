"""Clearing: what deleted queues held is let go of in pieces, behind the records that deleted them.

Law: nobody sees what is still to be cleared. It belongs to no queue any more, so nothing finds, counts or delivers it; and
whoever looks at all of a state, or at an item of it, has everything cleared first. So a state is the same function of its
records whenever it is cleared.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from lockstep.core.apply_messages import release
from lockstep.core.pieces import PIECE_COST

if TYPE_CHECKING:
    from lockstep.core.contents import Contents
    from lockstep.core.items import Changes
    from lockstep.core.queues import Queue

CLEARED_IN_ONE = 500
"""Messages, in one step: as many microseconds' work, or twice that."""


class Clearing:
    """Lives as long as its state."""

    def __init__(self, contents: Contents, changes: Changes) -> None:
        self._contents, self._changes = contents, changes
        self.queues: deque[Queue] = deque()
        """Deleted queues that still have something; only this changes it."""
        self.is_in_pieces = False
        """Somebody drives the state who asks for `turns`; else everything is cleared at once."""
        self._turns: weakref.ref[Generator[int, None, None]] | None = None

    def add(self, queue: Queue) -> None:
        """A queue that has just been deleted."""
        if queue.length:
            self.queues.append(queue)
            if not self.is_left:
                self.finish()

    @property
    def is_left(self) -> bool:
        """Whether a record may leave something to be done in pieces. Whoever hears of each item that goes (a consolidator) writes
        it down with what its record changed.
        """
        return self.is_in_pieces and self._changes.listener is None

    def turns(self) -> Generator[int, None, None] | None:
        """Clears what there is, in steps that say what they cost (`Pieces`); None: there is nothing, or somebody is at it."""
        if not self.queues or (self._turns is not None and self._turns() is not None):
            return None
        turns = self._clear()
        self._turns = weakref.ref(turns)
        return turns

    def until_cleared(self) -> Iterator[int]:
        """For whoever looks at all of the state next: clears what there is, or waits for who is at it; in such steps, too."""
        while self.queues:
            turns = self.turns()
            if turns is None:
                yield PIECE_COST
            else:
                yield from turns

    def finish(self) -> None:
        """Clear everything at once."""
        if self.queues:
            for _ in self._clear():
                pass

    def _clear(self) -> Generator[int, None, None]:
        queues = self.queues
        while queues:
            queue = queues[0]
            if positions := queue.positions(limit=CLEARED_IN_ONE):
                release(self._contents, queue.remove(positions, True))
                yield 2 * len(positions)
            else:
                queues.popleft()
