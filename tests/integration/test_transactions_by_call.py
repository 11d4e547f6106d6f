"""Transactions by single calls on a plain gRPC channel: no session stream, nothing of the client library."""

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
import pytest_asyncio

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.status import CODE_KEY
from lockstep.wire.v1 import transactions_pb2 as pb
from lockstep.wire.v1.transactions_pb2_grpc import TransactionsStub
from tests.integration.cluster import SETS, Deployment, deployed

if TYPE_CHECKING:
    from lockstep.wire.v1.transactions_pb2_grpc import TransactionsAsyncStub

pytestmark = pytest.mark.asyncio(loop_scope="module")
Message = pb.PublishRequest.OutgoingMessage


@dataclass
class Caller:
    """A channel to a broker that is not the primary of the set that the tests use."""

    deployment: Deployment
    transactions: "TransactionsAsyncStub"
    secrets: dict[str, bytes] = field(default_factory=dict)
    """Of the transactions that it began."""

    async def publish(
        self, transaction: str, sequence: int, queue: str, *bodies: bytes
    ) -> pb.PublishResponse:
        request = pb.PublishRequest(
            transaction_id=transaction,
            sequence=sequence,
            routing_key=queue,
            messages=[Message(body=body) for body in bodies],
            secret=self.secrets.get(transaction, b""),
        )
        return await self.transactions.Publish(request)

    async def begin(self, session: str = "", timeout_ms: int = 0) -> str:
        request = pb.BeginRequest(resource_set="east", session_id=session, timeout_ms=timeout_ms)
        begun = await self.transactions.Begin(request)
        self.secrets[begun.transaction_id] = begun.secret
        return begun.transaction_id

    async def commit(self, transaction: str, operations: int) -> pb.CommitResponse:
        return await self.transactions.Commit(
            pb.CommitRequest(
                transaction_id=transaction,
                operations=operations,
                secret=self.secrets.get(transaction, b""),
            )
        )

    async def outcome(self, transaction: str) -> "pb.OutcomeState.ValueType":
        return (await self.transactions.GetOutcome(pb.GetOutcomeRequest(transaction_id=transaction))).state

    async def bodies(self, queue: str) -> list[bytes]:
        """What is in a queue, as the client library sees it."""
        async with self.deployment.client() as client, client.session() as session:
            return [message.body async for message in session.browse(queue)]

    async def declare(self, *queues: str) -> None:
        async with self.deployment.client() as client, client.session() as session:
            for queue in queues:
                await session.declare_queue(queue, set_name="east")


