"""What becomes of what a client has when its connection ends: a failed delivery only where the client failed, or was lost."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from lockstep.client.command_batches import Confirmation
from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode, InDoubt
from services.proxy.core.conditions import CONNECTION_FORCED
from services.proxy.listener import ClientSocket
from services.proxy.steps import in_steps
from tests.amqp import codec
from tests.amqp.raw_client import RawClient, credit
from tests.amqp.stub_brokers import StubBatches, StubSession
from tests.amqp.stub_proxy import StubProxy, serving


class Batches(StubBatches):
    """Writes down what is settled. Of what is published nobody can tell what becomes of it."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, int]] = []
        """How many deliveries, and their disposition."""

    def settle(
        self, _queue: str, _epoch: int, positions: Sequence[int], disposition: int, *_: Any
    ) -> Confirmation:
        self.settled.append((len(positions), disposition))
        return super().settle()

    def publish(self, *_: Any) -> Confirmation:
        doubt = InDoubt(ErrorCode.UNAVAILABLE, "no primary")
        future: Confirmation = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, doubt)
        return future


class Session(StubSession):
    """Of these batches."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = self.batches = Batches()


async def with_deliveries(proxy: StubProxy, count: int) -> RawClient:
    """A client that has so many, unsettled, on link 0."""
    client = await RawClient.begun(proxy.address)
    await client.attach_receiver("receiver", "queue")
    client.send(credit(0, count))
    for _ in range(count):
        await client.expect("transfer")
    return client


async def test_a_proxy_that_stops_counts_no_failed_delivery() -> None:
    session = Session()
    async with serving(session=session) as proxy:
        client = await with_deliveries(proxy, 3)
        stopping = asyncio.ensure_future(proxy.worker.stop())
        assert await client.expect_end() == CONNECTION_FORCED
        client.abort()
        await stopping
    assert session.noted.settled == [(3, Disposition.RELEASE)]


async def test_a_message_in_doubt_counts_no_failed_delivery_of_others() -> None:
    session = Session()
    async with serving(session=session) as proxy, await with_deliveries(proxy, 3) as client:
        await client.attach_sender("sender", "queue", 1)
        client.transfer(codec.message(b"body"), 1)
        assert await client.expect_end() == CONNECTION_FORCED
    assert session.noted.settled == [(3, Disposition.RELEASE)]


async def test_a_client_that_breaks_the_protocol_has_failed() -> None:
    session = Session()
    async with serving(session=session) as proxy, await with_deliveries(proxy, 3) as client:
        client.send(b"no frame at all")
        assert await client.expect_end() != CONNECTION_FORCED
    assert session.noted.settled == [(3, Disposition.FAIL)]


async def test_a_client_that_is_lost_has_failed() -> None:
    session = Session()
    async with serving(session=session) as proxy:
        (await with_deliveries(proxy, 3)).abort()
        while proxy.worker.connections:
            await asyncio.sleep(0.001)
    assert session.noted.settled == [(3, Disposition.FAIL)]


async def test_work_that_breaks_off_ends_its_connection_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever waits for what it was to answer hears that nobody can tell."""

    async def work() -> None:
        raise ValueError("an error of ours")

    session = Session()
    async with (
        serving(session=session) as proxy,
        await with_deliveries(proxy, 1) as client,
        await with_deliveries(proxy, 1) as other,
    ):
        proxy.worker.connections[0].run(work())
        assert await client.expect_end() == CONNECTION_FORCED
        other.send(credit(0, 2))
        await other.expect("transfer")
    assert "event=work_broke_off" in caplog.text


async def test_a_connection_that_cannot_give_back_what_waits_does_not_keep_others_from_it() -> None:
    given_back: list[str] = []

    class Connection:
        peer = "somebody"

        def give_back_late(self, _: float) -> None:
            if self is broken:
                raise ValueError("an error of ours")
            given_back.append(self.peer)

    class Socket:
        def __init__(self, connection: Connection) -> None:
            self.connection = connection

    broken = Connection()
    async with serving(session=Session()) as proxy:
        sockets = [Socket(broken), Socket(Connection())]
        for socket in sockets:
            proxy.worker.take_connection(cast(ClientSocket, socket))
        await in_steps(proxy.worker.give_back_late(0.0))
        for socket in sockets:
            proxy.worker.drop_connection(cast(ClientSocket, socket))
    assert given_back == ["somebody"]
