"""What Lockstep must reach beside RabbitMQ's quorum queues in the same run, and what it wants to reach at all.

Law: a must is a ratio of two medians of one run, on two cores; a goal is a figure on a quiet machine with two cores and an
fdatasync of at most 0.3 ms. A must that was not measured is missed. Where they do not hold the page says first (`scope.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.cases import W2, W3_CONSUME, W3_PUBLISH, W4_XA, W7, Case
from bench.comparing import Comparison, compared
from bench.failover import PRIMARY_KILLED, PRIMARY_STALLED
from bench.own_cluster import NAME
from bench.results import Measurement, Trial

PEER = "rabbitmq"


@dataclass(frozen=True, slots=True)
class Must:
    """One ratio of messages a second."""

    case: Case
    ratio: float


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure: a rate of at least, or a latency of at most so much."""

    case: Case
    figure: float
    unit: str = "msgs/s"
    """msgs/s, tx/s, ms p50, ms p99."""

    def value(self, one: Measurement) -> float:
        """In the goal's unit."""
        return {
            "msgs/s": one.messages_per_second,
            "tx/s": one.operations_per_second,
            "ms p50": one.p50_ms,
            "ms p99": one.p99_ms,
        }[self.unit]

    def result(self, value: float) -> str:
        """Whether it is reached, and by how much it is not."""
        return _result(value, self.figure, is_most=self.unit.startswith("ms "))


@dataclass(frozen=True, slots=True)
class FailoverGoal:
    """One bound of W5, in seconds."""

    what: str
    """As the trials are called."""
    figure: float
    unit: str
    """s median, s worst."""

    def value(self, trial: Trial) -> float:
        """In the goal's unit."""
        return {"s median": trial.median_seconds, "s worst": trial.worst_seconds}[self.unit]

    def result(self, trial: Trial) -> str:
        """Whether it is reached, and by how much it is not; by a series that was cut short it is not."""
        return "missed" if trial.cut_short else _result(self.value(trial), self.figure, is_most=True)

    def __str__(self) -> str:
        return f"{self.figure:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Growth:
    """How much more processor time a message may cost everybody in one case of W7 than in another, both of one size."""

    what: str
    first: Case
    last: Case
    share_max: float


@dataclass(frozen=True, slots=True)
class Standing:
    """What became of a must."""

    must: Must
    found: Comparison

    @property
    def ratio(self) -> float:
        return self.found.ratio

    @property
    def is_reached(self) -> bool:
        return self.ratio >= self.must.ratio

    @property
    def verdict(self) -> str:
        """In words: also whether the rounds leave it open."""
        word = "reached" if self.is_reached else "missed"
        span = self.found.interval
        is_open = span is not None and span.rounds > 1 and span.low < self.must.ratio <= span.high
        return f"{word}, rounds differ" if is_open else word

    def __str__(self) -> str:
        verdict = "ok" if self.is_reached else "MISSED"
        noise = " (noisy)" if self.found.is_noisy else ""
        return f"{self.must.case.workload} {self.must.case.title}: {self.ratio:.2f} of {self.must.ratio:g} {verdict}{noise}"


def _w1(size: int, connections: int) -> Case:
    return Case("W1", "publish", size, connections)


MUSTS = (
    Must(_w1(100, 4), 3.0),
    Must(_w1(10, 4), 1.3),
    Must(_w1(10, 16), 2.0),
    Must(_w1(1, 4), 0.75),
    Must(_w1(1, 16), 1.0),
    Must(W2[0], 1.3),
    Must(W3_PUBLISH, 2.0),
    Must(W3_CONSUME, 0.7),
)
_XA_ALONE, _XA_MANY = W4_XA[0], W4_XA[2]
GOALS = (
    Goal(_w1(100, 4), 70_000),
    Goal(_w1(10, 4), 18_000),
    Goal(_w1(10, 16), 30_000),
    Goal(_w1(1, 4), 2_400, "tx/s"),
    Goal(_w1(1, 16), 4_000, "tx/s"),
    Goal(_w1(1, 1), 2, "ms p50"),
    Goal(_w1(1, 1), 4, "ms p99"),
    Goal(W2[0], 1_500, "tx/s"),
    Goal(W3_PUBLISH, 70_000),
    Goal(W3_CONSUME, 80_000),
    Goal(_XA_ALONE, 300, "tx/s"),
    Goal(_XA_MANY, 2_000, "tx/s"),
)
_ACCEPTING = W7["depth of two queues, accepting"]
FAILOVER_GOALS = (
    FailoverGoal(PRIMARY_KILLED, 0.5, "s median"),
    FailoverGoal(PRIMARY_KILLED, 1.5, "s worst"),
    FailoverGoal(PRIMARY_STALLED, 3.5, "s worst"),
)
GROWTHS = (
    Growth("1 to 10,000 queues", W7["queues"][0], W7["queues"][-1], 0.2),
    Growth("0 to 1,000,000 messages deep", W7["queue depth"][0], W7["queue depth"][-1], 0.2),
    Growth(
        "1,000 to 500,000 messages deep in each of two queues, accepting", _ACCEPTING[0], _ACCEPTING[-1], 0.2
    ),
)


def _result(value: float, bound: float, *, is_most: bool) -> str:
    beyond = value / bound - 1
    if beyond == 0 or (beyond < 0) == is_most:
        return "reached"
    percent = 100 * abs(beyond)
    return f"{percent:.{0 if percent >= 1 else 1}f} % {'above' if beyond > 0 else 'below'}"


def standings(measurements: Sequence[Measurement]) -> list[Standing]:
    """Of every must, by the measurements of a run that count."""
    return [Standing(must, compared(measurements, must.case, PEER)) for must in MUSTS]


def ratio_line(found: Sequence[Standing]) -> str:
    """The last line of a run with peers."""
    return f"ratios to {PEER}: " + "; ".join(map(str, found))


def is_of_must(system: str, case: Case) -> bool:
    """Whether a measurement of it is one side of a ratio."""
    return system in (NAME, PEER) and case.key in {must.case.key for must in MUSTS}


def exit_status(found: Sequence[Standing]) -> int:
    """0 if every must is reached."""
    return 0 if all(one.is_reached for one in found) else 1
