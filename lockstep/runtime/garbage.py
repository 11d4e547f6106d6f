"""Garbage of a process: what CPython collects at once, and when.

Law: a collection is a step of the event loop, of whatever happens to allocate something then, so it walks little. CPython counts
what is made less what is freed: where one goes for each that comes, as in a queue that is always as long, it collects nothing for
minutes, and then walks all that came meanwhile. So the young are looked at by the clock, too.
"""

import asyncio
import gc

YOUNG_OBJECTS = 2_500
"""Containers that are made, and stay, between two collections of the youngest generation."""
YOUNG_COLLECTIONS = 1
"""As many of these, and one more, go before one of the next generation, which walks all that they left, and its own."""
OLD_OBJECTS = 40_000_000
"""As many containers, at the least, before one of the oldest."""
YOUNG_SECONDS = 0.25
"""Between two collections by the clock, each of which walks what has come since the last one."""
_IN_ONE = YOUNG_OBJECTS * (YOUNG_COLLECTIONS + 1)
"""Containers that stay, between two collections of the middle generation."""
_MIDDLE_COLLECTIONS = OLD_OBJECTS // _IN_ONE
"""As many of these go before one of the oldest."""


def tune_garbage_collection() -> None:
    """Fewer collections of the oldest generation: it holds all queues, and walking them takes longer than a commit.

    And small ones of the others. What one takes grows with what the containers hold, which no cache does: 2 ms for 1,000 lists of
    500 messages each, ten times as much where many are garbage, above all tasks.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, _MIDDLE_COLLECTIONS)


class YoungCollections:
    """Those by the clock, on one event loop, as long as that runs.

    Nobody counts what there is before: `gc.get_objects` also shows tuples that another thread is about to make, and who makes one
    while it is shown fails.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stayed = 0
        """Containers that were made and not freed between such collections, which count for no collection of the oldest yet."""
        self._middle = 0
        """Collections of the middle generation since the last one of the oldest, when that was looked at last."""

    def begin(self) -> None:
        self._loop.call_later(YOUNG_SECONDS, self._collect)

    def _collect(self) -> None:
        self._loop.call_later(YOUNG_SECONDS, self._collect)
        made, collections, middle = gc.get_count()
        if middle < self._middle:
            # The oldest were collected, and wait as long as ever for the next time.
            gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, _MIDDLE_COLLECTIONS)
        self._stayed += made + collections * YOUNG_OBJECTS
        gc.collect(1)
        if self._stayed >= _IN_ONE:
            self._stayed -= _IN_ONE
        else:
            # What goes as it comes leaves no more to be found among the oldest, so it brings their turn no nearer.
            gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, gc.get_threshold()[2] + 1)
        self._middle = gc.get_count()[2]
