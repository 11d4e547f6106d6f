"""Priorities with real processes: by the client library and by plain gRPC calls, through a failover and a restart."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import pytest

from lockstep.client import ErrorCode, OutgoingMessage, Rejected
from lockstep.client.session import Session
from lockstep.wire.v1 import transactions_pb2 as pb
from lockstep.wire.v1.transactions_pb2_grpc import TransactionsStub
from tests.integration.cluster import Deployment, deployed
from tests.integration.test_transactions_by_call import refused

if TYPE_CHECKING:
    from lockstep.wire.v1.transactions_pb2_grpc import TransactionsAsyncStub

pytestmark = pytest.mark.asyncio(loop_scope="module")

SET = "urgent"


async def _took(session: Session, count: int) -> list[tuple[bytes, int]]:
    """(body, priority) of the next messages, which are accepted."""
    found: list[tuple[bytes, int]] = []
    consumer = await session.consume("q", credit=count)
    while len(found) < count:
        message = await consumer.next(60)
        assert message is not None, f"only {found} came"
        found.append((message.body, message.priority))
        await message.accept()
    await consumer.close()
    return found


async def test_who_publishes_says_what_comes_first(tmp_path: Path) -> None:
    members = ["B1", "B2"]
    async with (
        deployed(tmp_path, sets={SET: members}, brokers=2) as deployment,
        deployment.client() as client,
        client.session() as session,
    ):
        await session.declare_queue("q", set_name=SET)
        await session.publish("q", [b"plain 1", b"plain 2"])
        await session.publish("q", [b"low"], priority=0)
        await session.publish("q", [b"high 1", b"high 2"], priority=9)
        async with session.transaction() as transaction:
            mixed = [OutgoingMessage(b"", b"mixed %d" % level, priority=level) for level in (5, 8)]
            await transaction.publish("q", mixed)
            await transaction.publish("q", [b"high 3"], priority=9)
        with pytest.raises(Rejected) as raised:
            await session.publish("q", [b"none"], priority=10)
        assert raised.value.code is ErrorCode.INVALID_ARGUMENT

        async with grpc.aio.insecure_channel(deployment.addresses[0]) as channel:
            calls: TransactionsAsyncStub = TransactionsStub(channel)
            await _publish_by_calls(calls, [(b"called", 7), (b"called plain", None), (b"called low", 0)])
            code = await refused(_publish_by_calls(calls, [(b"none", 10)]))
            assert code is ErrorCode.INVALID_ARGUMENT

        browsed = [(message.body, message.priority) async for message in session.browse("q", limit=3)]
        assert browsed == [(b"plain 1", 4), (b"plain 2", 4), (b"low", 0)], "in the order of the queue"
        assert await _took(session, 2) == [(b"high 1", 9), (b"high 2", 9)]
        assert await deployment.primary_of(SET) == "B1"
        await deployment["B1"].broker.kill()
        assert await _took(session, 2) == [(b"high 3", 9), (b"mixed 8", 8)]

        await _restart_everything(deployment)
        async with grpc.aio.insecure_channel(deployment.addresses[0]) as channel:
            calls = TransactionsStub(channel)
            acquired = await calls.Acquire(pb.AcquireRequest(queue="q", messages_max=3, wait_ms=5000))
            told = [
                (each.body, each.priority if each.HasField("priority") else None)
                for each in acquired.messages
            ]
            assert told == [(b"called", 7), (b"mixed 5", 5), (b"plain 1", None)]
            await calls.EndSession(pb.EndSessionRequest(session_id=acquired.session_id))
        assert await _took(session, 7) == [
            (b"called", 7),
            (b"mixed 5", 5),
            (b"plain 1", 4),
            (b"plain 2", 4),
            (b"called plain", 4),
            (b"low", 0),
            (b"called low", 0),
        ]


async def _restart_everything(deployment: Deployment) -> None:
    cluster = deployment.cluster
    await asyncio.gather(
        *(local.broker.kill() for local in cluster.brokers.values() if local.broker.is_running),
        *(local.store.kill() for local in cluster.brokers.values()),
    )
    await asyncio.gather(*(cluster.start_store(name) for name in cluster.brokers))
    await asyncio.gather(*(cluster.start_broker(name) for name in cluster.brokers))
    await deployment.until_in_sync(2)


async def _publish_by_calls(calls: "TransactionsAsyncStub", messages: list[tuple[bytes, int | None]]) -> None:
    begun = await calls.Begin(pb.BeginRequest(resource_set=SET))
    transaction, secret = begun.transaction_id, begun.secret
    sent = [pb.PublishRequest.OutgoingMessage(body=body, priority=priority) for body, priority in messages]
    await calls.Publish(
        pb.PublishRequest(
            transaction_id=transaction, secret=secret, sequence=1, routing_key="q", messages=sent
        )
    )
    await calls.Commit(pb.CommitRequest(transaction_id=transaction, secret=secret, operations=1))
