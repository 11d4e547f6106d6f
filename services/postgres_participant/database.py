"""The database: what is prepared in it, and the two statements that end a branch.

Law: how a branch is to end is written down before it ends, in the same database, without waiting for the disk: the write-ahead
log keeps the order, so whoever finds the branch gone finds that row. It has the number of the branch's transaction, and how that
ended PostgreSQL says: the end may have failed, and somebody else have ended it. A branch that is gone without a row was ended by
somebody else, and nobody knows how. Our coordinator gives a name once, and PostgreSQL takes it again: what is prepared under the
name of a branch that has committed is work that was repeated, and is rolled back, whoever asks for which end.

    client --PREPARE TRANSACTION--> prepared --COMMIT PREPARED / ROLLBACK PREPARED--> gone, with its row
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from lockstep.core.errors import ErrorCode, InDoubt, LockstepError
from lockstep.core.postgres_gid import GID_PREFIX

_log = logging.getLogger("lockstep.postgres")

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
_PREPARED = """
select transaction::text, case when owner = current_user or current_setting('is_superuser')::boolean then '' else owner end
, exists (
    select from lockstep_outcomes as ended where ended.gid = pg_prepared_xacts.gid and ended.is_commit and case
        when ended.recorded_by::xid = ended.xmin and ended.transaction::xid <> pg_prepared_xacts.transaction
        then pg_xact_status(ended.transaction) = 'committed'
    end
)
from pg_prepared_xacts where gid = %s and database = current_database()
"""
"""The last column: whether another transaction of that name has committed. One of a restored database has its old number."""
_OUTCOME = """
select is_commit, case
    when recorded_by is null then is_commit
    when recorded_by::xid = xmin then
        case pg_xact_status(transaction) when 'committed' then true when 'aborted' then false end
    end
from lockstep_outcomes where gid = %s
"""
"""How it was to end, and how it did. A row of an older version has no number, and is believed. One that another transaction
than it says has written came with a dump: its number means something else here, and the dump may lack what the branch did. Old
transactions PostgreSQL forgets, but not within a hundred million others."""
_RECORD = """
insert into lockstep_outcomes (gid, is_commit, transaction, recorded_by)
select %s, %s, (own - ((own - %s::bigint) & 4294967295))::text::xid8, pg_current_xact_id()
from (select pg_current_xact_id()::text::bigint as own) as numbers
on conflict (gid) do update set is_commit = excluded.is_commit, ended_at = excluded.ended_at,
    transaction = excluded.transaction, recorded_by = excluded.recorded_by
"""
"""What is prepared has a number of 32 bits: the last below this transaction's own that ends so."""
_LIST = """
select gid, extract(epoch from now() - prepared)::float from pg_prepared_xacts
where database = current_database() and starts_with(gid, %s) order by prepared
"""
_READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
"""Each statement sees what was committed before it; a database may have another default."""
_SILENCE = (
    f"-c tcp_keepalives_idle={SILENCE_SECONDS // 3} -c tcp_keepalives_interval={SILENCE_SECONDS // 3} "
    f"-c tcp_keepalives_count=2 -c tcp_user_timeout={SILENCE_SECONDS * 1000}"
)
"""The server notices, too, and lets go of what a process held on a machine that is gone; its default is two hours."""
_LOCK_KEY = "hashtextextended(%s, 1280004948)"

