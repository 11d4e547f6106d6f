"""Long steps: what the watches of all processes of a test have found (`lockstep.runtime.loop_watch`).

Law: no step of an event loop takes more than 50 ms of processor time, unless it is one of those that are known
(`known_long_steps.txt`). A process that several tests share writes a step down when it is over, perhaps in the next test: it is
that one's in which it began. Of a process in a container, which writes elsewhere, nothing is seen.

The same work takes a shared host three times as much processor time at one moment as at another, and new memory six times as much
(measured). A test with a step that is too long by less than that runs again, and fails if it has one each time (`reruns` and
`only_rerun` in pyproject.toml); the summary of the run names it in any case.
"""

import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from lockstep.runtime.loop_watch import LONG_SECONDS, REPORTS, LongStep, functions_in, written_down

ENDS_KEPT = 100
HOST_FACTOR = 3
"""So much more processor time than on a quiet host the same work may take."""


class HeldUp(AssertionError):
    """An event loop did one thing for too long."""


class HeldUpBriefly(HeldUp):
    """Perhaps its host was slow."""


def refuse(steps: Sequence[LongStep]) -> None:
    """Raises HeldUpBriefly if there are any and a slow host may explain all of them, HeldUp if there are others."""
    if steps:
        is_brief = all(step.seconds < HOST_FACTOR * LONG_SECONDS for step in steps)
        raise (HeldUpBriefly if is_brief else HeldUp)("\n".join(map(str, steps)))


def read_known(text: str) -> dict[str, str]:
    """The listed functions and tests with what is to be done about each; a line without that raises ValueError."""
    known = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, separator, reason = (part.strip() for part in line.partition(" -- "))
        if not (name and separator and reason):
            raise ValueError(f"known_long_steps.txt: expected 'name -- what is to be done', found {line!r}")
        known[name] = reason
    return known


class LongSteps:
    """Lives as long as a run of tests, which it makes write down what they find."""

    def __init__(self, directory: Path, known: dict[str, str]) -> None:
        self._directory = directory
        self._known = known
        self._seen: set[LongStep] = set()
        self._ends: deque[tuple[float, str]] = deque(maxlen=ENDS_KEPT)
        """When the last tests ended."""
        os.environ[REPORTS] = str(directory)

    def end(self, test: str) -> None:
        """It ends. Raises HeldUp for steps that nobody has heard of yet and that are not known, of themselves or of their test:
        for those of an earlier test even if they are brief, as running this one again says nothing of them."""
        self._ends.append((time.monotonic(), test))
        fresh = [step for step in written_down(self._directory) if step not in self._seen]
        self._seen.update(fresh)
        found = [step for step in fresh if not self._is_known(step)]
        earlier = [step for step in found if self._test_of(step) != test]
        if earlier:
            raise HeldUp("\n".join(f"in {self._test_of(step)}, {step}" for step in earlier))
        refuse(found)

    def _test_of(self, step: LongStep) -> str:
        return next(test for end, test in self._ends if step.began <= end)

    def _is_known(self, step: LongStep) -> bool:
        names = (self._test_of(step).partition("[")[0].partition("@")[0], *functions_in(step))
        return any(name in self._known for name in names)
