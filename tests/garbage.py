"""Garbage of a run of tests: full collections come between two tests, and not in the midst of one.

Law: a test is charged with nothing that was there before it. A full collection in the midst of one walks all that the run has
loaded, and whatever an event loop does just then seems to have taken so long. So what outlives a test is set aside (frozen),
and nothing but the young is collected before it ends. Services do as much for themselves (`lockstep.runtime.garbage`).
"""

import gc

COLLECTIONS_MIN = 10
"""Collections of the middle generation since the last full one (Python's own rule): fewer leave little garbage behind them."""
COLLECTIONS_MAX = 1_000
"""The same within one test: millions of new objects, so that also a test that runs for minutes stays of a size."""
GROWTH = 1.25
"""By so much what was set aside has grown when that is looked through, too."""


class Garbage:
    """Lives as long as a run of tests."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._kept = 0
        """Objects that were set aside when all were looked through."""

    def begin(self) -> None:
        """All modules are loaded, and no test has begun."""
        gc.set_threshold(*self._thresholds[:2], COLLECTIONS_MAX)
        self._collect_all()

    def collect(self) -> None:
        """A test has ended. Raises AssertionError if it has turned collections off and left it so."""
        was_on = gc.isenabled()
        gc.enable()
        assert was_on, "nothing is collected any more: garbage collection is off behind this test"
        if gc.get_count()[2] < COLLECTIONS_MIN:
            return
        gc.collect()
        gc.freeze()
        if gc.get_freeze_count() > GROWTH * self._kept:
            self._collect_all()

    def end(self) -> None:
        """Of the run: the rest is pytest's, which looks for what nobody has closed."""
        gc.unfreeze()
        gc.set_threshold(*self._thresholds)

    def _collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Of what is left there is nothing: only behind a full collection the next one follows from what is new.
        gc.collect()
        self._kept = gc.get_freeze_count()
