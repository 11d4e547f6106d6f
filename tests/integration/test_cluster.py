"""A cluster of real processes: what clients see of it while nothing, or one thing, is wrong."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from lockstep.client.consumer import Message
from lockstep.core.commands import QueueOptions
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.replication import Subscribe, SubscriptionRefused
from lockstep.runtime.replication_codec import decode_to_backup, encode_subscribe
from lockstep.wire.v1 import (
    cluster_pb2,
    primary_pb2,
    resource_manager_pb2,
    resources_pb2,
    transactions_pb2,
)
from tests.integration.cluster import SETS, Deployment, deployed

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployment]:
    """One cluster for all tests here, which use queues of their own and leave all processes running."""
    async with deployed(tmp_path_factory.mktemp("cluster")) as running:
        yield running


async def test_three_sets_have_three_different_primaries(deployment: Deployment) -> None:
    status = await deployment.until_in_sync()
    assert {one.name: one.primary for one in status.view.sets} == {
        name: brokers[0] for name, brokers in SETS.items()
    }
    assert len(status.view.members) == 3
    assert all(member.incarnation for member in status.view.members)


async def test_a_transaction_over_two_queues_is_seen_whole_or_not_at_all(deployment: Deployment) -> None:
    async with deployment.client() as client, client.session() as session:
        for queue in ("pair-1", "pair-2"):
            await session.declare_queue(queue, QueueOptions(), set_name="east")
        transaction = session.transaction()
        await transaction.publish("pair-1", [b"a", b"b"])
        await transaction.publish("pair-2", [b"c"])
        assert [message.body async for message in session.browse("pair-1")] == []
        await transaction.commit()
        assert [message.body async for message in session.browse("pair-1")] == [b"a", b"b"]
        assert [message.body async for message in session.browse("pair-2")] == [b"c"]
        outcome = await client.get_outcome(str(transaction.id))
        assert outcome.state.name == "COMMITTED"


@pytest.mark.parametrize("settle", [Message.reject, Message.fail])
async def test_what_is_rejected_before_its_consumer_leaves_is_a_dead_letter_though_the_queue_ends_with_that(
    deployment: Deployment, settle: Callable[[Message], object]
) -> None:
    queue, dead = f"left {settle.__name__}", f"dead {settle.__name__}"
    options = QueueOptions(
        is_auto_delete=True, dead_letter_exchange="", dead_letter_key=dead, delivery_count_max=1
    )
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue(dead, set_name="east")
        await session.declare_queue(queue, options, set_name="east")
        await session.publish(queue, b"one")
        consumer = await session.consume(queue)
        settle(await anext(consumer))
        await consumer.close()
        assert [message.body async for message in session.browse(dead)] == [b"one"]
        with pytest.raises(Rejected) as raised:
            await session.describe_queue(queue)
        assert raised.value.code is ErrorCode.NOT_FOUND


async def test_a_transaction_that_is_rolled_back_leaves_nothing(deployment: Deployment) -> None:
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue("nothing", QueueOptions(), set_name="west")
        transaction = session.transaction()
        await transaction.publish("nothing", b"never")
        await transaction.rollback()
        assert [message.body async for message in session.browse("nothing")] == []
        assert (await client.get_outcome(str(transaction.id))).state.name == "ROLLED_BACK"


async def test_messages_are_consumed_accepted_and_gone(deployment: Deployment) -> None:
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue("work", QueueOptions(), set_name="north")
        await session.publish("work", [b"%d" % number for number in range(100)])
        consumer = await session.consume("work", credit=10)
        bodies: list[bytes] = []
        for _ in range(100):
            message = await consumer.next(30)
            assert message is not None, f"only {len(bodies)} messages came"
            bodies.append(message.body)
            message.accept()
        assert bodies == [b"%d" % number for number in range(100)]
        await consumer.close()
    async with deployment.client() as client, client.session() as session:
        assert [message async for message in session.browse("work")] == []


async def test_a_transaction_over_two_sets_without_a_coordinator_is_a_clear_error(
    deployment: Deployment,
) -> None:
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue("here", QueueOptions(), set_name="east")
        await session.declare_queue("there", QueueOptions(), set_name="west")
        transaction = session.transaction()
        await transaction.publish("here", b"1")
        with pytest.raises(Rejected) as caught:
            await transaction.publish("there", b"2")
        assert (caught.value.code, "needs a coordinator" in caught.value.message) == (
            ErrorCode.UNAVAILABLE,
            True,
        )
        with pytest.raises(Rejected) as caught:
            await transaction.commit()
        assert caught.value.code is ErrorCode.ROLLED_BACK


async def test_a_name_belongs_to_one_set(deployment: Deployment) -> None:
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue("unique", QueueOptions(), set_name="east")
        with pytest.raises(Rejected) as caught:
            await session.declare_queue("unique", QueueOptions(), set_name="west")
        assert caught.value.code is ErrorCode.ALREADY_EXISTS
        await session.delete_queue("unique")
        async with asyncio.timeout(30):
            while True:
                try:
                    await session.declare_queue("unique", QueueOptions(), set_name="west")
                except Rejected:
                    await asyncio.sleep(0.05)
                else:
                    break


async def test_replicas_have_the_same_state(deployment: Deployment) -> None:
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue("hashed", QueueOptions(), set_name="north")
        await session.publish("hashed", [b"x" * 1000] * 50)
    for set_name in SETS:
        hashes = await deployment.state_hashes(set_name)
        assert len(hashes) == 3, hashes
        assert len(set(hashes.values())) == 1, hashes


async def test_a_set_is_handed_over_by_command(deployment: Deployment) -> None:
    async with deployment.client() as client:
        await deployment.until_in_sync()
        answer = await client.administration.promote("north", "B1")
        assert answer.primary == "B1"
        assert await deployment.primary_of("north") == "B1"
        with pytest.raises(Rejected) as caught:
            await client.administration.promote("north", "B9")
        assert caught.value.code is ErrorCode.ILLEGAL_STATE
        await deployment.until_in_sync()
        await client.administration.promote("north", "B3")
        await deployment.until_in_sync()


async def test_data_loss_is_not_accepted_while_a_set_is_led(deployment: Deployment) -> None:
    async with deployment.client() as client:
        generation = (await deployment.status()).view.generation
        with pytest.raises(Rejected) as caught:
            await client.administration.accept_data_loss("east", "B2")
        assert caught.value.code is ErrorCode.IN_USE
        assert (await deployment.status()).view.generation == generation


# Bad input


async def test_unknown_names_are_typed_errors_with_the_names_in_them(deployment: Deployment) -> None:
    async with deployment.client() as client, client.session() as session:
        with pytest.raises(Rejected) as caught:
            await session.publish("no-such-queue", b"1")
        assert caught.value.code is ErrorCode.NOT_FOUND
        assert "no-such-queue" in str(caught.value)
        with pytest.raises(Rejected) as caught:
            await session.declare_queue("q", QueueOptions(), set_name="no-such-set")
        assert caught.value.code is ErrorCode.UNKNOWN_SET
        with pytest.raises(Rejected) as caught:
            await client.get_outcome("no-such-set/1.1", patience_seconds=1)
        assert caught.value.code is ErrorCode.UNKNOWN_SET
        for text in ("east", "east/1", "east/x.1", "/1.1"):
            with pytest.raises(Rejected) as caught:
                await client.get_outcome(text)
            assert caught.value.code is ErrorCode.INVALID_ARGUMENT


async def test_over_long_names_are_refused(deployment: Deployment) -> None:
    async with deployment.client() as client, client.session() as session:
        with pytest.raises(Rejected) as caught:
            await session.declare_queue("q" * 300, QueueOptions(), set_name="east")
        assert caught.value.code is ErrorCode.INVALID_ARGUMENT


async def test_sixteen_mebibytes_work_and_too_much_is_refused_by_name(deployment: Deployment) -> None:
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue("big", QueueOptions(), set_name="west")
        body = bytes(16 * 1024 * 1024)
        await session.publish("big", body)
        (message,) = [message async for message in session.browse("big")]
        assert message.body == body
        with pytest.raises(Rejected) as caught:
            await session.publish("big", bytes(33 * 1024 * 1024))
        assert caught.value.code is ErrorCode.TOO_LARGE
        await session.delete_queue("big")


async def test_a_full_queue_refuses_and_says_so(deployment: Deployment) -> None:
    async with deployment.client() as client, client.session() as session:
        await session.declare_queue("small", QueueOptions(length_max=2), set_name="east")
        await session.publish("small", [b"1", b"2"])
        with pytest.raises(Rejected) as caught:
            await session.publish("small", b"3")
        assert caught.value.code is ErrorCode.QUEUE_FULL
        assert len([message async for message in session.browse("small")]) == 2


METHODS = tuple(
    f"{service.name}/{method.name}"
    for file in (cluster_pb2, primary_pb2, resource_manager_pb2, resources_pb2, transactions_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming
)


async def test_garbage_on_any_method_is_a_typed_error_and_stops_nobody(deployment: Deployment) -> None:
    pids = [deployment[name].broker.pid for name in deployment.cluster.brokers]
    for local in deployment.cluster.brokers.values():
        async with grpc.aio.insecure_channel(local.address) as channel:
            for method in METHODS:
                call: Any = channel.unary_unary(f"/lockstep.wire.v1.{method}")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(b"\xff\xfe garbage", timeout=30)
                assert "lockstep-code" in dict(caught.value.trailing_metadata() or ()), method
            for method in ("Sessions/Open", "Primary/Acknowledge"):
                stream: Any = channel.stream_stream(f"/lockstep.wire.v1.{method}")(timeout=30)
                await stream.write(b"\xff\xfe garbage")
                assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT, method
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/lockstep.wire.v1.Cluster/Nothing")(b"", timeout=30)  # type: ignore[arg-type]
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await deployment.until_in_sync()
    assert [deployment[name].broker.pid for name in deployment.cluster.brokers] == pids


async def test_a_subscription_with_a_wrong_epoch_is_refused(deployment: Deployment) -> None:
    primary = await deployment.primary_of("east")
    subscribe = Subscribe(
        SetName("east"), Epoch(0), BrokerId("B9"), DiskId("d"), Incarnation("i"),
        LogIndex(0), (), LogIndex(0), False, LogIndex(0),
    )  # fmt: skip
    async with grpc.aio.insecure_channel(deployment[primary].address) as channel:
        call: Any = channel.unary_stream("/lockstep.wire.v1.Primary/Subscribe")
        (data,) = [data async for data in call(encode_subscribe(subscribe, "a-subscription"))]
    assert isinstance(decode_to_backup(data), SubscriptionRefused)
    await deployment.until_in_sync()
