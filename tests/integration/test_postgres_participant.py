"""PostgreSQL as a participant: votes, ends that may be repeated, the records of them, and the lock that keeps votes out."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import psycopg
import pytest
from psycopg import sql

from lockstep.core.branch_names import RANDOM_BYTES, GlobalId, branch_xid, generation_tag, new_global_id
from lockstep.core.decision_log import CLOCK_MS, LogView, Verdict
from lockstep.core.errors import InDoubt, Rejected
from lockstep.core.postgres_gid import gid_of
from lockstep.core.xid import Xid
from lockstep.runtime.decision_log import DecisionLogReader
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.xid_codec import decode_xid, encode_xid
from lockstep.wire.v1 import coordinator_pb2
from lockstep.wire.v1 import participant_pb2 as pb
from services.postgres_participant.database import _LOCK_KEY, Database, PreparedBranch
from services.postgres_participant.held_branch import BranchFacts, HeldBranch
from services.postgres_participant.orphan_watch import OrphanWatch
from services.postgres_participant.participant_service import ParticipantService
from services.postgres_participant.settings import ParticipantSettings
from tests.integration.postgres_process import PostgresProcess

_ids = iter(range(1_000))
WEEK = 7 * 24 * 3600.0
ENDS_AT_ONCE = 100
"""Branches."""


class Branch:
    """A prepared transaction, as a client leaves it."""

    def __init__(self, dsn: str, begun_seconds_ago: float = 0.0) -> None:
        self.dsn = dsn
        self.row = next(_ids)
        begun_ms = int((time.time() - begun_seconds_ago) * 1000)
        global_id = new_global_id(begun_ms, self.row.to_bytes(RANDOM_BYTES))
        self.xid: Xid = branch_xid(global_id, 0, generation_tag("12345678"))
        self.gid = gid_of(self.xid)

    async def prepare(self, role: str = "lockstep") -> None:
        """`role`: who then owns it."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            await connection.execute("create table if not exists branches (id int primary key)")
            await connection.execute(f"grant insert on branches to {role}")
            await connection.execute(f"set role {role}")
            await connection.execute("begin")
            await connection.execute("insert into branches values (%s)", (self.row,))
            await connection.execute(f"prepare transaction '{self.gid}'")

    async def is_visible(self) -> bool:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            cursor = await connection.execute("select 1 from branches where id = %s", (self.row,))
            return await cursor.fetchone() is not None


@pytest.fixture
async def database(postgres: PostgresProcess) -> AsyncGenerator[Database]:
    database = Database(postgres.dsn, 4, 1.0, WEEK)
    yield database
    await database.close()


@pytest.fixture
async def forgetful(postgres: PostgresProcess) -> AsyncGenerator[Database]:
    """It keeps no record."""
    forgetful = Database(postgres.dsn, 1, 3.0, 0.0)
    yield forgetful
    await forgetful.close()


@pytest.fixture
async def branch(postgres: PostgresProcess) -> Branch:
    branch = Branch(postgres.dsn)
    await branch.prepare()
    return branch


@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_end_may_be_repeated_and_says_the_same(
    database: Database, branch: Branch, is_commit: bool
) -> None:
    assert await database.facts(branch.gid) == BranchFacts(True, None)
    for _ in range(2):
        assert await database.end(branch.gid, is_commit=is_commit) == BranchFacts(False, is_commit)
    assert await branch.is_visible() == is_commit
    # Whoever asks for the other end hears how it ended.
    assert await database.end(branch.gid, is_commit=not is_commit) == BranchFacts(False, is_commit)


