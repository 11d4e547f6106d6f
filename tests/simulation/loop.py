"""Virtual time: a heap of callbacks, and nothing else that could make two runs of one seed differ.

Law: time advances only from one callback to the next; callbacks of one moment run in the order in which they were scheduled.
"""

import heapq
from collections.abc import Callable

MS = 1_000
SECOND = 1_000_000


class Loop:
    """The clock and agenda of one simulated world. Times are microseconds since the world began."""

    __slots__ = ("_agenda", "_sequence", "events", "now_us")

    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0
        self._sequence = 0
        self._agenda: list[tuple[int, int, Callable[..., object], tuple[object, ...]]] = []

    def after(self, delay_us: int, callback: Callable[..., object], *arguments: object) -> None:
        """Run `callback` `delay_us` (at least 0) from now."""
        self._sequence += 1
        heapq.heappush(self._agenda, (self.now_us + max(delay_us, 0), self._sequence, callback, arguments))

    def run_until(self, until_us: int) -> None:
        """Run all that is due up to and including `until_us`; the clock then stands there."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= until_us:
            moment, _, callback, arguments = heapq.heappop(agenda)
            self.now_us = moment
            self.events += 1
            callback(*arguments)
        self.now_us = max(self.now_us, until_us)

    def run_next(self, until_us: int) -> bool:
        """Run the next callback, if it is due up to `until_us`; False: there is none, and the clock stands there."""
        if not self._agenda or self._agenda[0][0] > until_us:
            self.now_us = max(self.now_us, until_us)
            return False
        moment, _, callback, arguments = heapq.heappop(self._agenda)
        self.now_us = moment
        self.events += 1
        callback(*arguments)
        return True
