"""Long steps of what a benchmark measures: which steps of an event loop took too much processor time, whatever was measured.

Law: every benchmark is under this watch (`lockstep/runtime/loop_watch.py`), and fails when a process that it started had such a
step: a figure is worth nothing where a lease may be lost at twice the load.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lockstep.runtime.loop_watch import LONG_SECONDS, REPORTS, LongStep, written_down

SHOWN_STEPS = 8
SHOWN_FRAMES = 6


@contextlib.contextmanager
def watched_steps() -> Iterator[Path]:
    """A directory in which all processes that are started meanwhile write down their long steps."""
    before = os.environ.get(REPORTS)
    with tempfile.TemporaryDirectory(prefix="lockstep-long-steps-") as reports:
        os.chmod(reports, 0o777)
        os.environ[REPORTS] = reports
        try:
            yield Path(reports)
        finally:
            if before is None:
                del os.environ[REPORTS]
            else:
                os.environ[REPORTS] = before


def described(reports: Path) -> list[str]:
    """What is to be said of them, a line each, the longest first; none: there was none."""
    steps = sorted(written_down(reports), key=lambda step: -step.seconds)
    if not steps:
        return []
    head = f"steps of event loops that took more than {LONG_SECONDS * 1000:.0f} ms of processor time: {len(steps)}"
    return [head, *map(_line, steps[:SHOWN_STEPS])]


def _line(step: LongStep) -> str:
    where = " < ".join(step.stacks[0][:SHOWN_FRAMES])
    return f"  {step.seconds * 1000:6.0f} ms {step.process}: {where}"