@pytest.mark.parametrize("asked", ["commit", "rollback", "orphan watch"])
async def test_what_is_prepared_under_the_name_of_a_committed_branch_is_rolled_back(
    database: Database, branch: Branch, postgres: PostgresProcess, asked: str
) -> None:
    """Its client has not heard of the first, and repeats it; the coordinator may still repeat its commit."""
    assert await database.end(branch.gid, is_commit=True) == BranchFacts(False, True)
    repeated = branch_again(branch)
    await repeated.prepare()
    assert (await database.facts(branch.gid)).is_repeated
    service = ParticipantService("rows", database)
    vote = await service._prepare(pb.ParticipantPrepareRequest(name="rows", xid=encode_xid(branch.xid)))
    assert vote.vote == pb.PARTICIPANT_VOTE_COMMITTED
    if asked == "orphan watch":
        async with database.held(branch.gid) as held:
            assert held is not None
            assert await held.end(is_commit=False) == BranchFacts(False, True)
    else:
        assert await database.end(branch.gid, is_commit=asked == "commit") == BranchFacts(False, True)
    assert await branch.is_visible() and not await repeated.is_visible()
    assert await database.facts(branch.gid) == BranchFacts(False, True)


async def test_what_is_prepared_again_behind_a_rollback_may_commit(
    database: Database, branch: Branch
) -> None:
    assert await database.end(branch.gid, is_commit=False) == BranchFacts(False, False)
    await branch.prepare()
    assert not (await database.facts(branch.gid)).is_repeated
    assert await database.end(branch.gid, is_commit=True) == BranchFacts(False, True)
    assert await branch.is_visible()


async def test_many_that_end_it_at_once_agree(postgres: PostgresProcess) -> None:
    """Often enough to meet the moment between the two things that each looks at: what is prepared, and what is recorded."""
    databases = [Database(postgres.dsn, 2, 3.0, WEEK) for _ in range(3)]
    try:
        for _ in range(ENDS_AT_ONCE):
            branch = Branch(postgres.dsn)
            await branch.prepare()
            ends = await asyncio.gather(
                *(database.end(branch.gid, is_commit=True) for database in databases for _ in range(2)),
                return_exceptions=True,
            )
            # PostgreSQL refuses while another session ends it: in doubt, and asked again.
            assert all(end == BranchFacts(False, True) or isinstance(end, InDoubt) for end in ends), ends
            assert await databases[0].end(branch.gid, is_commit=True) == BranchFacts(False, True)
    finally:
        for database in databases:
            await database.close()


async def test_what_was_never_prepared_is_unknown(database: Database, postgres: PostgresProcess) -> None:
    gid = Branch(postgres.dsn).gid
    assert await database.facts(gid) == BranchFacts(False, None)
    assert await database.end(gid, is_commit=False) == BranchFacts(False, None)
    assert await database.end(gid, is_commit=True) == BranchFacts(False, None)


async def test_what_an_operator_ended_by_hand_is_unknown(
    database: Database, branch: Branch, postgres: PostgresProcess
) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as connection:
        await connection.execute(f"rollback prepared '{branch.gid}'")
    assert await database.end(branch.gid, is_commit=True) == BranchFacts(False, None)


async def test_nobody_votes_on_a_branch_that_may_be_about_to_go(
    database: Database, branch: Branch, postgres: PostgresProcess
) -> None:
    other = Database(postgres.dsn, 1, 5.0, WEEK)
    try:
        async with database.held(branch.gid) as held:
            assert held is not None
            async with other.held(branch.gid) as second:
                assert second is None
            vote = asyncio.ensure_future(other.facts(branch.gid))
            await asyncio.sleep(0.2)
            assert not vote.done()
            await held.end(is_commit=False)
        assert await vote == BranchFacts(False, False)
    finally:
        await other.close()


async def test_a_vote_that_waits_too_long_is_in_doubt_and_no_vote(database: Database, branch: Branch) -> None:
    async with database.held(branch.gid):
        with pytest.raises(InDoubt):
            await database.facts(branch.gid)
    assert (await database.facts(branch.gid)).is_prepared
    await database.end(branch.gid, is_commit=False)


async def test_a_record_is_there_whenever_the_branch_is_gone(
    database: Database, branch: Branch, postgres: PostgresProcess
) -> None:
    """The record does not wait for the disk by itself, and comes before the end that does."""
    await database.end(branch.gid, is_commit=True)
    await postgres.crash()
    with pytest.raises(InDoubt):
        await database.facts(branch.gid)
    await postgres.start()
    assert await database.facts(branch.gid) == BranchFacts(False, True)


