"""Settings of a store process, from its command line. Limits of the core, with their reasons: `services/store/core/limits.py`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.runtime.arguments import listen_address_or_none, listen_address_or_path, port_or_none
from services.store.core.limits import MIB, StoreLimits


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What one store process is told."""

    data: Path
    """Its data directory; one store at a time."""
    listen: str
    """host:port (port 0 takes a free one), or unix:path."""
    metrics_port: int = 0
    """Port of /metrics; 0: none."""
    metrics_host: str = "127.0.0.1"
    """Address of that port: the loopback, unless whoever reads it is in another container."""
    health_listen: str = ""
    """host:port at which it tells of its health by gRPC, beside where it serves; "": nowhere."""
    limits: StoreLimits = field(default_factory=StoreLimits)
    is_prefilled: bool = True
    """Write zeros into new segments, not only reserve room: a sync of 100 KiB then takes half as long (120 us against 220 us)."""
    waiting_bytes_max: int = 64 * MIB
    """Requests of a set that may wait in memory; beyond it nothing more is read from its streams. Many times a group."""
    unsent_bytes_max: int = 64 * MIB
    """Answers that may wait for one client; a slower one loses its stream."""
    tick_seconds: float = 1.0
    """How soon after the last append the commit index is written down; until then a damaged last group may pass for torn."""
    stall_seconds: float = 2.0
    """A write to the journal that takes longer is a hanging disk: heartbeats stop, so that the primary gives up its lease
    (R6).
    """


def parse_arguments(arguments: Sequence[str] | None = None) -> StoreSettings:
    """Raises `SystemExit`, with a usage line, for arguments that are none."""
    defaults = StoreLimits()
    parser = argparse.ArgumentParser(prog="services.store", description="A store of Lockstep.")
    parser.add_argument("--data", required=True, type=Path, metavar="DIR")
    parser.add_argument(
        "--listen",
        required=True,
        type=listen_address_or_path,
        metavar="ADDRESS",
        help="host:port or unix:path",
    )
    parser.add_argument("--metrics-port", type=port_or_none, default=0, metavar="PORT")
    parser.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST")
    parser.add_argument(
        "--health-listen",
        default="",
        type=listen_address_or_none,
        metavar="HOST:PORT",
        help="gRPC health, for a store at unix:path",
    )
    parser.add_argument("--segment-bytes", type=int, default=defaults.segment_bytes, metavar="N")
    parser.add_argument("--reserve-bytes", type=int, default=defaults.reserve_bytes, metavar="N")
    parser.add_argument(
        "--owed-bytes-max",
        type=int,
        default=defaults.owed_bytes_max,
        metavar="N",
        help="of each resource set, for committed events that a group of readers has not acknowledged (default: 16 GiB)",
    )
    given = parser.parse_args(arguments)
    if given.segment_bytes < 4096 or given.reserve_bytes < 0 or given.owed_bytes_max < 0:
        parser.error(
            "--segment-bytes is at least 4096, --reserve-bytes and --owed-bytes-max are not negative"
        )
    limits = StoreLimits(
        segment_bytes=given.segment_bytes,
        reserve_bytes=given.reserve_bytes,
        owed_bytes_max=given.owed_bytes_max,
    )
    return StoreSettings(
        given.data, given.listen, given.metrics_port, given.metrics_host, given.health_listen, limits
    )
