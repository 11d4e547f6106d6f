"""What /metrics shows of branches that stay prepared, for each set that is led here."""

from collections.abc import Iterator

from lockstep.runtime.clock import read_now
from lockstep.runtime.metrics import Sample
from services.primary.core.primary import PrimaryCore


def doubt_samples(primary: PrimaryCore, labels: dict[str, str]) -> Iterator[Sample]:
    """Read at each scrape; only primaries look at their branches, so a sum over all brokers counts each once."""
    figures = primary.context.doubts.figures(read_now().wall_ms)
    yield Sample("lockstep_tx_in_doubt_oldest_seconds", figures.oldest_seconds, labels)
    yield Sample("lockstep_tx_in_doubt_overdue", figures.overdue, labels)
