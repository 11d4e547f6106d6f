"""One branch while nobody else votes on it or ends it, and the two statements that end it.

Law: how a branch is to end is written down before it ends, in the same database, without waiting for the disk: the write-ahead
log keeps the order, so whoever finds the branch gone finds that row. It has the number of the branch's transaction, and how that
ended PostgreSQL says: the end may have failed, and somebody else have ended it. A branch that is gone without a row was ended by
somebody else, and nobody knows how. Our coordinator gives a name once, and PostgreSQL takes it again: what is prepared under the
name of a branch that has committed is work that was repeated, and is rolled back, whoever asks for which end. Rows are forgotten;
so is what was prepared so late that its row may be, and no vote is given on it: by then no coordinator begins to commit.

    client --PREPARE TRANSACTION--> prepared --COMMIT PREPARED / ROLLBACK PREPARED--> gone, with its row
"""

import logging
from dataclasses import dataclass

import psycopg
from psycopg import sql

from lockstep.core.branch_names import begun_ms_of
from lockstep.core.decision_log import CLOCK_MS
from lockstep.core.postgres_gid import xid_of

_log = logging.getLogger("lockstep.postgres")

_PREPARED = """
select transaction::text, case when owner = current_user or current_setting('is_superuser')::boolean then '' else owner end
, exists (
    select from lockstep_outcomes as ended where ended.gid = pg_prepared_xacts.gid and ended.is_commit and case
        when ended.recorded_by::xid = ended.xmin and ended.transaction::xid <> pg_prepared_xacts.transaction
        then pg_xact_status(ended.transaction) = 'committed'
    end
), prepared > to_timestamp(%s)
from pg_prepared_xacts where gid = %s and database = current_database()
"""
"""The last columns: whether another transaction of that name has committed (one of a restored database has its old number), and
whether it was prepared too late."""
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
    is_late: bool = False
    """It was prepared so long after its transaction was begun that its record would be gone, had it committed before."""


class HeldBranch:
    """A branch on which nobody votes; as long as `Database.held` lasts, or one call of `Database`."""

    def __init__(self, connection: Connection, gid: str, outcome_seconds: float) -> None:
        """`outcome_seconds`: how long the record of an end is kept."""
        self._connection = connection
        self._gid = gid
        self._latest = _latest_seconds(gid, outcome_seconds)

    async def facts(self) -> BranchFacts:
        # One after the other: what is prepared PostgreSQL looks up when it comes to it, rows as of the beginning of the
        # statement. In one, a branch would be gone whose row was not there yet.
        prepared = await self._prepared()
        row = await (await self._connection.execute(_OUTCOME, (self._gid,))).fetchone()
        intended, ended = (None, None) if row is None else row
        if prepared is not None:
            return BranchFacts(
                True,
                _truth(intended),
                foreign_owner=prepared.foreign_owner,
                is_repeated=prepared.is_repeated,
                is_late=prepared.is_late,
            )
        return BranchFacts(False, _truth(ended), is_heuristic=ended is not None and ended != intended)

    async def end(self, *, is_commit: bool) -> BranchFacts:
        """Ends it, if it is prepared; returns what is known of it then."""
        prepared = await self._prepared()
        if prepared is None:
            return await self.facts()
        if prepared.is_repeated or prepared.is_late:
            reason = (
                "another of that name has committed"
                if prepared.is_repeated
                else "it was prepared when its transaction had been over for long"
            )
            _log.warning("event=repeated_branch_rolled_back gid=%s: %s", self._gid, reason)
            await self._finish("rollback prepared")
            return await self.facts()
        async with self._connection.transaction():
            await self._connection.execute("set local synchronous_commit = off")
            await self._connection.execute(_RECORD, (self._gid, is_commit, prepared.transaction))
        if not await self._finish("commit prepared" if is_commit else "rollback prepared"):
            return await self.facts()
        return BranchFacts(False, is_commit)

    async def _prepared(self) -> "_Prepared | None":
        row = await (await self._connection.execute(_PREPARED, (self._latest, self._gid))).fetchone()
        return None if row is None else _Prepared(str(row[0]), str(row[1]), bool(row[2]), bool(row[3]))

    async def _finish(self, verb: str) -> bool:
        """False: another was quicker, a call of ours or an operator."""
        try:
            await self._connection.execute(sql.SQL(f"{verb} {{}}").format(sql.Literal(self._gid)))
        except psycopg.errors.UndefinedObject:
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Prepared:
    transaction: str
    """Its number, of 32 bits."""
    foreign_owner: str
    is_repeated: bool
    is_late: bool


def _latest_seconds(gid: str, outcome_seconds: float) -> float:
    """Until when, by the database's clock, a branch of this name cannot be a repeated one whose record is gone; for ever, if
    another transaction manager gave the name: it looks after it."""
    xid = xid_of(gid)
    begun_ms = begun_ms_of(xid.encode()) if xid is not None else 0
    return begun_ms / 1000 + outcome_seconds - CLOCK_MS / 1000 if begun_ms else float("inf")


def _truth(value: object) -> bool | None:
    return None if value is None else bool(value)