async def refused(call: "Awaitable[object]") -> ErrorCode:
    """The code of our error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    metadata = dict(caught.value.trailing_metadata() or ())
    return ErrorCode(int(metadata[CODE_KEY]))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Caller]:
    async with deployed(tmp_path_factory.mktemp("calls"), sets={"east": SETS["east"]}) as running:
        primary = await running.primary_of("east")
        other = next(name for name in running.cluster.brokers if name != primary)
        async with grpc.aio.insecure_channel(running[other].address) as channel:
            yield Caller(running, TransactionsStub(channel))


async def test_a_transaction_over_two_queues_commits_whole(caller: Caller) -> None:
    await caller.declare("both-1", "both-2")
    transaction = await caller.begin()
    assert transaction.startswith("east/")
    assert (await caller.publish(transaction, 1, "both-1", b"a", b"b")).enqueues == 2
    assert (await caller.publish(transaction, 2, "both-2", b"c")).enqueues == 1
    assert await caller.bodies("both-1") == []
    assert await caller.outcome(transaction) == pb.OUTCOME_STATE_OPEN
    committed = await caller.commit(transaction, 2)
    assert committed.resource_set == "east" and committed.epoch and committed.commit_index
    assert await caller.bodies("both-1") == [b"a", b"b"]
    assert await caller.bodies("both-2") == [b"c"]
    assert await caller.outcome(transaction) == pb.OUTCOME_STATE_COMMITTED


async def test_every_call_of_a_transaction_may_be_repeated(caller: Caller) -> None:
    await caller.declare("again")
    transaction = await caller.begin()
    first = await caller.publish(transaction, 1, "again", b"a")
    assert (await caller.publish(transaction, 1, "again", b"a")).enqueues == first.enqueues
    await caller.publish(transaction, 2, "again", b"b")
    await caller.publish(transaction, 1, "again", b"a")
    await caller.commit(transaction, 2)
    await caller.commit(transaction, 2)
    assert await caller.bodies("again") == [b"a", b"b"]
    rollback = pb.RollbackRequest(transaction_id=transaction, secret=caller.secrets[transaction])
    assert await refused(caller.transactions.Rollback(rollback)) is ErrorCode.TRANSACTION_FINISHED
    assert await refused(caller.publish(transaction, 3, "again", b"c")) is ErrorCode.TRANSACTION_FINISHED


async def test_many_bytes_of_one_call_come_as_they_were(caller: Caller) -> None:
    """Over a broker that sends them on; no step of the two is long by them, as of all processes here."""
    bodies = [bytes([number]) * (11 * 1024 * 1024) for number in range(3)]
    await caller.declare("much")
    transaction = await caller.begin()
    for _ in range(2):
        assert (await caller.publish(transaction, 1, "much", *bodies, b"small")).enqueues == 4
    await caller.commit(transaction, 1)
    assert await caller.bodies("much") == [*bodies, b"small"]


async def test_what_is_rolled_back_leaves_nothing_and_stays_so(caller: Caller) -> None:
    await caller.declare("nothing")
    transaction = await caller.begin()
    await caller.publish(transaction, 1, "nothing", b"never")
    rollback = pb.RollbackRequest(transaction_id=transaction, secret=caller.secrets[transaction])
    await caller.transactions.Rollback(rollback)
    await caller.transactions.Rollback(rollback)
    assert await refused(caller.commit(transaction, 1)) is ErrorCode.ROLLED_BACK
    assert await caller.outcome(transaction) == pb.OUTCOME_STATE_ROLLED_BACK
    assert await caller.bodies("nothing") == []


async def test_acquired_messages_are_accepted_with_the_transaction(caller: Caller) -> None:
    await caller.declare("jobs", "results")
    filling = await caller.begin()
    await caller.publish(filling, 1, "jobs", b"1", b"2", b"3")
    await caller.commit(filling, 1)

    acquired = await caller.transactions.Acquire(pb.AcquireRequest(queue="jobs", messages_max=2))
    assert [message.body for message in acquired.messages] == [b"1", b"2"]
    transaction = await caller.begin(acquired.session_id)
    accept = pb.AcceptRequest(
        transaction_id=transaction,
        secret=caller.secrets[transaction],
        sequence=1,
        queue="jobs",
        delivery_epoch=acquired.epoch,
        positions=[message.position for message in acquired.messages],
    )
    assert (await caller.transactions.Accept(accept)).accepted == 2
    assert (await caller.transactions.Accept(accept)).accepted == 2
    await caller.publish(transaction, 2, "results", b"1+2")
    await caller.commit(transaction, 2)
    assert await caller.bodies("jobs") == [b"3"]
    assert await caller.bodies("results") == [b"1+2"]

    rest = await caller.transactions.Acquire(
        pb.AcquireRequest(queue="jobs", messages_max=9, session_id=acquired.session_id)
    )
    assert [message.body for message in rest.messages] == [b"3"]
    release = pb.SettleRequest(
        resource_set="east",
        session_id=acquired.session_id,
        queue="jobs",
        delivery_epoch=rest.epoch,
        positions=[rest.messages[0].position],
        disposition=pb.SettleRequest.DISPOSITION_FAIL,
    )
    assert (await caller.transactions.Settle(release)).settled == 1
    assert await refused(caller.transactions.Settle(release)) is ErrorCode.STALE_DELIVERY
    again = await caller.transactions.Acquire(pb.AcquireRequest(queue="jobs", wait_ms=5000))
    assert [message.delivery_count for message in again.messages] == [1]
    # What a session holds is free again when it ends.
    await caller.transactions.EndSession(
        pb.EndSessionRequest(resource_set="east", session_id=again.session_id)
    )
    last = await caller.transactions.Acquire(pb.AcquireRequest(queue="jobs", wait_ms=5000))
    assert [message.body for message in last.messages] == [b"3"]


async def test_an_empty_queue_is_waited_for_as_long_as_the_caller_says(caller: Caller) -> None:
    await caller.declare("late")
    nothing = await caller.transactions.Acquire(pb.AcquireRequest(queue="late"))
    assert not nothing.messages and nothing.epoch and nothing.session_id
    waiting = caller.transactions.Acquire(
        pb.AcquireRequest(queue="late", wait_ms=5000, session_id=nothing.session_id)
    )
    transaction = await caller.begin()
    await caller.publish(transaction, 1, "late", b"x")
    await caller.commit(transaction, 1)
    assert [message.body for message in (await waiting).messages] == [b"x"]


async def test_operations_and_commits_with_gaps_are_refused(caller: Caller) -> None:
    await caller.declare("gaps")
    transaction = await caller.begin()
    assert await refused(caller.publish(transaction, 2, "gaps", b"b")) is ErrorCode.SEQUENCE_GAP
    assert await refused(caller.publish(transaction, 0, "gaps", b"b")) is ErrorCode.INVALID_ARGUMENT
    await caller.publish(transaction, 1, "gaps", b"a")
    assert await refused(caller.publish(transaction, 1, "gaps", b"other")) is ErrorCode.INVALID_ARGUMENT
    assert await refused(caller.commit(transaction, 2)) is ErrorCode.ROLLED_BACK
    assert await caller.outcome(transaction) == pb.OUTCOME_STATE_ROLLED_BACK
    assert await caller.bodies("gaps") == []


async def test_a_refused_operation_leaves_only_the_rollback(caller: Caller) -> None:
    await caller.declare("there")
    transaction = await caller.begin()
    assert await refused(caller.publish(transaction, 1, "not-there", b"a")) is ErrorCode.NOT_FOUND
    assert await refused(caller.publish(transaction, 1, "not-there", b"a")) is ErrorCode.NOT_FOUND
    assert await refused(caller.publish(transaction, 2, "there", b"b")) is ErrorCode.ROLLBACK_ONLY
    await caller.transactions.Rollback(
        pb.RollbackRequest(transaction_id=transaction, secret=caller.secrets[transaction])
    )
    assert await caller.bodies("there") == []


async def test_transactions_that_nobody_knows_are_refused(caller: Caller) -> None:
    assert await refused(caller.commit("east/999999999.1", 0)) is ErrorCode.UNKNOWN_TRANSACTION
    assert await refused(caller.commit("nowhere/1.1", 0)) is ErrorCode.UNKNOWN_SET
    transaction = await caller.begin()
    index, _, epoch = transaction.rpartition(".")
    other_epoch = f"{index}.{int(epoch) + 1}"
    refusal = await refused(caller.publish(other_epoch, 1, "q", b""))
    assert refusal in {ErrorCode.UNKNOWN_TRANSACTION, ErrorCode.ROLLED_BACK}
    assert await caller.outcome(transaction) == pb.OUTCOME_STATE_OPEN
    await caller.transactions.Rollback(
        pb.RollbackRequest(transaction_id=transaction, secret=caller.secrets[transaction])
    )
    own = await caller.begin()
    stranger = pb.AcceptRequest(
        transaction_id=own,
        secret=caller.secrets[own],
        sequence=1,
        queue="jobs",
        delivery_epoch=1,
        positions=[1],
    )
    assert await refused(caller.transactions.Accept(stranger)) is ErrorCode.STALE_DELIVERY


async def test_who_guesses_the_name_of_a_transaction_can_only_ask_for_its_outcome(caller: Caller) -> None:
    """Names are counted: its index is near the end of the log, which anybody may know."""
    await caller.declare("half")
    transaction = await caller.begin()
    secret = caller.secrets[transaction]
    await caller.publish(transaction, 1, "half", b"half")
    stub = caller.transactions
    for guess in (b"", bytes(16), secret[:-1], secret + b"x"):
        message = Message(body=b"foreign")
        attempts: list[Awaitable[object]] = [
            stub.Publish(
                pb.PublishRequest(
                    transaction_id=transaction,
                    sequence=2,
                    routing_key="half",
                    messages=[message],
                    secret=guess,
                )
            ),
            stub.Accept(
                pb.AcceptRequest(
                    transaction_id=transaction, sequence=2, queue="half", positions=[1], secret=guess
                )
            ),
            stub.Commit(pb.CommitRequest(transaction_id=transaction, operations=1, secret=guess)),
            stub.Rollback(pb.RollbackRequest(transaction_id=transaction, secret=guess)),
            stub.GetOutcome(pb.GetOutcomeRequest(transaction_id=transaction, fence=True, secret=guess)),
        ]
        for attempt in attempts:
            assert await refused(attempt) is ErrorCode.UNAUTHORIZED
    assert await caller.outcome(transaction) == pb.OUTCOME_STATE_OPEN
    await caller.publish(transaction, 2, "half", b"whole")
    await caller.commit(transaction, 2)
    assert await caller.bodies("half") == [b"half", b"whole"]
    fenced = await caller.begin()
    request = pb.GetOutcomeRequest(transaction_id=fenced, fence=True, secret=caller.secrets[fenced])
    assert (await stub.GetOutcome(request)).state == pb.OUTCOME_STATE_ROLLED_BACK


async def test_a_transaction_of_a_session_stream_is_fenced_by_its_client_alone(caller: Caller) -> None:
    await caller.declare("streamed too")
    async with caller.deployment.client() as client, client.session() as session:
        transaction = session.transaction()
        await transaction.publish("streamed too", b"mine")
        name = str(transaction.id)
        stranger = pb.GetOutcomeRequest(transaction_id=name, fence=True, session_ids=["guessed", ""])
        assert await refused(caller.transactions.GetOutcome(stranger)) is ErrorCode.UNAUTHORIZED
        async with caller.deployment.client() as other:
            with pytest.raises(Rejected) as raised:
                await other.get_outcome(name, fence=True)
        assert raised.value.code is ErrorCode.UNAUTHORIZED
        assert (await client.get_outcome(name, fence=True)).state.name == "ROLLED_BACK"


async def test_a_transaction_of_a_session_stream_is_not_touched(caller: Caller) -> None:
    await caller.declare("streamed")
    async with caller.deployment.client() as client, client.session() as session:
        transaction = session.transaction()
        await transaction.publish("streamed", b"mine")
        name = str(transaction.id)
        assert await refused(caller.commit(name, 1)) is ErrorCode.LOCKED
        assert await refused(caller.publish(name, 2, "streamed", b"yours")) is ErrorCode.LOCKED
        await transaction.commit()
    assert (await caller.commit(name, 1)).epoch


async def test_a_forgotten_transaction_ends_by_itself(caller: Caller) -> None:
    await caller.declare("forgotten")
    transaction = await caller.begin(timeout_ms=300)
    await caller.publish(transaction, 1, "forgotten", b"x")
    fenced = pb.GetOutcomeRequest(transaction_id=transaction, fence=False)
    state = pb.OUTCOME_STATE_OPEN
    while state == pb.OUTCOME_STATE_OPEN:
        state = (await caller.transactions.GetOutcome(fenced)).state
    assert state == pb.OUTCOME_STATE_ROLLED_BACK
    assert await refused(caller.commit(transaction, 1)) is ErrorCode.ROLLED_BACK
    await caller.transactions.Rollback(
        pb.RollbackRequest(transaction_id=transaction, secret=caller.secrets[transaction])
    )


@pytest.mark.parametrize("method", ["Begin", "Publish", "Acquire", "Accept", "Settle", "Commit", "Rollback"])
async def test_garbage_is_refused_with_an_error_of_ours(caller: Caller, method: str) -> None:
    address = caller.deployment.addresses[0]
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(f"/lockstep.wire.v1.Transactions/{method}")
        for data in (b"\xff\xff\xff", b"garbage", b"\x0a\x03a/b"):
            code = await refused(call(data))
            assert code in {ErrorCode.INVALID_ARGUMENT, ErrorCode.UNKNOWN_SET, ErrorCode.NOT_FOUND}, data


async def test_a_failover_rolls_open_transactions_back_and_callers_are_told(caller: Caller) -> None:
    """The last test here: it kills the primary."""
    await caller.declare("survivor")
    kept, lost = await caller.begin(), await caller.begin()
    await caller.publish(kept, 1, "survivor", b"kept")
    await caller.publish(lost, 1, "survivor", b"lost")
    await caller.commit(kept, 1)
    primary = await caller.deployment.primary_of("east")
    await caller.deployment[primary].broker.kill()
    await caller.deployment.until(
        "another leads", lambda status: all(one.primary != primary and one.is_led for one in status.view.sets)
    )
    await caller.deployment.primary_of("east")
    assert await refused(caller.commit(lost, 1)) is ErrorCode.ROLLED_BACK
    assert (await caller.commit(kept, 1)).epoch
    assert await caller.bodies("survivor") == [b"kept"]
    again = await caller.begin()
    await caller.publish(again, 1, "survivor", b"again")
    await caller.commit(again, 1)
    assert await caller.bodies("survivor") == [b"kept", b"again"]
