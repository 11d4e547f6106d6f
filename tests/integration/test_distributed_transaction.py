"""The SDK's distributed transaction: queues of several sets and a real PostgreSQL in one transaction, whoever dies."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from lockstep.client import blocking
from lockstep.client.client import Client, connect
from lockstep.client.distributed_transaction import DistributedTransaction
from lockstep.client.outcome import OutcomeState
from lockstep.client.session import Session
from lockstep.client.transaction import Transaction
from lockstep.client.transaction_state import TransactionState
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from tests.integration import dying_client
from tests.integration.cluster import Deployment, deployed
from tests.integration.coordination import until
from tests.integration.coordinator_processes import Coordinators
from tests.integration.postgres_process import PostgresProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")
_tokens = count(1)


class Bank:
    """A queue in one set, a log in another, and a table: tokens move from the queue into the table."""

    def __init__(self, client: Client, session: Session, dsn: str, participant: str) -> None:
        self.client = client
        self.session = session
        self.dsn = dsn
        self.participant = participant

    async def connect(self) -> "psycopg.AsyncConnection[tuple[object, ...]]":
        return await psycopg.AsyncConnection.connect(self.dsn)

    async def rows(self) -> list[object]:
        async with await self.connect() as connection:
            found = await (await connection.execute("select id from moved_tokens order by id")).fetchall()
        return [row for (row,) in found]

    async def bodies(self, queue: str) -> list[bytes]:
        return [message.body async for message in self.session.browse(queue)]

    async def token(self) -> int:
        """A new one, in the queue."""
        number = next(_tokens)
        await self.session.publish("east.tokens", [b"%d" % number])
        return number


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Deployment]:
    async with deployed(tmp_path_factory.mktemp("cluster")) as deployment:
        yield deployment


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bank(
    deployment: Deployment, postgres: PostgresProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Bank]:
    coordinators = Coordinators(deployment)
    for _ in range(2):
        await coordinators.start(arguments=("--closed-ms", "5000"))
    participant = await _start_participant(tmp_path_factory.mktemp("rows"), deployment, postgres.dsn)
    address = participant.command[participant.command.index("--listen") + 1]
    async with (
        await connect(deployment.addresses) as client,
        client.session() as session,
    ):
        await session.declare_queue("east.tokens", set_name="east")
        await session.declare_queue("west.log", set_name="west")
        bank = Bank(client, session, postgres.dsn, f"grpc://{address}/rows")
        async with await bank.connect() as connection:
            await connection.execute("create table moved_tokens (id int primary key)")
        yield bank
    await participant.kill()
    await coordinators.stop()


async def _start_participant(directory: Path, deployment: Deployment, dsn: str) -> ChildProcess:
    assert deployment.cluster.etcd is not None
    (port,) = choose_ports(1)
    command = (
        *(sys.executable, "-m", "services.postgres_participant", "--name", "rows", "--dsn", dsn),
        *("--listen", f"127.0.0.1:{port}", "--etcd", deployment.cluster.etcd.endpoint, "--cluster", "local"),
    )
    child = ChildProcess("postgres participant", command, directory / "participant.log")
    await child.start()
    await wait_for_port(child, f"127.0.0.1:{port}")
    return child


async def test_a_message_a_row_and_a_message_in_another_set_commit_together(bank: Bank) -> None:
    number = await bank.token()
    connection = await bank.connect()
    async with await bank.session.consume("east.tokens", credit=1) as consumer:
        message = await consumer.next(30)
        assert message is not None
        async with bank.session.distributed_transaction() as tx:
            await tx.accept(message)
            await tx.enlist_postgres(connection, bank.participant)
            await connection.execute("insert into moved_tokens values (%s)", (number,))
            await tx.publish("west.log", [b"moved %d" % number])
            assert number not in await bank.rows()
            assert b"moved %d" % number not in await bank.bodies("west.log")
    assert tx.state is TransactionState.COMMITTED
    assert number in await bank.rows()
    assert b"moved %d" % number in await bank.bodies("west.log")
    assert await bank.bodies("east.tokens") == []
    await connection.close()


async def test_an_error_in_the_block_undoes_everything(bank: Bank) -> None:
    number = await bank.token()
    connection = await bank.connect()
    async with await bank.session.consume("east.tokens", credit=1) as consumer:
        message = await consumer.next(30)
        assert message is not None
        tx = bank.session.distributed_transaction()
        with contextlib.suppress(ZeroDivisionError):
            async with tx:
                await tx.accept(message)
                await tx.enlist_postgres(connection, bank.participant)
                await connection.execute("insert into moved_tokens values (%s)", (number,))
                await tx.publish("west.log", [b"moved %d" % number])
                raise ZeroDivisionError
        assert tx.state is TransactionState.ROLLED_BACK
        again = await consumer.next(30)
        assert again is not None
        assert (again.body, again.delivery_count) == (b"%d" % number, 1)
        await again.accept()
    assert number not in await bank.rows()
    assert b"moved %d" % number not in await bank.bodies("west.log")
    await connection.close()


async def test_a_row_that_cannot_be_prepared_undoes_the_messages(bank: Bank) -> None:
    connection = await bank.connect()
    await connection.execute(
        "create temporary table passing (id int)"
    )  # Such a transaction cannot be prepared.
    tx = bank.session.distributed_transaction()
    await tx.publish("west.log", [b"never"])
    await tx.enlist_postgres(connection, bank.participant)
    await connection.execute("create temporary table passing (id int)")
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        await tx.commit()
    assert tx.state is TransactionState.ROLLED_BACK
    assert b"never" not in await bank.bodies("west.log")
    await connection.close()


async def test_a_statement_that_failed_unnoticed_undoes_everything(bank: Bank) -> None:
    """PostgreSQL answers the PREPARE TRANSACTION with ROLLBACK, which is no error."""
    number = await bank.token()
    await bank.session.purge_queue("east.tokens")
    connections = [await bank.connect() for _ in range(2)]
    tx = bank.session.distributed_transaction()
    for connection in connections:
        await tx.enlist_postgres(connection, bank.participant)
    await connections[0].execute("insert into moved_tokens values (%s)", (number,))
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        await connections[1].execute("insert into no_such_table values (1)")
    with pytest.raises(Rejected, match="answered ROLLBACK to PREPARE TRANSACTION") as refused:
        await tx.commit()
    assert refused.value.code is ErrorCode.ROLLED_BACK
    assert tx.state is TransactionState.ROLLED_BACK

    async def prepared() -> list[tuple[object, ...]]:
        async with await bank.connect() as connection:
            return await (await connection.execute("select gid from pg_prepared_xacts")).fetchall()

    await until("the first is rolled back, too", prepared, lambda gids: not gids)
    assert number not in await bank.rows()
    for connection in connections:
        await connection.close()


async def test_many_transactions_of_one_session_run_at_once(bank: Bank) -> None:
    transactions = [bank.session.distributed_transaction() for _ in range(10)]
    for number, tx in enumerate(transactions):
        await tx.publish("west.log", [b"at once %d" % number])
        await tx.publish("east.tokens", [b"at once %d" % number])
    for tx in transactions:
        await tx.commit()
    expected = {b"at once %d" % number for number in range(10)}
    assert expected <= set(await bank.bodies("west.log"))
    assert expected <= set(await bank.bodies("east.tokens"))
    await bank.session.purge_queue("east.tokens")


async def commit_without_the_primary_of_east(
    deployment: Deployment, tx: DistributedTransaction | Transaction
) -> str:
    """Kills that primary while the transaction is open: its commit is refused. Returns the broker, which is not started again."""
    primary = await deployment.primary_of("east")
    await deployment[primary].broker.kill()
    with pytest.raises(Rejected) as refused:
        await tx.commit()
    assert refused.value.code is ErrorCode.ROLLED_BACK
    return primary


async def test_a_failover_in_an_open_transaction_undoes_all_of_it(deployment: Deployment, bank: Bank) -> None:
    tx = bank.session.distributed_transaction()
    await tx.publish("west.log", [b"before"])
    await tx.publish("east.tokens", [b"before"])
    primary = await commit_without_the_primary_of_east(deployment, tx)
    assert b"before" not in await bank.bodies("west.log")
    assert await bank.bodies("east.tokens") == []
    await deployment.cluster.start_broker(primary)
    await deployment.until_in_sync()

    async def prepared() -> int:
        managers = [await bank.session.resource_manager(name) for name in ("east", "west")]
        return sum([len(await manager.recover()) for manager in managers])

    await until("nothing is prepared", prepared, lambda number: number == 0)


async def test_a_program_without_an_event_loop_does_the_same(deployment: Deployment, bank: Bank) -> None:
    number = await bank.token()

    def program() -> None:
        with (
            blocking.connect(deployment.addresses) as client,
            client.session() as session,
            session.consume("east.tokens", credit=1) as consumer,
            psycopg.connect(bank.dsn) as connection,
        ):
            message = consumer.next(30)
            assert message is not None
            with session.distributed_transaction() as tx:
                tx.accept(message)
                tx.enlist_postgres(connection, bank.participant)
                connection.execute("insert into moved_tokens values (%s)", (number,))
                tx.publish("west.log", b"moved %d" % number)
            with session.distributed_transaction() as tx:
                tx.publish("west.log", b"never")
                tx.rollback()

    await asyncio.to_thread(program)
    assert number in await bank.rows()
    assert b"moved %d" % number in await bank.bodies("west.log")
    assert b"never" not in await bank.bodies("west.log")
    assert await bank.bodies("east.tokens") == []


async def test_a_client_that_is_killed_at_any_step_leaves_all_or_nothing(
    deployment: Deployment, bank: Bank
) -> None:
    for _ in dying_client.STEPS:
        await bank.token()
    arguments = [",".join(deployment.addresses), bank.dsn, bank.participant]
    clients = {
        step: await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", dying_client.__name__, step, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for step in dying_client.STEPS
    }
    said = {step: await client.stdout.readline() for step, client in clients.items() if client.stdout}
    await asyncio.gather(*(client.communicate(b"") for client in clients.values()))
    assert {client.returncode for client in clients.values()} == {-signal.SIGKILL}

    async def unfinished() -> int:
        managers = [await bank.session.resource_manager(name) for name in ("east", "west")]
        branches = sum([len(await manager.recover(with_open=True)) for manager in managers])
        async with await bank.connect() as connection:
            rows = await (await connection.execute("select 1 from pg_prepared_xacts")).fetchall()
        return branches + len(rows)

    await until("nothing is open or prepared", unfinished, lambda number: number == 0)
    left, rows, logged = await bank.bodies("east.tokens"), await bank.rows(), await bank.bodies("west.log")
    for step, token in said.items():
        is_moved = int(token) in rows
        assert (token.strip() not in left, b"moved " + token.strip() in logged) == (is_moved, is_moved), step
        assert not (is_moved and step in dying_client.UNDONE), step
    await bank.session.purge_queue("east.tokens")


# An ordinary transaction that comes to a second set


async def test_a_transaction_that_touches_a_second_set_is_distributed_by_itself(bank: Bank) -> None:
    number = await bank.token()
    async with await bank.session.consume("east.tokens", credit=1) as consumer:
        message = await consumer.next(30)
        assert message is not None
        async with bank.session.transaction() as tx:
            await tx.accept(message)
            await tx.publish("east.tokens", [b"first"])
            in_one_set = tx.id
            await tx.publish("west.log", [b"second of %d" % number])
            await tx.publish("east.tokens", [b"third"])
            assert in_one_set is not None and in_one_set.startswith("east/")
            assert tx.id is not None and len(tx.id) == 32
            assert b"second of %d" % number not in await bank.bodies("west.log")
    assert tx.state is TransactionState.COMMITTED
    assert b"second of %d" % number in await bank.bodies("west.log")
    assert await bank.bodies("east.tokens") == [b"first", b"third"]
    await bank.session.purge_queue("east.tokens")


async def test_a_transaction_over_two_sets_is_undone_by_its_caller_and_by_an_operation_that_fails(
    bank: Bank,
) -> None:
    logged = await bank.bodies("west.log")
    number = await bank.token()
    async with await bank.session.consume("east.tokens", credit=1) as consumer:
        message = await consumer.next(30)
        assert message is not None
        tx = bank.session.transaction()
        await tx.accept(message)
        await tx.publish("west.log", [b"undone"])
        await tx.rollback()
        again = await consumer.next(30)
        assert again is not None and again.body == b"%d" % number
        tx = bank.session.transaction()
        await tx.publish("west.log", [b"undone"])
        await tx.accept(again)
        confirmation = await tx.publish("west.log", [b"x" * (33 << 20)])
        with pytest.raises(Rejected):
            await confirmation
        with pytest.raises(Rejected) as refused:
            await tx.commit()
        assert refused.value.code is ErrorCode.ROLLED_BACK
        third = await consumer.next(30)
        assert third is not None and third.body == b"%d" % number
        await third.accept()
    assert await bank.bodies("west.log") == logged
    assert await bank.bodies("east.tokens") == []


async def test_an_outcome_is_asked_for_by_the_id_of_either_kind(bank: Bank) -> None:
    async with bank.session.transaction() as tx:
        await tx.publish("west.log", [b"asked for"])
        in_one_set = tx.id
        await tx.publish("east.tokens", [b"asked for"])
    assert tx.id is not None and in_one_set is not None
    assert (await bank.client.get_outcome(tx.id)).state is OutcomeState.COMMITTED
    assert (await bank.client.get_outcome(in_one_set)).state is OutcomeState.COMMITTED
    with pytest.raises(Rejected) as refused:
        await bank.client.get_outcome("z" * 32)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    await bank.session.purge_queue("east.tokens")


async def test_a_failover_undoes_a_transaction_that_has_become_distributed(
    deployment: Deployment, bank: Bank
) -> None:
    logged = await bank.bodies("west.log")
    tx = bank.session.transaction()
    await tx.publish("east.tokens", [b"before"])
    await tx.publish("west.log", [b"before"])
    primary = await commit_without_the_primary_of_east(deployment, tx)
    assert await bank.bodies("west.log") == logged
    assert await bank.bodies("east.tokens") == []
    await deployment.cluster.start_broker(primary)
    await deployment.until_in_sync()


async def test_nothing_done_is_nothing_to_commit(bank: Bank) -> None:
    async with bank.session.distributed_transaction() as tx:
        pass
    assert tx.state is TransactionState.COMMITTED
    assert tx.id == ""