async def test_records_are_forgotten_after_their_time(
    database: Database, forgetful: Database, branch: Branch
) -> None:
    await database.end(branch.gid, is_commit=True)
    await database.forget()
    assert await database.facts(branch.gid) == BranchFacts(False, True)
    await forgetful.forget()
    assert await database.facts(branch.gid) == BranchFacts(False, None)


@pytest.mark.parametrize("asked", ["commit", "rollback", "orphan watch"])
async def test_what_is_prepared_again_when_the_record_is_forgotten_does_not_commit(
    postgres: PostgresProcess, database: Database, forgetful: Database, asked: str
) -> None:
    """The decision stays in the log for as long as another participant is away, and a coordinator that takes it up tells all."""
    branch = Branch(postgres.dsn, WEEK + 60)
    patient = Database(postgres.dsn, 1, 3.0, 2 * WEEK)
    await branch.prepare()
    assert await patient.end(branch.gid, is_commit=True) == BranchFacts(False, True)
    await patient.close()
    await forgetful.forget()
    repeated = branch_again(branch)
    await repeated.prepare()
    service = ParticipantService("rows", database)
    vote = await service._prepare(pb.ParticipantPrepareRequest(name="rows", xid=encode_xid(branch.xid)))
    assert vote.vote == pb.PARTICIPANT_VOTE_NO
    if asked == "orphan watch":
        await OrphanWatch(EAGER, database, _Decided(cast(EtcdClient, None), "c")).look()
    else:
        await database.end(branch.gid, is_commit=asked == "commit")
    assert await database.facts(branch.gid) == BranchFacts(False, None)
    assert not await repeated.is_visible()


async def test_an_old_name_that_was_prepared_in_time_may_commit_whenever_it_is_decided(
    postgres: PostgresProcess,
) -> None:
    """Here its time is two seconds."""
    branch, database = Branch(postgres.dsn), Database(postgres.dsn, 1, 3.0, CLOCK_MS / 1000 + 2)
    await branch.prepare()
    await asyncio.sleep(2.5)
    assert not (await database.facts(branch.gid)).is_late
    assert await database.end(branch.gid, is_commit=True) == BranchFacts(False, True)
    await database.close()


async def test_a_record_is_kept_while_something_is_prepared_under_its_name(
    postgres: PostgresProcess, database: Database, forgetful: Database, branch: Branch
) -> None:
    await database.end(branch.gid, is_commit=True)
    await branch_again(branch).prepare()
    await forgetful.forget()
    assert (await database.facts(branch.gid)).is_repeated
    await database.end(branch.gid, is_commit=True)
    await forgetful.forget()
    assert await database.facts(branch.gid) == BranchFacts(False, None)


def branch_again(branch: Branch) -> Branch:
    """Other work under the same name."""
    repeated = Branch(branch.dsn)
    repeated.xid, repeated.gid = branch.xid, branch.gid
    return repeated


EAGER = ParticipantSettings("rows", "", "", "", "c", orphan_age_seconds=0)


class _Decided(DecisionLogReader):
    """Whatever it is asked about was committed, and another participant has not heard it."""

    async def read(self, global_id: GlobalId) -> LogView | None:
        return LogView(generation="12345678", decision=Verdict.COMMIT)


