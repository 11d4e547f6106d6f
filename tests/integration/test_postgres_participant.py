"""PostgreSQL as a participant: votes, ends that may be repeated, the records of them, and the lock that keeps votes out."""

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

import psycopg
import pytest

from lockstep.core.branch_names import branch_xid, generation_tag, new_global_id
from lockstep.core.errors import InDoubt, Rejected
from lockstep.core.postgres_gid import gid_of
from lockstep.core.xid import Xid
from lockstep.runtime.decision_log import DecisionLogReader
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.xid_codec import decode_xid, encode_xid
from lockstep.wire.v1 import coordinator_pb2
from lockstep.wire.v1 import participant_pb2 as pb
from services.postgres_participant.database import BranchFacts, Database, PreparedBranch
from services.postgres_participant.orphan_watch import OrphanWatch
from services.postgres_participant.participant_service import ParticipantService
from services.postgres_participant.settings import ParticipantSettings
from tests.integration.postgres_process import PostgresProcess

_ids = iter(range(1_000))
ENDS_AT_ONCE = 100
"""Branches."""


class Branch:
    """A prepared transaction, as a client leaves it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.row = next(_ids)
        self.xid: Xid = branch_xid(new_global_id(self.row, b"postgres--"), 0, generation_tag("12345678"))
        self.gid = gid_of(self.xid)

    async def prepare(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            await connection.execute("create table if not exists branches (id int primary key)")
            await connection.execute("begin")
            await connection.execute("insert into branches values (%s)", (self.row,))
            await connection.execute(f"prepare transaction '{self.gid}'")

    async def is_visible(self) -> bool:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            cursor = await connection.execute("select 1 from branches where id = %s", (self.row,))
            return await cursor.fetchone() is not None


@pytest.fixture
async def database(postgres: PostgresProcess) -> AsyncGenerator[Database]:
    database = Database(postgres.dsn, 4, 1.0)
    yield database
    await database.close()


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


async def test_many_that_end_it_at_once_agree(postgres: PostgresProcess) -> None:
    """Often enough to meet the moment between the two things that each looks at: what is prepared, and what is recorded."""
    databases = [Database(postgres.dsn, 2, 3.0) for _ in range(3)]
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
    other = Database(postgres.dsn, 1, 5.0)
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


async def test_records_are_forgotten_after_their_time(database: Database, branch: Branch) -> None:
    await database.end(branch.gid, is_commit=True)
    await database.forget(3600)
    assert await database.facts(branch.gid) == BranchFacts(False, True)
    await database.forget(0)
    assert await database.facts(branch.gid) == BranchFacts(False, None)


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
    database = Looking(postgres.dsn.replace(f"port={postgres.port}", f"port={port}"), 1, 1.0)
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
