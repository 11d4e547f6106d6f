"""Long steps: what the watches of all processes of a test have found (`lockstep.runtime.loop_watch`).

Law: no step of an event loop takes more than 50 ms of processor time, unless it is one of those that are known
(`known_long_steps.txt`). Of a process in a container, which writes elsewhere, nothing is seen.
"""

import os
from pathlib import Path

from lockstep.runtime.loop_watch import REPORTS, LongStep, functions_in, written_down


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
        self._seen = 0
        os.environ[REPORTS] = str(directory)

    def fresh(self, test: str) -> list[LongStep]:
        """Those that nobody has asked for yet, and that are not known, of themselves or of this test."""
        found = list(written_down(self._directory))
        fresh, self._seen = found[self._seen :], len(found)
        if test.partition("[")[0].partition("@")[0] in self._known:
            return []
        return [step for step in fresh if not any(name in self._known for name in functions_in(step))]
