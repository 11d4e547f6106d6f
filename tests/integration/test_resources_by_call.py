"""Queues, exchanges and bindings by single calls on a plain gRPC channel: with transactions, all that a caller needs."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc.aio
import pytest
import pytest_asyncio

from lockstep.core.deaths import DeathReason
from lockstep.core.errors import ErrorCode
from lockstep.wire.v1 import resources_pb2 as pb
from lockstep.wire.v1 import transactions_pb2 as tx
from lockstep.wire.v1.resources_pb2_grpc import ResourcesStub
from lockstep.wire.v1.transactions_pb2_grpc import TransactionsStub
from tests.integration.cluster import SETS, deployed
from tests.integration.test_transactions_by_call import refused

if TYPE_CHECKING:
    from lockstep.wire.v1.resources_pb2_grpc import ResourcesAsyncStub
    from lockstep.wire.v1.transactions_pb2_grpc import TransactionsAsyncStub

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Caller:
    """A channel to a broker that is not the primary of the only set."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.resources: ResourcesAsyncStub = ResourcesStub(channel)
        self.transactions: TransactionsAsyncStub = TransactionsStub(channel)

    async def declare(self, name: str) -> pb.DeclareQueueResponse:
        return await self.resources.DeclareQueue(pb.DeclareQueueRequest(name=name))

    async def publish(self, exchange: str, key: str, body: bytes) -> None:
        begun = await self.transactions.Begin(tx.BeginRequest())
        message = tx.PublishRequest.OutgoingMessage(body=body)
        transaction, secret = begun.transaction_id, begun.secret
        await self.transactions.Publish(
            tx.PublishRequest(
                transaction_id=transaction,
                secret=secret,
                sequence=1,
                exchange=exchange,
                routing_key=key,
                messages=[message],
            )
        )
        await self.transactions.Commit(
            tx.CommitRequest(transaction_id=transaction, secret=secret, operations=1)
        )

    async def bodies(self, queue: str) -> list[bytes]:
        """Takes all that is there, and gives it back."""
        acquired = await self.transactions.Acquire(tx.AcquireRequest(queue=queue, messages_max=100))
        await self.transactions.EndSession(tx.EndSessionRequest(session_id=acquired.session_id))
        return [message.body for message in acquired.messages]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Caller]:
    async with deployed(tmp_path_factory.mktemp("calls"), sets={"east": SETS["east"]}) as running:
        primary = await running.primary_of("east")
        other = next(name for name in running.cluster.brokers if name != primary)
        async with grpc.aio.insecure_channel(running[other].address) as channel:
            yield Caller(channel)


async def test_a_queue_is_declared_used_and_deleted(caller: Caller) -> None:
    declared = await caller.declare("letters")
    assert declared.resource_set == "east" and declared.epoch and declared.commit_index
    assert (await caller.declare("letters")).queue == declared.queue
    other = pb.DeclareQueueRequest(name="letters", length_max=5)
    assert await refused(caller.resources.DeclareQueue(other)) is ErrorCode.ALREADY_EXISTS
    await caller.publish("", "letters", b"hello")
    assert await caller.bodies("letters") == [b"hello"]
    is_full = pb.DeleteQueueRequest(name="letters", if_empty=True)
    assert await refused(caller.resources.DeleteQueue(is_full)) is ErrorCode.IN_USE
    deleted = await caller.resources.DeleteQueue(pb.DeleteQueueRequest(name="letters"))
    assert deleted.messages == 1 and deleted.commit_index > declared.commit_index
    again = caller.resources.DeleteQueue(pb.DeleteQueueRequest(name="letters", resource_set="east"))
    assert await refused(again) is ErrorCode.NOT_FOUND


async def test_options_of_a_queue_are_kept(caller: Caller) -> None:
    await caller.declare("dead")
    await caller.resources.DeclareQueue(
        pb.DeclareQueueRequest(
            name="short", length_max=1, is_evicting=True, dead_letter_exchange="", dead_letter_key="dead"
        )
    )
    for body in (b"one", b"two"):
        await caller.publish("", "short", body)
    assert await caller.bodies("short") == [b"two"]


async def test_a_dead_letter_key_alone_names_a_queue_and_its_dead_letters_say_why(caller: Caller) -> None:
    await caller.declare("morgue")
    await caller.resources.DeclareQueue(pb.DeclareQueueRequest(name="ward", dead_letter_key="morgue"))
    await caller.publish("", "ward", b"rejected")
    acquired = await caller.transactions.Acquire(tx.AcquireRequest(queue="ward"))
    settled = await caller.transactions.Settle(
        tx.SettleRequest(
            resource_set="east",
            session_id=acquired.session_id,
            queue="ward",
            delivery_epoch=acquired.epoch,
            positions=[message.position for message in acquired.messages],
            disposition=tx.SettleRequest.DISPOSITION_REJECT,
        )
    )
    assert settled.settled == 1
    found = await caller.transactions.Acquire(tx.AcquireRequest(queue="morgue"))
    (message,) = found.messages
    assert message.body == b"rejected"
    (death,) = message.deaths
    assert (death.queue, death.reason, death.count) == ("ward", DeathReason.REJECTED, 1)
    assert death.first_ms == death.last_ms > 0
    await caller.transactions.EndSession(tx.EndSessionRequest(session_id=found.session_id))


async def test_an_exchange_is_declared_bound_and_deleted(caller: Caller) -> None:
    for queue in ("paris", "all"):
        await caller.declare(queue)
    exchange = pb.DeclareExchangeRequest(name="prices", kind="topic")
    first = await caller.resources.DeclareExchange(exchange)
    assert (await caller.resources.DeclareExchange(exchange)).exchange == first.exchange
    other = pb.DeclareExchangeRequest(name="prices", kind="fanout")
    assert await refused(caller.resources.DeclareExchange(other)) is ErrorCode.ALREADY_EXISTS
    for queue, key in (("paris", "eu.paris"), ("all", "#")):
        for _ in range(2):
            bound = await caller.resources.Bind(pb.BindRequest(exchange="prices", queue=queue, key=key))
            assert bound.resource_set == "east"
    await caller.publish("prices", "eu.paris", b"1")
    await caller.resources.Unbind(pb.UnbindRequest(exchange="prices", queue="paris", key="eu.paris"))
    await caller.publish("prices", "eu.paris", b"2")
    assert await caller.bodies("paris") == [b"1"]
    assert await caller.bodies("all") == [b"1", b"2"]
    is_used = pb.DeleteExchangeRequest(name="prices", if_unused=True)
    assert await refused(caller.resources.DeleteExchange(is_used)) is ErrorCode.IN_USE
    await caller.resources.DeleteExchange(pb.DeleteExchangeRequest(name="prices"))
    gone = caller.resources.Bind(pb.BindRequest(exchange="prices", queue="all", key="#"))
    assert await refused(gone) is ErrorCode.NOT_FOUND
