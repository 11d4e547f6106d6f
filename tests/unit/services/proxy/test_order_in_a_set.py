"""What a client says in one write on several links reaches their set in its order: an accept does not overtake what was made of
the message that it accepts.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from proton import Delivery

from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core.amqp.sections import EMPTY_HEADER
from lockstep.core.commands import Disposition
from lockstep.core.ids import QueuePosition
from lockstep.core.server_messages import DeliveredMessage
from services.proxy.settings import ProxySettings
from services.proxy.worker import Worker
from tests.amqp import codec
from tests.amqp.codec import composite, performative
from tests.amqp.raw_client import RawClient, credit
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.services.proxy.outgoing_rig import EPOCH, Rig

RECEIVER, SENDER = 0, 1
BIG = 300_000
"""Bytes; the engine is given them in two pieces."""


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    """With the queues `a` and `b`."""
    async with FakeBroker("one") as running:
        running.directory |= {"a": "one", "b": "one"}
        yield running


@pytest_asyncio.fixture
async def address(broker: FakeBroker) -> AsyncIterator[str]:
    """Of a proxy of it."""
    worker = Worker(ProxySettings(brokers=(broker.address,)), None)
    server = await asyncio.get_running_loop().create_server(lambda: worker.socket(None), "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await worker.stop()


def credit_at(broker: FakeBroker) -> int:
    """All that was granted."""
    requests = [one for _, primary, _ in broker.streams for one in primary.requests]
    return sum(one.credit for one in requests if isinstance(one, rq.OpenConsumer | rq.GrantCredit))


def heard(broker: FakeBroker) -> list[type]:
    """Publishes and settles, in order."""
    told = [one for _, primary, _ in broker.streams for one in primary.heard]
    return [type(one) for one in told if isinstance(one, c.PublishCommand | c.SettleCommand)]


@pytest.mark.parametrize("leaves", [False, True])
async def test_an_accept_is_not_told_before_a_transfer_that_was_said_before_it(
    broker: FakeBroker, address: str, leaves: bool
) -> None:
    """`leaves`: the receiver is detached in the same write, and its end has all be written that gathers."""
    async with await RawClient.begun(address) as client:
        await client.attach_receiver("receiver", "a", RECEIVER)
        await client.attach_sender("sender", "b", SENDER)
        client.send(credit(RECEIVER, 1))
        await eventually(lambda: credit_at(broker) == 1)
        await broker.deliver("one", 1, "a", 1)
        delivery = (await client.expect("transfer"))["delivery_id"]
        frames = [
            performative(
                "transfer",
                0,
                codec.message(b"made of it"),
                handle=SENDER,
                delivery_id=0,
                delivery_tag=codec.binary(b"0"),
                message_format=0,
            ),
            performative(
                "disposition", 0, b"", role=True, first=delivery, settled=True, state=composite("accepted")
            ),
        ]
        if leaves:
            frames.append(performative("detach", handle=RECEIVER, closed=True))
        client.send(*frames)
        await eventually(lambda: len(heard(broker)) == 2)
        assert heard(broker) == [c.PublishCommand, c.SettleCommand]


class OneOfMany(Rig):
    """Its client has other links as well."""

    def __init__(self) -> None:
        super().__init__()
        self.settled_before: list[int] = []
        """What this link had told each time that all were flushed."""

    def flush_links(self) -> None:
        self.settled_before.append(len(self.broker.settled))
        super().flush_links()


async def test_an_outcome_that_waits_for_the_rest_of_its_delivery_is_told_behind_what_came_on_other_links() -> (
    None
):
    rig = OneOfMany()
    assert rig.link is not None
    section = EMPTY_HEADER + b"\x00\x53\x75\xb0" + BIG.to_bytes(4, "big")
    rig.link.deliver("q", EPOCH, (DeliveredMessage(QueuePosition(1), section, bytes(BIG), 0, 0, True),))
    rig.exchange()
    rig.received[0].update(Delivery.ACCEPTED)
    rig.exchange()
    assert rig.broker.settled == []
    for _ in range(2):
        rig.link.resume()
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.ACCEPT)]
    assert rig.settled_before == [0]