async def test_the_service_answers_as_the_protocol_says(database: Database, branch: Branch) -> None:
    service = ParticipantService("rows", database)
    xid = encode_xid(branch.xid)
    recovered = await service._recover(pb.ParticipantRecoverRequest(name="rows"))
    assert branch.xid in [decode_xid(one.xid) for one in recovered.branches]
    votes = [
        (await service._prepare(pb.ParticipantPrepareRequest(name=name, xid=xid))).vote
        for name in ("rows", "other")
    ]
    assert votes == [pb.PARTICIPANT_VOTE_OK, pb.PARTICIPANT_VOTE_NO]
    with pytest.raises(Rejected):
        await service._commit(pb.ParticipantCommitRequest(name="other", xid=xid))
    ended = await service._rollback(pb.ParticipantRollbackRequest(name="other", xid=xid))
    assert ended.end == pb.PARTICIPANT_END_UNKNOWN_BRANCH and (await database.facts(branch.gid)).is_prepared
    assert (
        await service._commit(pb.ParticipantCommitRequest(name="rows", xid=xid))
    ).end == pb.PARTICIPANT_END_COMMITTED
    late = await service._prepare(pb.ParticipantPrepareRequest(name="rows", xid=xid))
    assert late.vote == pb.PARTICIPANT_VOTE_COMMITTED
    unknown = encode_xid(branch.xid._replace(branch_id=b"9:12345678"))
    assert (await service._commit(pb.ParticipantCommitRequest(name="rows", xid=unknown))).end == (
        pb.PARTICIPANT_END_UNKNOWN_BRANCH
    )
    malformed = coordinator_pb2.BranchXid(format_id=1, global_id=bytes(65))
    with pytest.raises(Rejected):
        await service._prepare(pb.ParticipantPrepareRequest(name="rows", xid=malformed))


async def _by_hand(postgres: PostgresProcess, statement: str) -> None:
    """What an operator does."""
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as connection:
        await connection.execute(statement)


@pytest.fixture
async def stranger(postgres: PostgresProcess, database: Database) -> AsyncGenerator[Database]:
    """As a user who may do everything with the records, and prepares no branches."""
    await database.prepared()  # Makes the table.
    for role in ("application", "stranger"):
        await _by_hand(
            postgres, f"do $$ begin create role {role} login; exception when duplicate_object then end $$"
        )
    await _by_hand(postgres, "grant all on lockstep_outcomes to stranger")
    await _by_hand(postgres, "grant create on schema public to stranger")
    stranger = Database(postgres.dsn.replace("user=lockstep", "user=stranger"), 2, 3.0, WEEK)
    yield stranger
    await stranger.close()


ENDS = {
    (True, True): pb.PARTICIPANT_END_COMMITTED,
    (True, False): pb.PARTICIPANT_END_HEURISTICALLY_ROLLED_BACK,
    (False, True): pb.PARTICIPANT_END_HEURISTICALLY_COMMITTED,
    (False, False): pb.PARTICIPANT_END_ROLLED_BACK,
}


async def _said(database: Database, branch: Branch, *, is_commit: bool) -> "pb.ParticipantEnd.ValueType":
    """What a coordinator hears that repeats itself."""
    service, xid = ParticipantService("rows", database), encode_xid(branch.xid)
    if is_commit:
        return (await service._commit(pb.ParticipantCommitRequest(name="rows", xid=xid))).end
    return (await service._rollback(pb.ParticipantRollbackRequest(name="rows", xid=xid))).end


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_end_that_failed_is_not_taken_for_what_an_operator_did_instead(
    postgres: PostgresProcess, stranger: Database, is_commit: bool, is_committed: bool
) -> None:
    branch = Branch(postgres.dsn)
    await branch.prepare("application")
    with pytest.raises(InDoubt, match="permission denied"):
        await _said(stranger, branch, is_commit=is_commit)
    await _by_hand(postgres, f"{'commit' if is_committed else 'rollback'} prepared '{branch.gid}'")
    for _ in range(2):
        assert await _said(stranger, branch, is_commit=is_commit) == ENDS[is_commit, is_committed]
        assert await branch.is_visible() == is_committed


async def test_how_a_branch_really_ended_is_known_after_a_crash(
    postgres: PostgresProcess, stranger: Database
) -> None:
    branch = Branch(postgres.dsn)
    await branch.prepare("application")
    with pytest.raises(InDoubt, match="permission denied"):
        await stranger.end(branch.gid, is_commit=True)
    await _by_hand(postgres, f"rollback prepared '{branch.gid}'")
    await postgres.crash()
    await postgres.start()
    database = Database(postgres.dsn, 1, 3.0, WEEK)
    assert await database.facts(branch.gid) == BranchFacts(False, False, is_heuristic=True)
    await database.close()


