"""Settings of a process that has only the backup role, from its command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.core.ids import BrokerId
from lockstep.runtime.arguments import etcd_endpoints, listen_address_or_none


@dataclass(frozen=True, slots=True)
class BackupProcessSettings:
    """What one backup process is told."""

    broker: BrokerId
    """Under this name sets list it among their brokers."""
    store: str
    """host:port, or unix:path, of its own store."""
    etcd: str
    """Endpoints, separated by commas."""
    cluster: str
    """Name of the cluster: part of every key in etcd."""
    health_listen: str = ""
    """host:port at which it tells of its health by gRPC; "": nowhere."""


def parse_arguments(arguments: Sequence[str] | None = None) -> BackupProcessSettings:
    """Raises `SystemExit`, with a usage line, for arguments that are none."""
    parser = argparse.ArgumentParser(
        prog="services.backup", description="A backup of Lockstep that is never promoted."
    )
    parser.add_argument("--id", required=True, help="name among the brokers of its sets, such as B2")
    parser.add_argument(
        "--store", required=True, metavar="ADDRESS", help="host:port or unix:path of its store"
    )
    parser.add_argument("--etcd", required=True, type=etcd_endpoints, metavar="URL[,URL...]")
    parser.add_argument("--cluster", required=True, metavar="NAME")
    parser.add_argument(
        "--health-listen", default="", type=listen_address_or_none, metavar="HOST:PORT", help="gRPC health"
    )
    given = parser.parse_args(arguments)
    return BackupProcessSettings(
        BrokerId(given.id), given.store, given.etcd, given.cluster, given.health_listen
    )
