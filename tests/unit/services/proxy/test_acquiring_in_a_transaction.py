"""Who wants to acquire in a transaction what is settled when it is sent would lose it by the rollback, and is told so (4.4.3)."""

import asyncio

from services.proxy.core.conditions import NOT_IMPLEMENTED
from tests.amqp import codec
from tests.amqp.raw_client import RawClient, attach_receiver, credit
from tests.amqp.stub_brokers import DELIVERIES_MAX
from tests.amqp.stub_proxy import serving

RECEIVER, COORDINATOR = 0, 1
PRESETTLED = codec.ubyte(1)


def acquiring(transaction: bytes, count: int = 1) -> bytes:
    return credit(
        RECEIVER, count, properties=codec.mapping(codec.symbol("txn-id"), codec.binary(transaction))
    )


async def test_a_link_on_which_all_is_settled_ends_before_it_gets_anything() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_coordinator(COORDINATOR)
        transaction = await client.declare(COORDINATOR)
        await client.attach_receiver("receiver", "queue", RECEIVER, snd_settle_mode=PRESETTLED)
        client.send(acquiring(transaction))
        assert (await client.expect("detach")).condition == NOT_IMPLEMENTED
        assert not [frame for frame in client.passed if frame.name == "transfer"]
        assert (await client.discharge(transaction, COORDINATOR)).name == "accepted"


async def test_a_link_that_asks_for_it_with_its_attach_ends_before_it_gets_anything() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_coordinator(COORDINATOR)
        transaction = await client.declare(COORDINATOR)
        client.send(
            attach_receiver("receiver", "queue", RECEIVER, snd_settle_mode=PRESETTLED), acquiring(transaction)
        )
        assert (await client.expect("detach")).condition == NOT_IMPLEMENTED
        assert not [frame for frame in client.passed if frame.name == "transfer"]


async def test_a_link_that_settles_by_itself_goes_on() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_coordinator(COORDINATOR)
        transaction = await client.declare(COORDINATOR)
        await client.attach_receiver("receiver", "queue", RECEIVER)
        client.send(acquiring(transaction, DELIVERIES_MAX))
        for _ in range(DELIVERIES_MAX):
            await client.expect("transfer")
        await asyncio.sleep(0)
        assert not [frame for frame in client.passed if frame.name == "detach"]
