"""Settings of a coordinator process, from its command line. Limits and times of the core:
`services/coordinator/core/settings.py`."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lockstep.runtime.arguments import etcd_endpoints, listen_address, port_or_none
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.core.steps import STEPS

EXIT_AT = "LOCKSTEP_COORDINATOR_EXIT_AT"
"""Environment variable, for tests only: the process kills itself when a transaction reaches this step (`core/steps.py`)."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """What one coordinator process is told."""

    listen: str
    """host:port of its gRPC server; port 0 takes a free one."""
    etcd: str
    """Endpoints, separated by commas."""
    cluster: str
    """Name of the cluster: part of every key in etcd."""
    advertise: str = ""
    """host:port under which clients reach it; "": as it listens."""
    metrics_port: int = 0
    """Port of /metrics; 0: none."""
    lease_seconds: int = 5
    """Of its presence: after so long without a renewal the others take up what it began. Above an etcd election (1.1-1.5 s) and
    ordinary pauses; a transaction of a coordinator that is taken for dead too early is only aborted too early."""
    etcd_seconds: float = 1.0
    """Of each call to etcd: below the lease, so that a renewal can be tried again within it."""
    call_seconds: float = 5.0
    """Of each call to a participant: a prepare that waits for an in-sync set, or for a disk, takes less. It is called again
    after."""
    calls_max: int = 500
    """Under way to one address at once; others wait for these. A participant that hangs holds so many, and no memory beyond."""
    tick_seconds: float = 0.02
    """How late a repeated call or a time-out may be."""
    exit_at: str = ""
    """For tests only: the step at which the process kills itself; "": none."""
    limits: CoordinatorLimits = field(default_factory=CoordinatorLimits)


def parse_arguments(arguments: Sequence[str] | None = None) -> CoordinatorSettings:
    """Raises `SystemExit`, with a usage line, for arguments that are none."""
    limits = CoordinatorLimits()
    parser = argparse.ArgumentParser(
        prog="services.coordinator", description="A coordinator of distributed transactions of Lockstep."
    )
    parser.add_argument("--listen", required=True, type=listen_address, metavar="HOST:PORT")
    parser.add_argument("--etcd", required=True, type=etcd_endpoints, metavar="URL[,URL...]")
    parser.add_argument("--cluster", required=True, metavar="NAME")
    parser.add_argument("--advertise", default="", metavar="HOST:PORT")
    parser.add_argument("--metrics-port", type=port_or_none, default=0, metavar="PORT")
    parser.add_argument("--lease-seconds", type=int, default=5, metavar="N")
    parser.add_argument("--prepare-ms", type=int, default=limits.prepare_ms, metavar="N")
    parser.add_argument("--open-ms", type=int, default=limits.open_ms, metavar="N")
    parser.add_argument("--closed-ms", type=int, default=limits.closed_ms, metavar="N")
    parser.add_argument("--elsewhere-ms", type=int, default=limits.elsewhere_ms, metavar="N")
    parser.add_argument(
        "--in-doubt-ms",
        type=int,
        default=limits.in_doubt_ms,
        metavar="N",
        help="transactions that are not over for longer are warned of",
    )
    given = parser.parse_args(arguments)
    if (
        not given.cluster
        or "/" in given.cluster
        or not given.cluster.isprintable()
        or len(given.cluster) > 64
    ):
        parser.error(f"--cluster is a name of 1 to 64 characters without '/', not {given.cluster!r}")
    if given.lease_seconds < 2:
        parser.error("--lease-seconds: etcd grants no lease below 2 s")
    times_ms = given.prepare_ms, given.open_ms, given.closed_ms, given.elsewhere_ms, given.in_doubt_ms
    if min(times_ms) < 1:
        parser.error("times are at least 1 ms")
    if given.open_ms > limits.open_ms_max:
        parser.error(f"--open-ms is at most {limits.open_ms_max}")
    exit_at = os.environ.get(EXIT_AT, "")
    if exit_at and exit_at not in STEPS:
        parser.error(f"{EXIT_AT} is one of {', '.join(STEPS)}, not {exit_at!r}")
    limits = replace(
        limits,
        prepare_ms=given.prepare_ms,
        open_ms=given.open_ms,
        closed_ms=given.closed_ms,
        elsewhere_ms=given.elsewhere_ms,
        in_doubt_ms=given.in_doubt_ms,
    )
    return CoordinatorSettings(
        listen=given.listen,
        etcd=given.etcd,
        cluster=given.cluster,
        advertise=given.advertise,
        metrics_port=given.metrics_port,
        lease_seconds=given.lease_seconds,
        exit_at=exit_at,
        limits=limits,
    )
