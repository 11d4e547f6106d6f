"""Deliveries that come again to another link of their worker: a proxy over a broker whose set fails over."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from lockstep.core import commands as c
from lockstep.core import requests as rq
from services.proxy.settings import ProxySettings
from services.proxy.worker import Worker
from tests.amqp.codec import composite
from tests.amqp.raw_client import RawClient, credit
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    """With the queue `a`."""
    async with FakeBroker("one") as running:
        running.directory["a"] = "one"
        yield running


@pytest_asyncio.fixture
async def worker(broker: FakeBroker) -> AsyncIterator[Worker]:
    """Of a proxy of it."""
    worker = Worker(ProxySettings(brokers=(broker.address,)), None)
    yield worker
    await worker.stop()


@pytest_asyncio.fixture
async def address(worker: Worker) -> AsyncIterator[str]:
    """Of its port."""
    server = await asyncio.get_running_loop().create_server(lambda: worker.socket(None), "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def fail_over(broker: FakeBroker) -> None:
    broker.worlds["one"].fail_over(0)
    broker.hang_up()
    await eventually(lambda: bool(broker.streams))
    # Behind it the session is attached, and has told of what is void.
    await eventually(lambda: len(broker.streams[-1][1].requests) > 1)


def credit_at(broker: FakeBroker) -> int:
    """All that its last stream was granted: with a consumer, or later, as the client's frames came together."""
    heard = broker.streams[-1][1].requests if broker.streams else []
    return sum(one.credit for one in heard if isinstance(one, rq.OpenConsumer | rq.GrantCredit))


def settles(broker: FakeBroker) -> list[c.SettleCommand]:
    return [one for one in broker.worlds["one"].executed() if isinstance(one, c.SettleCommand)]


async def test_a_delivery_that_is_void_once_more_comes_again_though_its_last_link_has_ended(
    broker: FakeBroker, worker: Worker, address: str
) -> None:
    async with await RawClient.begun(address) as client, await RawClient.begun(address) as other:
        await client.attach_receiver("receiver", "a")
        client.send(credit(0, 1))
        await other.attach_receiver("receiver", "a")
        other.send(credit(0, 1))
        await eventually(lambda: credit_at(broker) == 2)
        await broker.deliver("one", 1, "a", 1)
        delivery = (await client.expect("transfer"))["delivery_id"]
        await fail_over(broker)
        assert len(worker.reclaims) == 1
        await broker.deliver("one", 2, "a", 1)
        await eventually(lambda: len(worker.reclaims) == 0)
        other.say("detach", handle=0, closed=True)
        await other.expect("detach")
        assert not [frame for frame in other.passed if frame.name == "transfer"]
        await fail_over(broker)
        assert len(worker.reclaims) == 1
        await broker.deliver("one", 1, "a", 1)
        await eventually(lambda: len(worker.reclaims) == 0)
        client.say("disposition", role=True, first=delivery, settled=True, state=composite("accepted"))
        world = broker.worlds["one"]
        await eventually(lambda: settles(broker))
        (settle,) = settles(broker)
        assert (settle.positions, settle.delivery_epoch) == ((1,), world.epoch)
        client.say("close")
        await client.expect("close")
        assert not [frame for frame in client.passed if frame.name == "transfer"]