Connection = psycopg.AsyncConnection[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """What the database says of one gid."""

    is_prepared: bool
    is_commit: bool | None
    """How it ended, or is about to; None: not known."""
    is_heuristic: bool = False
    """Somebody else has ended it, and not as it was to."""
    foreign_owner: str = ""
    """Who has prepared it, if it is prepared and the user of this connection may not end it."""
    is_repeated: bool = False
    """It has committed, and what is prepared under its name now is not it."""


@dataclass(frozen=True, slots=True)
class PreparedBranch:
    gid: str
    age_seconds: float


class Database:
    """Lives as long as the process: a few connections, opened when they are needed. Errors of the database are `InDoubt`."""

    def __init__(self, dsn: str, connections_max: int, statement_seconds: float) -> None:
        self._dsn = dsn
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
            return await _facts(connection, gid)

    async def end(self, gid: str, *, is_commit: bool) -> BranchFacts:
        """Ends it, if it is prepared; returns what is known of it then. One at a time: what is ended is what was looked at, and
        not what somebody prepares under the same name behind an end that overtook this one.
        """
        async with self._connection() as connection:
            await connection.execute(f"select pg_advisory_lock({_LOCK_KEY})", (gid,))
            try:
                return await _end(connection, gid, is_commit=is_commit)
            finally:
                await connection.execute(f"select pg_advisory_unlock({_LOCK_KEY})", (gid,))

    @contextlib.asynccontextmanager
    async def held(self, gid: str) -> AsyncIterator["HeldBranch | None"]:
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
                yield HeldBranch(connection, gid)
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

    async def forget(self, older_than_seconds: float) -> None:
        """Drops the records of branches that ended so long ago."""
        async with self._connection() as connection:
            await connection.execute(
                "delete from lockstep_outcomes where ended_at < now() - make_interval(secs => %s)",
                (older_than_seconds,),
            )

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


class HeldBranch:
    """A branch on which nobody votes; as long as `Database.held` lasts."""

    def __init__(self, connection: Connection, gid: str) -> None:
        self._connection = connection
        self._gid = gid

    async def facts(self) -> BranchFacts:
        return await _facts(self._connection, self._gid)

    async def end(self, *, is_commit: bool) -> BranchFacts:
        return await _end(self._connection, self._gid, is_commit=is_commit)


@dataclass(frozen=True, slots=True)
class _Prepared:
    transaction: str
    """Its number, of 32 bits."""
    foreign_owner: str
    is_repeated: bool


async def _prepared(connection: Connection, gid: str) -> _Prepared | None:
    row = await (await connection.execute(_PREPARED, (gid,))).fetchone()
    return None if row is None else _Prepared(str(row[0]), str(row[1]), bool(row[2]))


async def _facts(connection: Connection, gid: str) -> BranchFacts:
    # One after the other: what is prepared PostgreSQL looks up when it comes to it, rows as of the beginning of the statement.
    # In one, a branch would be gone whose row was not there yet.
    prepared = await _prepared(connection, gid)
    row = await (await connection.execute(_OUTCOME, (gid,))).fetchone()
    intended, ended = (None, None) if row is None else row
    if prepared is not None:
        return BranchFacts(
            True,
            _truth(intended),
            foreign_owner=prepared.foreign_owner,
            is_repeated=prepared.is_repeated,
        )
    return BranchFacts(False, _truth(ended), is_heuristic=ended is not None and ended != intended)


def _truth(value: object) -> bool | None:
    return None if value is None else bool(value)


async def _end(connection: Connection, gid: str, *, is_commit: bool) -> BranchFacts:
    prepared = await _prepared(connection, gid)
    if prepared is None:
        return await _facts(connection, gid)
    if prepared.is_repeated:
        _log.warning("event=repeated_branch_rolled_back gid=%s: another of that name has committed", gid)
        await _finish(connection, "rollback prepared", gid)
        return await _facts(connection, gid)
    async with connection.transaction():
        await connection.execute("set local synchronous_commit = off")
        await connection.execute(_RECORD, (gid, is_commit, prepared.transaction))
    if not await _finish(connection, "commit prepared" if is_commit else "rollback prepared", gid):
        return await _facts(connection, gid)
    return BranchFacts(False, is_commit)


async def _finish(connection: Connection, verb: str, gid: str) -> bool:
    """False: another was quicker, a call of ours or an operator."""
    try:
        await connection.execute(sql.SQL(f"{verb} {{}}").format(sql.Literal(gid)))
    except psycopg.errors.UndefinedObject:
        return False
    return True


def _doubt(error: psycopg.Error) -> LockstepError:
    return InDoubt(ErrorCode.UNAVAILABLE, f"the database: {str(error).strip() or type(error).__name__}")
