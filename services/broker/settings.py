"""Settings of a broker process, from its command line. Limits and times of the cores are in their own `settings.py`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.core.ids import BrokerId
from lockstep.runtime.arguments import etcd_endpoints, listen_address, port_or_none
from services.backup.core.settings import BackupSettings
from services.broker.core.lease_keeper import LeaseSettings
from services.primary.core.settings import PrimarySettings

GIVE_BACK_SECONDS = 30
"""Longer than the next broker of a rolling restart needs until it is stopped, and short beside what an uneven load costs. Each
time, callers without a session have rolled back what they have open."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What one broker process is told."""

    broker: BrokerId
    """Name of this broker; survives restarts."""
    listen: str
    """host:port of its gRPC server; port 0 takes a free one."""
    store: str
    """host:port, or unix:path, of its own store."""
    etcd: str
    """Endpoints, separated by commas."""
    cluster: str
    """Name of the cluster: part of every key in etcd."""
    advertise: str = ""
    """host:port under which clients and other brokers reach it; "": as it listens."""
    lease_file: Path | None = None
    """Where the id of the process lease stands, for a supervisor that sees this process exit (R6)."""
    metrics_port: int = 0
    """Port of /metrics; 0: none."""
    is_primary_only: bool = False
    """It leads sets and follows nobody: a set whose primary it is no more has one replica less."""
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    resident_body_bytes_max: int = BackupSettings().resident_body_bytes_max
    """Content of messages that each set keeps in memory; beyond it bodies deep in their queues are left to the store."""
    in_doubt_ms: int = PrimarySettings().in_doubt_ms
    """A branch that is prepared for longer is warned of."""
    give_back_seconds: int = GIVE_BACK_SECONDS
    """A set that lacks no member for so long is led by its first broker again; 0: it stays where it is."""
    hand_over_seconds: float = 3.0
    """How long a stopping broker waits for others to take its sets: a promotion takes a few tenths; then the lease does it."""


def parse_arguments(arguments: Sequence[str] | None = None) -> BrokerSettings:
    """Raises `SystemExit`, with a usage line, for arguments that are none."""
    parser = argparse.ArgumentParser(prog="services.broker", description="A broker of Lockstep.")
    parser.add_argument("--id", required=True, help="name of this broker, such as B1")
    parser.add_argument("--listen", required=True, type=listen_address, metavar="HOST:PORT")
    parser.add_argument(
        "--store", required=True, metavar="ADDRESS", help="host:port or unix:path of its store"
    )
    parser.add_argument("--etcd", required=True, type=etcd_endpoints, metavar="URL[,URL...]")
    parser.add_argument("--cluster", required=True, metavar="NAME")
    parser.add_argument("--advertise", default="", metavar="HOST:PORT")
    parser.add_argument("--lease-file", type=Path, metavar="PATH")
    parser.add_argument("--metrics-port", type=port_or_none, default=0, metavar="PORT")
    parser.add_argument("--primary-only", action="store_true", help="lead sets, follow nobody")
    parser.add_argument("--lease-seconds", type=int, default=LeaseSettings().lease_seconds, metavar="N")
    parser.add_argument(
        "--resident-body-bytes",
        type=int,
        default=BackupSettings().resident_body_bytes_max,
        metavar="N",
        help="content of messages in memory, per resource set; the rest is read back from the store",
    )
    parser.add_argument(
        "--in-doubt-ms",
        type=int,
        default=PrimarySettings().in_doubt_ms,
        metavar="N",
        help="branches that are prepared for longer are warned of",
    )
    parser.add_argument(
        "--give-back-seconds",
        type=int,
        default=GIVE_BACK_SECONDS,
        metavar="N",
        help="a set that lacks no member for so long is led by its first broker again; 0: never by itself",
    )
    given = parser.parse_args(arguments)
    for name in ("id", "cluster"):
        value = getattr(given, name)
        if not value or "/" in value or not value.isprintable() or len(value) > 64:
            parser.error(f"--{name} is a name of 1 to 64 characters without '/', not {value!r}")
    if given.lease_seconds < 2:
        parser.error("--lease-seconds: etcd grants no lease below 2 s")
    if given.resident_body_bytes < 1 << 20:
        parser.error("--resident-body-bytes is at least 1 MiB")
    if given.in_doubt_ms < 1:
        parser.error("--in-doubt-ms is at least 1 ms")
    if given.give_back_seconds < 0:
        parser.error("--give-back-seconds is 0 or more")
    return BrokerSettings(
        broker=BrokerId(given.id),
        listen=given.listen,
        store=given.store,
        etcd=given.etcd,
        cluster=given.cluster,
        advertise=given.advertise,
        lease_file=given.lease_file,
        metrics_port=given.metrics_port,
        is_primary_only=given.primary_only,
        lease=LeaseSettings(lease_seconds=given.lease_seconds),
        resident_body_bytes_max=given.resident_body_bytes,
        in_doubt_ms=given.in_doubt_ms,
        give_back_seconds=given.give_back_seconds,
    )