async def test_an_operator_who_is_quicker_by_a_moment_is_told_of(
    postgres: PostgresProcess, database: Database, branch: Branch
) -> None:
    await database.prepared()
    async with await psycopg.AsyncConnection.connect(postgres.dsn) as blocking:
        # The record waits for this one, after the branch was seen.
        await blocking.execute(
            "insert into lockstep_outcomes (gid, is_commit) values (%s, false)", (branch.gid,)
        )
        ending = asyncio.ensure_future(database.end(branch.gid, is_commit=True))
        await asyncio.sleep(0.3)
        await _by_hand(postgres, f"rollback prepared '{branch.gid}'")
        await blocking.rollback()
        assert await ending == BranchFacts(False, False, is_heuristic=True)


async def test_records_of_an_older_version_are_believed_and_new_ones_go_beside_them(
    postgres: PostgresProcess, branch: Branch
) -> None:
    await _by_hand(postgres, "drop table if exists lockstep_outcomes")
    await _by_hand(
        postgres,
        "create table lockstep_outcomes (gid text primary key, is_commit boolean not null,"
        " ended_at timestamptz not null default now())",
    )
    await _by_hand(postgres, "insert into lockstep_outcomes values ('lockstep:old', true)")
    for _ in range(2):  # The second finds the table as the first has made it.
        database = Database(postgres.dsn, 1, 3.0, WEEK)
        assert await database.facts("lockstep:old") == BranchFacts(False, True)
        assert await database.end(branch.gid, is_commit=True) == BranchFacts(False, True)
        await database.close()


async def test_a_record_that_came_with_a_dump_says_nothing(
    postgres: PostgresProcess, database: Database, branch: Branch
) -> None:
    await database.end(branch.gid, is_commit=True)
    await _by_hand(
        postgres,
        "create table dumped as table lockstep_outcomes; delete from lockstep_outcomes;"
        # Its numbers may be above all that this server has given.
        " update dumped set transaction = '999999999999'; insert into lockstep_outcomes table dumped; drop table dumped",
    )
    assert await database.facts(branch.gid) == BranchFacts(False, None)


async def test_a_branch_that_only_another_user_may_end_is_voted_against(
    postgres: PostgresProcess, stranger: Database, database: Database
) -> None:
    branch = Branch(postgres.dsn)
    await branch.prepare("application")
    request = pb.ParticipantPrepareRequest(name="rows", xid=encode_xid(branch.xid))
    refused = await ParticipantService("rows", stranger)._prepare(request)
    assert refused.vote == pb.PARTICIPANT_VOTE_NO
    assert "application" in refused.reason
    # Its owner may end it, also one that the DSN says to be, and so may a superuser.
    owner = Database(f"{postgres.dsn} options='-c role=application'", 1, 3.0, WEEK)
    await _by_hand(postgres, "grant all on lockstep_outcomes to application")
    await _by_hand(postgres, "grant create on schema public to application")
    for one in (owner, database):
        vote = await ParticipantService("rows", one)._prepare(request)
        assert vote.vote == pb.PARTICIPANT_VOTE_OK
    assert await owner.end(branch.gid, is_commit=True) == BranchFacts(False, True)
    await owner.close()


async def test_a_table_of_records_that_goes_away_is_made_again(
    postgres: PostgresProcess, database: Database, branch: Branch
) -> None:
    # More connections than one that know of the table.
    await asyncio.gather(*(database.facts(branch.gid) for _ in range(4)))
    await _by_hand(postgres, "drop table lockstep_outcomes")
    with pytest.raises(InDoubt):
        await database.end(branch.gid, is_commit=True)
    assert await database.end(branch.gid, is_commit=True) == BranchFacts(False, True)
    await _by_hand(postgres, "alter table lockstep_outcomes drop column transaction, drop column recorded_by")
    with pytest.raises(InDoubt):
        await database.facts(branch.gid)
    assert await database.facts(branch.gid) == BranchFacts(False, True)


