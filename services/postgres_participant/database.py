"""The database: connections, the table of how branches ended, and the lock under which one votes on a branch or ends it.

Law: one at a time looks at a branch and ends it, in this process or another, so what is ended is what was looked at.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lockstep.core.errors import ErrorCode, InDoubt, LockstepError
from lockstep.core.postgres_gid import GID_PREFIX
from services.postgres_participant.held_branch import BranchFacts, Connection, HeldBranch

CONNECT_SECONDS = 3
"""Below the time of a coordinator's call (5 s)."""
SILENCE_SECONDS = 15
"""A machine that is gone without a word is noticed: its server cannot give a statement up, and does not say that it ended."""
TABLE = """
create table if not exists lockstep_outcomes (
    gid text primary key, is_commit boolean not null, ended_at timestamptz not null default now())
"""
_ADD_NUMBERS = """
do $$ begin
    if not exists (
        select from pg_attribute
        where attrelid = 'lockstep_outcomes'::regclass and attname = 'recorded_by' and not attisdropped
    ) then
        alter table lockstep_outcomes add column transaction xid8, add column recorded_by xid8;
    end if;
end $$
"""
"""To a table of an older version, too. Only where they lack: the lock for it waits for dumps, and is the owner's to take."""
_LIST = """
select gid, extract(epoch from now() - prepared)::float from pg_prepared_xacts
where database = current_database() and starts_with(gid, %s) order by prepared
"""
_FORGET = """
delete from lockstep_outcomes as ended where ended_at < now() - make_interval(secs => %s)
and not exists (select from pg_prepared_xacts where gid = ended.gid and database = current_database())
"""
_READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
"""Each statement sees what was committed before it; a database may have another default."""
_SILENCE = (
    f"-c tcp_keepalives_idle={SILENCE_SECONDS // 3} -c tcp_keepalives_interval={SILENCE_SECONDS // 3} "
    f"-c tcp_keepalives_count=2 -c tcp_user_timeout={SILENCE_SECONDS * 1000}"
)
"""The server notices, too, and lets go of what a process held on a machine that is gone; its default is two hours."""
_LOCK_KEY = "hashtextextended(%s, 1280004948)"


@dataclass(frozen=True, slots=True)
class PreparedBranch:
    gid: str
    age_seconds: float


class Database:
    """Lives as long as the process: a few connections, opened when they are needed. Errors of the database are `InDoubt`."""

    def __init__(
        self, dsn: str, connections_max: int, statement_seconds: float, outcome_seconds: float
    ) -> None:
        """`outcome_seconds`: how long the table keeps how a branch ended."""
        self._dsn = dsn
        self._outcome_seconds = outcome_seconds
        milliseconds = int(statement_seconds * 1000)
        self._options = (
            f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds} {_READ_COMMITTED} {_SILENCE}"
        )
        self._room = asyncio.Semaphore(connections_max)
        self._idle: list[Connection] = []
        self._has_table = False

    async def facts(self, gid: str) -> BranchFacts:
        """While nobody who may presume holds the branch (`held`)."""
        async with self._connection() as connection, connection.transaction():
            await connection.execute(f"select pg_advisory_xact_lock({_LOCK_KEY})", (gid,))
            return await HeldBranch(connection, gid, self._outcome_seconds).facts()

    async def end(self, gid: str, *, is_commit: bool) -> BranchFacts:
        """Ends it, if it is prepared; returns what is known of it then. One at a time: what is ended is what was looked at, and
        not what somebody prepares under the same name behind an end that overtook this one.
        """
        async with self._connection() as connection:
            await connection.execute(f"select pg_advisory_lock({_LOCK_KEY})", (gid,))
            try:
                return await HeldBranch(connection, gid, self._outcome_seconds).end(is_commit=is_commit)
            finally:
                await connection.execute(f"select pg_advisory_unlock({_LOCK_KEY})", (gid,))

    @contextlib.asynccontextmanager
    async def held(self, gid: str) -> AsyncIterator[HeldBranch | None]:
        """Nobody votes on the branch meanwhile, in this process or another; None: somebody else holds it.

        The lock is the connection's: whoever loses the connection loses the lock, and can end nothing any more.
        """
        async with self._connection() as connection:
            cursor = await connection.execute(f"select pg_try_advisory_lock({_LOCK_KEY})", (gid,))
            row = await cursor.fetchone()
            if row is None or not row[0]:
                yield None
                return
            try:
                yield HeldBranch(connection, gid, self._outcome_seconds)
            finally:
                await connection.execute(f"select pg_advisory_unlock({_LOCK_KEY})", (gid,))

    async def prepared(self) -> list[PreparedBranch]:
        """All prepared transactions with a gid of ours, the oldest first."""
        async with self._connection() as connection:
            cursor = await connection.execute(_LIST, (GID_PREFIX,))
            return [PreparedBranch(str(gid), float(str(age))) for gid, age in await cursor.fetchall()]

    async def prepared_max(self) -> int:
        """PostgreSQL's max_prepared_transactions; with 0 no client can prepare."""
        async with self._connection() as connection:
            row = await (await connection.execute("show max_prepared_transactions")).fetchone()
            assert row is not None, "show answers one row"
            return int(str(row[0]))

    async def forget(self) -> None:
        """Drops the records of branches whose time is over, but for those by which something that is prepared is known to be
        repeated.
        """
        async with self._connection() as connection:
            await connection.execute(_FORGET, (self._outcome_seconds,))

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """One for its user alone; one that failed is closed. Raises `InDoubt`."""
        async with self._room:
            connection: Connection | None = None
            try:
                connection = self._idle.pop() if self._idle else await self._connect()
                if not self._has_table:
                    # Where somebody makes it at the same moment it fails.
                    await connection.execute(TABLE)
                    await connection.execute(_ADD_NUMBERS)
                    self._has_table = True
                yield connection
                self._idle.append(connection)
                connection = None
            except psycopg.Error as error:
                if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
                    # The database was restored, perhaps from before there was one. Whoever comes next makes it.
                    self._has_table = False
                raise _doubt(error) from error
            finally:
                if connection is not None:
                    with contextlib.suppress(psycopg.Error):
                        await connection.close()

    async def _connect(self) -> Connection:
        given = conninfo_to_dict(self._dsn).get("options") or ""
        return await psycopg.AsyncConnection.connect(
            self._dsn,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            keepalives_idle=SILENCE_SECONDS // 3,
            keepalives_interval=SILENCE_SECONDS // 3,
            keepalives_count=2,
            tcp_user_timeout=SILENCE_SECONDS * 1000,
            # Whoever wrote the DSN may have named a role or a search_path there.
            options=f"{given} {self._options}",
            application_name="lockstep",
        )


def _doubt(error: psycopg.Error) -> LockstepError:
    return InDoubt(ErrorCode.UNAVAILABLE, f"the database: {str(error).strip() or type(error).__name__}")
