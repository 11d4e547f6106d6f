"""The commit gate: what the primary has to say waits here until the commit index covers what it says (R3, R11).

Law: the primary's state stands at the log's end, and whatever is read from it may have been changed by the last record
appended. So every answer waits for the index that was the log's end when it was made; then it is true for ever.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from lockstep.core.ids import LogIndex

RELEASED_IN_ONE = 1000
"""Some milliseconds' work."""


class Waiting(NamedTuple):
    """Something to be done when `at` is committed."""

    at: LogIndex
    release: Callable[[], None]


class CommitGate:
    """Lives as long as the epoch; driven by the primary core. First in, first out: indexes never fall."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, index: LogIndex, release: Callable[[], None]) -> None:
        """Call `release` once when `index` is committed and this process may say so."""
        assert not self._waiting or index >= self._waiting[-1].at, "the gate is first in, first out"
        self._waiting.append(Waiting(index, release))

    @property
    def waited_for(self) -> LogIndex:
        """The last index that somebody waits for; 0: nobody waits."""
        return self._waiting[-1].at if self._waiting else LogIndex(0)

    def open_to(self, commit_index: LogIndex) -> bool:
        """Release what waits up to the commit index, in order: as much as leaves others their turn; answers whether there is
        more.
        """
        waiting = self._waiting
        for _ in range(RELEASED_IN_ONE):
            if not waiting or waiting[0].at > commit_index:
                return False
            waiting.popleft().release()
        return True
