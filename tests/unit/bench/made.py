"""Measurements that nobody measured."""

from bench.cases import Case
from bench.results import Measurement, Trial, Used


def measurement(
    case: str | Case,
    rate: float,
    system: str = "lockstep",
    *,
    path: str = "sdk",
    other_cores: float = 0.0,
    client_cores: float = 0.5,
    slowdown: float = 1.0,
    p99_ms: float = 4.0,
    primary_us: float = 20.0,
    seconds: float = 5.0,
    system_cores: dict[str, float] | None = None,
    restless: list[str] | None = None,
    round_number: int = 0,
) -> Measurement:
    """`case`: of which, or the title of one of W1."""
    workload, title = case.key if isinstance(case, Case) else ("W1", case)
    return Measurement(
        system=system,
        path=path,
        workload=workload,
        case=title,
        operations_per_second=rate / 10,
        messages_per_second=rate,
        p50_ms=2.0,
        p99_ms=p99_ms,
        p999_ms=8.0,
        seconds=seconds,
        sync_ms=0.2,
        other_cores=other_cores,
        processes={"primary B1": Used(0.5, 100.0, primary_us), "store B1": Used(0.25, 50.0, 10.0)},
        clients={"client": Used(client_cores, 40.0, 5.0)},
        slowdown=slowdown,
        system_cores=system_cores or {},
        restless=restless or [],
        round=round_number,
    )


def trial(
    what: str,
    *seconds: float,
    sync_ms: float = 0.2,
    other_cores: float = 0.1,
    slowdown: float = 1.0,
    cut_short: str = "",
) -> Trial:
    return Trial(
        what=what,
        seconds=list(seconds),
        sync_ms=sync_ms,
        cut_short=cut_short,
        other_cores=other_cores,
        slowdown=slowdown,
    )
