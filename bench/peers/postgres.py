"""PostgreSQL beside the brokers: what synced transactions, and two-phase commits, cost on one copy without any replication.

Law: a reference, not a rival: rows of a table are no queue, and the machine's only disk is its only copy.
"""

from pathlib import Path

from bench.cases import Case
from bench.load_programs import Plan
from bench.rest import Pids
from tests.integration.postgres_process import PostgresProcess

NAME = "postgres"
PATH = "libpq (C)"
SOURCE = Path(__file__).with_name("postgres_client.c")
PACKAGES = "postgresql, libpq-dev"
SYNCS = (
    "one copy: a commit is answered when its log is written and fdatasynced, PREPARE TRANSACTION and COMMIT PREPARED likewise;"
    " rows inserted by one statement, no queue"
)


class Postgres:
    """A server with the table `bench`, under load."""

    name = NAME
    syncs = SYNCS

    def __init__(self, process: PostgresProcess, program: Path) -> None:
        """`program`: the compiled client."""
        self._process = process
        self._program = program

    def handles(self, case: Case) -> bool:
        return case.operation in ("publish", "xa")

    async def pids(self) -> Pids:
        return {"postgres": self._process.pid}

    async def plan(self, case: Case, *, seconds: float, warm_seconds: float = 1.0) -> Plan:
        """How a case is measured here."""
        numbers = (case.connections, case.size, case.body_bytes, warm_seconds, seconds)
        command = [str(self._program), self._process.dsn, case.operation, *map(str, numbers)]
        return Plan(
            *(NAME, PATH, case.workload, case.title, [command], await self.pids()),
            warm_seconds=warm_seconds,
            seconds=seconds,
        )
