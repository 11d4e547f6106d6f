"""Log of refusals by limits: whoever is refused again and again fills no log.

Law: each kind of limit has one line a minute at most, and the line says how many refusals it stands for.
"""

import logging
import time
from collections.abc import Callable

LINE_SECONDS = 60.0
"""Between two lines about the same limit: seldom enough for a log that is kept, and often enough for whoever looks into it."""


class LimitLog:
    """Lives as long as what it logs for; used from one thread."""

    def __init__(self, log: logging.Logger, seconds: Callable[[], float] = time.monotonic) -> None:
        """`seconds`: a clock that only goes on."""
        self._log = log
        self._seconds = seconds
        self._next_line: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def refused(self, limit: str, text: str) -> None:
        """Something was refused. `limit`: one of the few words that the program has for it; `text`: of this refusal, for people.

        The first is logged at once. Those within a minute behind it are counted, and told with the first one after it.
        """
        now = self._seconds()
        refusals = self._unsaid.get(limit, 0) + 1
        if now < self._next_line.get(limit, now):
            self._unsaid[limit] = refusals
            return
        self._next_line[limit] = now + LINE_SECONDS
        self._unsaid[limit] = 0
        self._log.warning("event=limit_reached limit=%s refusals=%d %s", limit, refusals, text)
