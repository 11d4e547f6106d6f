"""A PostgreSQL that syncs what it commits, on the measured disk."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg

from bench.environment import Refused
from bench.versions import said_version
from lockstep.runtime.ports import choose_ports
from tests.integration.postgres_process import PostgresProcess, find_postgres

TABLE = "create table bench (client int, body bytea)"

SETTINGS = {"fsync": "on", "shared_buffers": "256MB", "max_wal_size": "4GB"}
"""Its own defaults, but for memory, and for checkpoints that would come every second."""


@contextlib.asynccontextmanager
async def synced_database(directory: Path) -> AsyncIterator[PostgresProcess]:
    """With an empty table `bench`; its user may enter `directory`'s parents. Raises `Refused` where it is not installed."""
    binaries = find_postgres()
    if binaries is None:
        raise Refused("PostgreSQL is not installed (Debian's package postgresql)")
    await asyncio.to_thread(directory.mkdir)
    process = PostgresProcess(binaries, directory, choose_ports(1)[0], SETTINGS)
    try:
        await process.create()
        await process.start()
        async with await psycopg.AsyncConnection.connect(process.dsn) as connection:
            await connection.execute(TABLE)
        yield process
    finally:
        await process.stop()


def database_versions() -> dict[str, str]:
    """Of the server."""
    binaries = find_postgres()
    if binaries is None:
        return {}
    return {"PostgreSQL": said_version((str(binaries / "postgres"), "--version"), r"\(PostgreSQL\) (\S+)")}