async def test_the_server_lets_go_of_a_machine_that_is_silent_and_the_dsn_keeps_its_options(
    postgres: PostgresProcess,
) -> None:
    await _by_hand(postgres, "create schema if not exists elsewhere")
    database = Database(f"{postgres.dsn} options='-c search_path=elsewhere'", 1, 1.0, WEEK)
    shown = {}
    async with database._connection() as connection:
        for name in ("tcp_keepalives_idle", "tcp_keepalives_interval", "search_path", "statement_timeout"):
            row = await (await connection.execute(f"show {name}")).fetchone()
            shown[name] = row and row[0]
    await database.close()
    assert shown == {
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "5",
        "search_path": "elsewhere",
        "statement_timeout": "1s",
    }


class Relay:
    """A way to the database, on which answers may stop without a word."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.is_silent = False
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Returns its port."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_database, to_database = await asyncio.open_connection("127.0.0.1", self._port)
        self._tasks.append(asyncio.ensure_future(self._carry(reader, to_database)))
        self._tasks.append(asyncio.ensure_future(self._carry(from_database, writer)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not self.is_silent:
                    writer.write(data)
        finally:
            writer.close()


class Looking(Database):
    """Says how often it was asked what is prepared, and how often it answered."""

    asked = answered = 0

    async def prepared(self) -> list[PreparedBranch]:
        self.asked += 1
        found = await super().prepared()
        self.answered += 1
        return found


async def test_a_database_that_vanishes_without_a_word_is_asked_again_when_it_is_back(
    postgres: PostgresProcess,
) -> None:
    relay = Relay(postgres.port)
    port = await relay.start()
    database = Looking(postgres.dsn.replace(f"port={postgres.port}", f"port={port}"), 1, 1.0, WEEK)
    given = ParticipantSettings(
        "db", "", "", "", "c", orphan_every_seconds=0.1, orphan_round_seconds=1.0, orphans_max=0
    )
    reader = DecisionLogReader(cast(EtcdClient, None), "c")
    watching = asyncio.ensure_future(OrphanWatch(given, database, reader).run())
    async with asyncio.timeout(60):
        while not database.answered:
            await asyncio.sleep(0.05)
        relay.is_silent, asked = True, database.asked
        while database.asked < asked + 3:
            await asyncio.sleep(0.05)
        relay.is_silent, answered = False, database.answered
        while database.answered == answered:
            await asyncio.sleep(0.05)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await database.close()
    await relay.close()


class Stalled:
    """A connection of a participant whose statements wait, from the end of a branch on, until they may go on."""

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self.is_waiting, self.may_go_on = asyncio.Event(), asyncio.Event()
        self._connection = connection

    def transaction(self) -> object:
        return self._connection.transaction()

    async def execute(self, query: Any, *parameters: Any) -> object:
        if isinstance(query, sql.Composed):
            self.is_waiting.set()
            await self.may_go_on.wait()
        return await self._connection.execute(query, *parameters)


async def test_a_call_that_stalls_before_it_ends_a_branch_does_not_end_what_was_prepared_again(
    database: Database, branch: Branch, postgres: PostgresProcess
) -> None:
    """A participant is paused between its record and COMMIT PREPARED; the commit is repeated at another, and then the client
    repeats its work under the same name."""
    repeated = branch_again(branch)
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as connection:
        await database.facts(branch.gid)
        await connection.execute(f"select pg_advisory_lock({_LOCK_KEY})", (branch.gid,))
        stalled = Stalled(connection)
        ending = asyncio.ensure_future(HeldBranch(cast(Any, stalled), branch.gid, WEEK).end(is_commit=True))
        await stalled.is_waiting.wait()
        with contextlib.suppress(InDoubt):
            await database.end(branch.gid, is_commit=True)
        with contextlib.suppress(psycopg.errors.DuplicateObject):
            await repeated.prepare()
        stalled.may_go_on.set()
        await ending
    assert await branch.is_visible() and not await repeated.is_visible()
    await repeated.prepare()
    assert await database.end(branch.gid, is_commit=True) == BranchFacts(False, True)
    assert await branch.is_visible() and not await repeated.is_visible()
