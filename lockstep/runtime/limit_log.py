"""Log of refusals by limits, and of whatever else a stranger may cause: whoever does it again and again fills no log.

Law: each kind of limit, and each kind of event, has one line a minute at most, and the line says how many it stands for.
"""

import logging
import time
from collections.abc import Callable

LINE_SECONDS = 60.0
"""Between two lines of the same kind: seldom enough for a log that is kept, and often enough for whoever looks into it."""


class LimitLog:
    """Lives as long as what it logs for; used from one thread."""

    def __init__(self, log: logging.Logger, seconds: Callable[[], float] = time.monotonic) -> None:
        """`seconds`: a clock that only goes on."""
        self._log = log
        self._seconds = seconds
        self._next_line: dict[tuple[str, str], float] = {}
        self._unsaid: dict[tuple[str, str], int] = {}

    def refused(self, limit: str, text: str) -> None:
        """Something was refused. `limit`: one of the few words that the program has for it; `text`: of this refusal, for people.

        The first is logged at once. Those within a minute behind it are counted, and told with the first one after it.
        """
        if refusals := self._due(("limit", limit)):
            self._log.warning("event=limit_reached limit=%s refusals=%d %s", limit, refusals, text)

    def seldom(
        self, event: str, text: str, *, level: int = logging.WARNING, error: BaseException | None = None
    ) -> None:
        """Something happened that anybody may cause as often as he likes: told and counted as a refusal is. `event`: one of the
        few words that the program has for it. `error`: told with its stack; each type of error is a kind of its own, and so is
        each place that raises it: one fault hides no other.
        """
        kind = event, _kind_of(error) if error is not None else ""
        if times := self._due(kind):
            self._log.log(level, "event=%s times=%d %s", event, times, text, exc_info=error)

    def _due(self, kind: tuple[str, str]) -> int:
        """For how many of its kind one that happens now has a line; 0: it has none."""
        now = self._seconds()
        times = self._unsaid.get(kind, 0) + 1
        is_due = now >= self._next_line.get(kind, now)
        self._unsaid[kind] = 0 if is_due else times
        if not is_due:
            return 0
        self._next_line[kind] = now + LINE_SECONDS
        return times


def _kind_of(error: BaseException) -> str:
    """Its type, and the line that raised it: the program has so many, whatever is said in it."""
    place, at = "", error.__traceback__
    while at is not None:
        place, at = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}", at.tb_next
    return f"{type(error).__name__} {place}"
