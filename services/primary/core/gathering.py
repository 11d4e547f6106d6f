"""Who is about to come back: clients that were answered, whose next commands could leave with those that wait already.

Law: it decides when a frame leaves, and nothing else. Nobody is waited for who came late one of the last times, and a wait is not
longer than what frames needed lately to be committed: it costs no more than the frame that it may save.

A stream comes back with any command when all that it asked for is answered. One that many share, as the clients of a proxy do, is
hardly ever idle; so each of its commits, too, is followed by another one where that was so lately.
"""

from collections import deque
from math import ceil

PROMPT_TIMES = 3
"""Who came back in time so many times in a row does not do so by chance, as a client may that publishes at a steady rate."""
TOGETHER_MAX = 64
"""Commits of one stream that are waited for, at most."""
_WEIGHT = 8
"""Of the frames before, in the mean of how long they needed."""


class _Returns:
    """How one stream, or each of its commits, has come back."""

    __slots__ = ("answered_ms", "awaited", "times")

    def __init__(self) -> None:
        self.times = 0
        """How many times in a row in time."""
        self.awaited = 0
        """So many are waited for."""
        self.answered_ms: deque[int] = deque(maxlen=TOGETHER_MAX)
        """When those were answered that have not come back and are not waited for."""

    @property
    def are_prompt(self) -> bool:
        """Whether one more may be waited for: each of those that are away has come back in time as often as a single one."""
        return self.times >= PROMPT_TIMES * (self.awaited + len(self.answered_ms) + 1)

    def came(self, patience_ms: int, now_ms: int) -> bool:
        """Somebody is back; answers whether he was waited for."""
        is_awaited = self.awaited > 0
        if is_awaited:
            self.awaited -= 1
        elif not self.answered_ms:
            return False
        is_in_time = is_awaited or now_ms - self.answered_ms.pop() <= patience_ms
        self.times = min(self.times + 1, PROMPT_TIMES * TOGETHER_MAX) if is_in_time else 0
        return is_awaited


class Gathering:
    """Of client streams, by their numbers. Lives as long as the epoch; told by them and by the log's keeping, which asks."""

    def __init__(self, wait_ms_max: int) -> None:
        """`wait_ms_max`: how long a frame may wait for those who come back; 0: it does not."""
        self._wait_ms_max = wait_ms_max
        self._frame_ms = 0.0
        self._patience_ms = min(1, wait_ms_max)
        self._streams: dict[int, _Returns] = {}
        self._commits: dict[int, _Returns] = {}
        """The same of the commits of each stream."""
        self._awaited = 0
        self._until_ms = 0

    def frame_committed(self, milliseconds: int) -> None:
        """A frame was committed so long after it had left."""
        self._frame_ms += (milliseconds - self._frame_ms) / _WEIGHT
        self._patience_ms = min(ceil(self._frame_ms) + 1, self._wait_ms_max)

    def answered(self, number: int, now_ms: int) -> None:
        """All commands of a stream are answered."""
        self._answered(self._streams, number, now_ms)

    def commit_answered(self, number: int, now_ms: int) -> None:
        """A commit of a stream is."""
        self._answered(self._commits, number, now_ms)

    def came(self, number: int, now_ms: int, is_commit: bool = False) -> None:
        """A command of the stream waits to be committed."""
        for returns in (self._streams, self._commits) if is_commit else (self._streams,):
            if (known := returns.get(number)) is not None:
                self._awaited -= known.came(self._patience_ms, now_ms)

    def closed(self, number: int) -> None:
        """The stream is gone."""
        for returns in (self._streams, self._commits):
            if (known := returns.pop(number, None)) is not None:
                self._awaited -= known.awaited

    def until(self, now_ms: int) -> int:
        """When the next frame leaves, whoever has not come back by then; 0: nobody is waited for."""
        if self._awaited and now_ms >= self._until_ms:
            for returns in (*self._streams.values(), *self._commits.values()):
                if returns.awaited:
                    returns.times = returns.awaited = 0
            self._awaited = 0
        return self._until_ms if self._awaited else 0

    def _answered(self, returns: dict[int, _Returns], number: int, now_ms: int) -> None:
        known = returns.get(number)
        if known is None:
            known = returns[number] = _Returns()
        if known.are_prompt and self._wait_ms_max:
            known.awaited += 1
            self._awaited += 1
            self._until_ms = now_ms + self._patience_ms
        else:
            known.answered_ms.append(now_ms)
