"""Settings of a participant process for PostgreSQL, from its command line, with the reason for each default."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.runtime.arguments import etcd_endpoints, listen_address


@dataclass(frozen=True, slots=True)
class ParticipantSettings:
    """What one participant process is told."""

    name: str
    """Last part of its name: grpc://host:port/<name>."""
    listen: str
    """host:port of its gRPC server; port 0 takes a free one."""
    dsn: str
    """Of the database, as libpq takes it. Its user must be the one that prepares, or a superuser: nobody else may end the
    branches."""
    etcd: str
    """Endpoints, separated by commas."""
    cluster: str
    """Name of the cluster: part of every key in etcd."""
    connections_max: int = 4
    """To the database: a COMMIT PREPARED waits for one fsync, and PostgreSQL groups those of several connections."""
    statement_seconds: float = 3.0
    """After which PostgreSQL gives a statement up; below the time of a coordinator's call (5 s), which then calls again."""
    orphan_every_seconds: float = 5.0
    """Between two looks for prepared transactions that nobody ends."""
    orphan_age_seconds: float = 10.0
    """Below it a prepared transaction is left to its coordinator: most are ended within a second."""
    orphan_round_seconds: float = 60.0
    """A look that takes longer begins anew: its database may hang, and then it gives no statement up."""
    orphans_max: int = 200
    """Looked at in one round, those first that were not looked at for longest: each costs a read of etcd."""
    log_outcome_seconds: float = 720.0
    """How long coordinators leave the outcome of a transaction in the decision log (their `outcome_ms`)."""
    clock_seconds: float = 60.0
    """How far the wall clocks of coordinators, of the database and of this process may differ (their `clock_ms`)."""
    outcome_seconds: float = 7 * 24 * 3600.0
    """How long the database keeps how a branch ended, to say so to a coordinator that repeats itself: a week outlives most
    outages."""


def parse_arguments(arguments: Sequence[str] | None = None) -> ParticipantSettings:
    """Raises `SystemExit`, with a usage line, for arguments that are none."""
    parser = argparse.ArgumentParser(
        prog="services.postgres_participant",
        description="PostgreSQL in distributed transactions of Lockstep.",
    )
    parser.add_argument("--name", required=True, help="last part of its name, such as orders")
    parser.add_argument("--listen", required=True, type=listen_address, metavar="HOST:PORT")
    parser.add_argument("--dsn", required=True, help="of the database, as psql takes it")
    parser.add_argument("--etcd", required=True, type=etcd_endpoints, metavar="URL[,URL...]")
    parser.add_argument("--cluster", required=True, metavar="NAME")
    parser.add_argument("--orphan-every-seconds", type=float, default=5.0, metavar="S")
    parser.add_argument("--orphan-age-seconds", type=float, default=10.0, metavar="S")
    given = parser.parse_args(arguments)
    for option in ("name", "cluster"):
        value = getattr(given, option)
        if not value or "/" in value or not value.isprintable() or len(value) > 64:
            parser.error(f"--{option} is a name of 1 to 64 characters without '/', not {value!r}")
    if given.orphan_every_seconds <= 0 or given.orphan_age_seconds < 0:
        parser.error("--orphan-every-seconds is above 0, --orphan-age-seconds not negative")
    return ParticipantSettings(
        name=given.name,
        listen=given.listen,
        dsn=given.dsn,
        etcd=given.etcd,
        cluster=given.cluster,
        orphan_every_seconds=given.orphan_every_seconds,
        orphan_age_seconds=given.orphan_age_seconds,
    )
