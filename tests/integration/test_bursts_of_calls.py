"""Thousands of single calls at once, by the stock client of gRPC on one connection: all are answered, whatever is given up leaves
the next ones alone, and no broker loses its lease meanwhile."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
import pytest_asyncio

from lockstep.wire.v1 import cluster_pb2, transactions_pb2
from lockstep.wire.v1.cluster_pb2_grpc import ClusterStub
from lockstep.wire.v1.transactions_pb2_grpc import TransactionsStub
from tests.integration.cluster import SETS, Deployment, deployed

if TYPE_CHECKING:
    from lockstep.wire.v1.cluster_pb2_grpc import ClusterAsyncStub
    from lockstep.wire.v1.transactions_pb2_grpc import TransactionsAsyncStub

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

CALLS = 20_000
CALL_SECONDS = 120.0
SET, QUEUE = "east", "here"
ABANDONED = 1_500
"""By a deadline, and as many again because their caller cancels them."""
ABANDONED_SECONDS = 1.0
BEGIN_SECONDS = 3.0
"""A call behind them: half a second on a machine that has nothing else to do."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path_factory.mktemp("bursts"), sets={SET: SETS[SET]}) as running:
        async with running.client() as client, client.session() as session:
            await session.declare_queue(QUEUE)
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def channel(deployment: Deployment) -> AsyncIterator[grpc.aio.Channel]:
    """One connection to the primary, and behind it no lease was lost."""
    before = leases_lost(deployment)
    async with grpc.aio.insecure_channel(deployment[await deployment.primary_of(SET)].address) as opened:
        yield opened
    assert leases_lost(deployment) == before
    assert {one.epoch for one in (await deployment.status()).view.sets} == {1}


def leases_lost(deployment: Deployment) -> int:
    logs = (local.broker.log.read_text(errors="replace") for local in deployment.cluster.brokers.values())
    return sum(log.count("event=lease_lost") for log in logs)


async def code_of(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    except asyncio.CancelledError:
        return grpc.StatusCode.CANCELLED
    return grpc.StatusCode.OK


async def test_twenty_thousand_questions_at_once_are_all_answered(channel: grpc.aio.Channel) -> None:
    """Where a queue is that is there, and where many others are that are nowhere, which etcd is asked for."""
    cluster: ClusterAsyncStub = ClusterStub(channel)
    names = [QUEUE if number % 2 else f"missing-{number}" for number in range(CALLS)]
    kind = cluster_pb2.LocateRequest.KIND_QUEUE
    calls = [
        cluster.Locate(cluster_pb2.LocateRequest(kind=kind, name=name), timeout=CALL_SECONDS)
        for name in names
    ]
    codes = Counter(await asyncio.gather(*map(code_of, calls)))
    assert codes == {grpc.StatusCode.OK: CALLS // 2, grpc.StatusCode.NOT_FOUND: CALLS // 2}


async def test_thousands_of_calls_that_are_given_up_leave_the_next_one_alone(
    channel: grpc.aio.Channel,
) -> None:
    """Consumers that wait for a message which does not come, as those of an application that is stopped."""
    transactions: TransactionsAsyncStub = TransactionsStub(channel)
    first = await transactions.Acquire(transactions_pb2.AcquireRequest(queue=QUEUE))
    waiting = transactions_pb2.AcquireRequest(queue=QUEUE, session_id=first.session_id, wait_ms=5000)
    late = [transactions.Acquire(waiting, timeout=ABANDONED_SECONDS) for _ in range(ABANDONED)]
    given_up = [transactions.Acquire(waiting) for _ in range(ABANDONED)]
    answering = asyncio.gather(*map(code_of, [*late, *given_up]))
    await asyncio.sleep(ABANDONED_SECONDS)
    for call in given_up:
        call.cancel()
    codes = Counter(await answering)
    assert codes == {
        grpc.StatusCode.DEADLINE_EXCEEDED: ABANDONED,
        grpc.StatusCode.CANCELLED: ABANDONED,
    }
    begun = time.monotonic()
    assert (await transactions.Begin(transactions_pb2.BeginRequest(), timeout=CALL_SECONDS)).secret
    assert time.monotonic() - begun < BEGIN_SECONDS
