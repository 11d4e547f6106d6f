"""Lane: how far a view has looked along the messages of one priority.

Law: a lane is offered in the order of positions. What came back behind its cursor is remembered; all else lies ahead.
"""

from heapq import heappush

from lockstep.core.ids import QueuePosition
from lockstep.core.queues import Queue

SLACK = 64
"""Positions that came back and left since, and that nobody has to clear away yet."""


class Lane:
    """Lives as long as its view."""

    __slots__ = ("back", "cursor")

    def __init__(self) -> None:
        self.cursor = 0
        """The highest position that was looked at."""
        self.back: list[QueuePosition] = []
        """Heap of positions up to the cursor that may be offered again; may name some that left meanwhile, or one twice."""

    def begin_at(self, lane: "Lane") -> None:
        """Offer what that one would."""
        self.cursor, self.back = lane.cursor, list(lane.back)

    def take_back(self, position: QueuePosition) -> None:
        """It may be offered again."""
        if position <= self.cursor:
            heappush(self.back, position)

    def clear_away(self, queue: Queue) -> None:
        """What left meanwhile, if there may be much of it."""
        if len(self.back) > 2 * queue.length + SLACK:
            self.back = sorted(queue.present(set(self.back)))
