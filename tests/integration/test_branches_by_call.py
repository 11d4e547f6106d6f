"""The verbs of XA by single calls on a plain gRPC channel: as a transaction manager in another language would drive them."""

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import grpc.aio
import pytest
import pytest_asyncio

from lockstep.core.errors import ErrorCode
from lockstep.wire.v1 import coordinator_pb2
from lockstep.wire.v1 import resource_manager_pb2 as pb
from lockstep.wire.v1 import transactions_pb2 as tx
from lockstep.wire.v1.resource_manager_pb2_grpc import ResourceManagerStub
from lockstep.wire.v1.transactions_pb2_grpc import TransactionsStub
from tests.integration.cluster import SETS, Deployment, deployed
from tests.integration.test_transactions_by_call import refused

if TYPE_CHECKING:
    from lockstep.wire.v1.resource_manager_pb2_grpc import ResourceManagerAsyncStub
    from lockstep.wire.v1.transactions_pb2_grpc import TransactionsAsyncStub

pytestmark = pytest.mark.asyncio(loop_scope="module")
_numbers = count(1)
State = pb.RecoverBranchesResponse.State


@dataclass
class Manager:
    """Channels to a broker that is not the primary of the set."""

    deployment: Deployment
    branches: "ResourceManagerAsyncStub"
    transactions: "TransactionsAsyncStub"
    secrets: dict[str | bytes, bytes] = field(default_factory=dict)
    """Of the transactions of its branches, by their ids, and by those of the branches."""

    async def start(self, session: str = "", timeout_ms: int = 0) -> tuple[coordinator_pb2.BranchXid, str]:
        """A new branch and its transaction's id."""
        xid = coordinator_pb2.BranchXid(format_id=7, global_id=b"calls", branch_id=b"%d" % next(_numbers))
        request = pb.StartBranchRequest(xid=xid, session_id=session, timeout_ms=timeout_ms)
        started = await self.branches.Start(request)
        self.secrets[started.transaction_id] = self.secrets[xid.branch_id] = started.secret
        return xid, started.transaction_id

    async def publish(self, transaction: str, sequence: int, body: bytes) -> None:
        message = tx.PublishRequest.OutgoingMessage(body=body)
        await self.transactions.Publish(
            tx.PublishRequest(
                transaction_id=transaction,
                sequence=sequence,
                routing_key="work",
                messages=[message],
                secret=self.secrets[transaction],
            )
        )

    async def end(self, xid: coordinator_pb2.BranchXid, operations: int) -> "pb.XaStatus.ValueType":
        secret = self.secrets[xid.branch_id]
        request = pb.EndBranchRequest(xid=xid, operations=operations, secret=secret)
        return (await self.branches.End(request)).status

    async def prepared(self, body: bytes) -> coordinator_pb2.BranchXid:
        xid, transaction = await self.start()
        await self.publish(transaction, 1, body)
        assert await self.end(xid, 1) == pb.XA_STATUS_OK
        assert (await self.branches.Prepare(pb.BranchRequest(xid=xid))).status == pb.XA_STATUS_OK
        return xid

    async def recovered(self, *, with_open: bool = False) -> "dict[bytes, State.ValueType]":
        answer = await self.branches.Recover(pb.RecoverBranchesRequest(with_open=with_open))
        return {branch.xid.branch_id: branch.state for branch in answer.branches}

    async def bodies(self) -> list[bytes]:
        async with self.deployment.client() as client, client.session() as session:
            return [message.body async for message in session.browse("work")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def manager(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Manager]:
    async with deployed(tmp_path_factory.mktemp("calls"), sets={"east": SETS["east"]}) as running:
        primary = await running.primary_of("east")
        other = next(name for name in running.cluster.brokers if name != primary)
        async with running.client() as client, client.session() as session:
            await session.declare_queue("work", set_name="east")
        async with grpc.aio.insecure_channel(running[other].address) as channel:
            yield Manager(running, ResourceManagerStub(channel), TransactionsStub(channel))


async def test_a_branch_is_started_worked_in_ended_prepared_and_committed(manager: Manager) -> None:
    xid, transaction = await manager.start()
    await manager.publish(transaction, 1, b"one")
    await manager.publish(transaction, 2, b"two")
    assert await manager.end(xid, 2) == pb.XA_STATUS_OK
    assert await manager.end(xid, 2) == pb.XA_STATUS_OK, "repeated"
    for _ in range(2):
        assert (await manager.branches.Prepare(pb.BranchRequest(xid=xid))).status == pb.XA_STATUS_OK
    assert (await manager.recovered())[xid.branch_id] == State.STATE_PREPARED
    assert await manager.bodies() == []
    assert (await manager.branches.Commit(pb.CommitBranchRequest(xid=xid))).status == pb.XA_STATUS_OK
    assert await manager.bodies() == [b"one", b"two"]
    assert await refused(manager.branches.Commit(pb.CommitBranchRequest(xid=xid))) is ErrorCode.NOT_FOUND
    outcome = await manager.transactions.GetOutcome(tx.GetOutcomeRequest(transaction_id=transaction))
    assert outcome.state == tx.OUTCOME_STATE_COMMITTED


async def test_what_was_acquired_is_accepted_in_a_branch_and_given_back_by_its_rollback(
    manager: Manager,
) -> None:
    acquired = await manager.transactions.Acquire(tx.AcquireRequest(queue="work", messages_max=2))
    positions = [message.position for message in acquired.messages]
    xid, transaction = await manager.start(acquired.session_id)
    await manager.transactions.Accept(
        tx.AcceptRequest(
            transaction_id=transaction,
            secret=manager.secrets[transaction],
            sequence=1,
            queue="work",
            delivery_epoch=acquired.epoch,
            positions=positions,
        )
    )
    assert await manager.end(xid, 1) == pb.XA_STATUS_OK
    assert (await manager.branches.Prepare(pb.BranchRequest(xid=xid))).status == pb.XA_STATUS_OK
    await manager.transactions.EndSession(
        tx.EndSessionRequest(resource_set="east", session_id=acquired.session_id)
    )
    held = await manager.transactions.Acquire(tx.AcquireRequest(queue="work"))
    assert not held.messages, "a prepared branch holds them without its session"
    assert (await manager.branches.Rollback(pb.BranchRequest(xid=xid))).status == pb.XA_STATUS_OK
    assert await manager.bodies() == [b"one", b"two"]


async def test_one_phase_an_operation_that_got_lost_and_a_time_out(manager: Manager) -> None:
    before = await manager.bodies()
    xid, transaction = await manager.start()
    await manager.publish(transaction, 1, b"three")
    assert await manager.end(xid, 1) == pb.XA_STATUS_OK
    committed = await manager.branches.Commit(pb.CommitBranchRequest(xid=xid, is_one_phase=True))
    assert committed.status == pb.XA_STATUS_OK

    xid, transaction = await manager.start()
    await manager.publish(transaction, 1, b"four")
    assert await manager.end(xid, 2) == pb.XA_STATUS_RBROLLBACK
    assert (await manager.branches.Prepare(pb.BranchRequest(xid=xid))).status == pb.XA_STATUS_RBROLLBACK
    await manager.branches.Rollback(pb.BranchRequest(xid=xid))

    xid, _ = await manager.start(timeout_ms=30_000)
    assert (await manager.branches.GetTimeout(pb.BranchRequest(xid=xid))).timeout_ms == 30_000
    assert (await manager.recovered(with_open=True))[xid.branch_id] == State.STATE_ACTIVE
    await manager.branches.SetTimeout(pb.SetBranchTimeoutRequest(xid=xid, timeout_ms=100))
    while xid.branch_id in await manager.recovered(with_open=True):
        pass
    assert (await manager.branches.Prepare(pb.BranchRequest(xid=xid))).status == pb.XA_STATUS_RBTIMEOUT
    assert await manager.bodies() == [*before, b"three"]


async def test_a_prepared_branch_survives_a_failover_and_any_broker_is_asked(manager: Manager) -> None:
    xid = await manager.prepared(b"survives")
    primary = await manager.deployment.primary_of("east")
    others = [name for name in manager.deployment.cluster.brokers if name != primary]
    await manager.deployment[primary].broker.kill()
    await manager.deployment.primary_of("east")
    for name in others:
        async with grpc.aio.insecure_channel(manager.deployment[name].address) as channel:
            stub = ResourceManagerStub(channel)
            listed = await stub.Recover(pb.RecoverBranchesRequest(resource_set="east", limit=1))
            assert [branch.xid for branch in listed.branches] == [xid]
    async with grpc.aio.insecure_channel(manager.deployment[others[0]].address) as channel:
        await ResourceManagerStub(channel).Commit(pb.CommitBranchRequest(xid=xid))
    await manager.deployment.cluster.start_broker(primary)
    await manager.deployment.until_in_sync()
    assert b"survives" in await manager.bodies()


async def test_only_its_caller_says_that_all_of_a_branch_has_come(manager: Manager) -> None:
    """Recover tells everybody its xid, and with fewer operations half of it could be committed."""
    xid, transaction = await manager.start()
    await manager.publish(transaction, 1, b"half")
    assert (await manager.recovered(with_open=True))[xid.branch_id] == State.STATE_ACTIVE
    for guess in (b"", bytes(16), manager.secrets[transaction][:-1]):
        request = pb.EndBranchRequest(xid=xid, operations=1, secret=guess)
        assert await refused(manager.branches.End(request)) is ErrorCode.UNAUTHORIZED
    commit = pb.CommitBranchRequest(xid=xid, is_one_phase=True)
    assert await refused(manager.branches.Commit(commit)) is ErrorCode.ILLEGAL_STATE, "it is worked in"
    await manager.publish(transaction, 2, b"whole")
    assert await manager.end(xid, 2) == pb.XA_STATUS_OK
    assert (await manager.branches.Commit(commit)).status == pb.XA_STATUS_OK
    assert (await manager.bodies())[-2:] == [b"half", b"whole"]
    lost, _ = await manager.start()
    failed = pb.EndBranchRequest(xid=lost, is_failed=True)
    assert (await manager.branches.End(failed)).status == pb.XA_STATUS_RBROLLBACK, "its answer may be lost"
    assert (await manager.branches.Rollback(pb.BranchRequest(xid=lost))).status == pb.XA_STATUS_OK


async def test_bad_calls_are_typed_errors(manager: Manager) -> None:
    xid, transaction = await manager.start()
    unknown = coordinator_pb2.BranchXid(format_id=7, global_id=b"nobody")
    long = coordinator_pb2.BranchXid(format_id=7, global_id=b"x" * 65)
    stub = manager.branches
    cases: list[tuple[Awaitable[object], ErrorCode]] = [
        (stub.Start(pb.StartBranchRequest(xid=xid)), ErrorCode.NOT_ALLOWED),
        (stub.Start(pb.StartBranchRequest(xid=long)), ErrorCode.INVALID_ARGUMENT),
        (stub.Start(pb.StartBranchRequest(xid=unknown, timeout_ms=1 << 40)), ErrorCode.INVALID_ARGUMENT),
        (stub.Start(pb.StartBranchRequest(resource_set="nowhere", xid=unknown)), ErrorCode.UNKNOWN_SET),
        (stub.Prepare(pb.BranchRequest(xid=xid)), ErrorCode.ILLEGAL_STATE),
        (stub.Prepare(pb.BranchRequest(xid=unknown)), ErrorCode.NOT_FOUND),
        (stub.Forget(pb.BranchRequest(xid=xid)), ErrorCode.ILLEGAL_STATE),
        (stub.GetTimeout(pb.BranchRequest(xid=unknown)), ErrorCode.NOT_FOUND),
        (
            stub.SetTimeout(pb.SetBranchTimeoutRequest(xid=xid, timeout_ms=1 << 45)),
            ErrorCode.INVALID_ARGUMENT,
        ),
        (stub.End(pb.EndBranchRequest(xid=unknown)), ErrorCode.ILLEGAL_STATE),
        (
            manager.transactions.Commit(
                tx.CommitRequest(transaction_id=transaction, secret=manager.secrets[transaction])
            ),
            ErrorCode.ILLEGAL_STATE,
        ),
    ]
    for number, (call, code) in enumerate(cases):
        assert (number, await refused(call)) == (number, code)
    assert await manager.end(xid, 0) == pb.XA_STATUS_OK
    again = pb.EndBranchRequest(xid=xid, operations=3, secret=manager.secrets[transaction])
    assert await refused(stub.End(again)) is ErrorCode.TRANSACTION_FINISHED
    assert (await stub.Rollback(pb.BranchRequest(xid=xid))).status == pb.XA_STATUS_OK
