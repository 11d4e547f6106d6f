"""Who is about to come back: clients that were answered, whose next commands could leave with those that wait already.

Law: it decides when a frame leaves, and nothing else. Nobody is waited for who came late one of the last times, and a wait is not
longer than what frames needed lately to be committed: it costs no more than the frame that it may save.
"""

from math import ceil

PROMPT_TIMES = 3
"""Who came back in time so many times in a row does not do so by chance, as a client may that publishes at a steady rate."""
_WEIGHT = 8
"""Of the frames before, in the mean of how long they needed."""


class Gathering:
    """Of client streams, by their numbers. Lives as long as the epoch; told by them and by the log's keeping, which asks."""

    def __init__(self, wait_ms_max: int) -> None:
        """`wait_ms_max`: how long a frame may wait for those who come back; 0: it does not."""
        self._wait_ms_max = wait_ms_max
        self._frame_ms = 0.0
        self._answered_ms: dict[int, int] = {}
        """When streams were answered that have nothing under way, and are not waited for."""
        self._times: dict[int, int] = {}
        """How many times in a row a stream came back in time, up to `PROMPT_TIMES`."""
        self._awaited: set[int] = set()
        self._until_ms = 0

    def frame_committed(self, milliseconds: int) -> None:
        """A frame was committed so long after it had left."""
        self._frame_ms += (milliseconds - self._frame_ms) / _WEIGHT

    def answered(self, number: int, now_ms: int) -> None:
        """All commands of a stream are answered."""
        if self._times.get(number) == PROMPT_TIMES and self._wait_ms_max:
            self._awaited.add(number)
            self._until_ms = now_ms + self._patience_ms
        else:
            self._answered_ms[number] = now_ms

    def came(self, number: int, now_ms: int) -> None:
        """A command of the stream waits to be committed."""
        if number in self._awaited:
            self._awaited.discard(number)
        elif (answered_ms := self._answered_ms.pop(number, None)) is not None:
            is_in_time = now_ms - answered_ms <= self._patience_ms
            self._times[number] = min(self._times.get(number, 0) + 1, PROMPT_TIMES) if is_in_time else 0

    def closed(self, number: int) -> None:
        """The stream is gone."""
        self._awaited.discard(number)
        self._times.pop(number, None)
        self._answered_ms.pop(number, None)

    def until(self, now_ms: int) -> int:
        """When the next frame leaves, whoever has not come back by then; 0: nobody is waited for."""
        if self._awaited and now_ms >= self._until_ms:
            self._times.update(dict.fromkeys(self._awaited, 0))
            self._awaited.clear()
        return self._until_ms if self._awaited else 0

    @property
    def _patience_ms(self) -> int:
        return min(ceil(self._frame_ms) + 1, self._wait_ms_max)
