"""Limits of a worker and of its connections, as clients meet them."""

import asyncio

import pytest

from services.primary.core.settings import PrimarySettings
from services.proxy.core.conditions import RESOURCE_LIMIT
from services.proxy.settings import ProxyLimits
from tests.amqp import codec
from tests.amqp.codec import composite
from tests.amqp.raw_client import RawClient, attach_receiver, attach_sender
from tests.amqp.stub_brokers import StubBatches, StubSession, StubSet
from tests.amqp.stub_proxy import serving


async def test_a_connection_too_many_is_dropped_and_the_others_stay() -> None:
    async with (
        serving(ProxyLimits(connections_max=2)) as proxy,
        await RawClient.begun(proxy.address) as first,
        await RawClient.begun(proxy.address),
    ):
        async with await RawClient.connected(proxy.address) as third:
            third.send(codec.AMQP_HEADER)
            assert await third.next_frame() is None
        await first.attach_sender("sender", "queue")
        first.say("close")
        await first.expect("close")
        assert await first.expect_end() is None
        async with await RawClient.begun(proxy.address) as next_one:
            await next_one.attach_sender("sender", "queue")


def lines(caplog: pytest.LogCaptureFixture, limit: str) -> list[str]:
    """Of the log, about that limit."""
    return [line for line in caplog.messages if f"limit={limit} " in line]


async def attach_two_senders(client: RawClient) -> None:
    """By handles 0 and 1."""
    for number in range(2):
        await client.attach_sender(f"sender-{number}", "queue", number)


async def test_a_transaction_too_many_is_refused_and_other_connections_have_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serving(ProxyLimits(transactions_max=2)) as proxy,
        await RawClient.begun(proxy.address) as greedy,
        await RawClient.begun(proxy.address) as other,
    ):
        await greedy.attach_coordinator()
        await other.attach_coordinator()
        first, _ = await greedy.declare(), await greedy.declare()
        refused = await greedy.outcome_of(greedy.transfer(codec.request(composite("declare"))))
        assert refused.name == "rejected"
        assert codec.named(refused["error"])["condition"] == RESOURCE_LIMIT
        assert len(lines(caplog, "transactions_max")) == 1
        assert await other.declare()
        assert (await greedy.discharge(first)).name == "accepted"
        assert await greedy.declare()


async def test_a_receiver_too_many_is_refused_and_other_connections_have_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serving(ProxyLimits(receivers_max=2)) as proxy,
        await RawClient.begun(proxy.address) as greedy,
        await RawClient.begun(proxy.address) as other,
    ):
        for number in range(2):
            await greedy.attach_receiver(f"receiver-{number}", "queue", number)
        greedy.send(attach_receiver("receiver-2", "queue", 2))
        assert (await greedy.expect("detach")).condition == RESOURCE_LIMIT
        assert len(lines(caplog, "receivers_max")) == 1
        await greedy.attach_sender("sender", "queue", 3)
        await other.attach_receiver("receiver", "queue")
        greedy.say("detach", handle=0, closed=True)
        await greedy.expect("detach")
        await greedy.attach_receiver("receiver-4", "queue", 4)
        assert not [frame for frame in greedy.passed if frame.name == "detach"]


async def test_links_too_many_are_refused_one_by_one_and_are_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(ProxyLimits(links_max=2)) as proxy,
        await RawClient.begun(proxy.address) as greedy,
    ):
        await attach_two_senders(greedy)
        for number in (2, 3):
            greedy.send(attach_sender(f"sender-{number}", "queue", number))
            assert (await greedy.expect("detach")).condition == RESOURCE_LIMIT
        (line,) = lines(caplog, "links_max")
        assert "2 links are attached" in line and "container" in line


async def test_unfinished_messages_that_are_too_much_end_their_link_and_are_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serving(ProxyLimits(partial_bytes_max=1000)) as proxy,
        await RawClient.begun(proxy.address) as greedy,
    ):
        await attach_two_senders(greedy)
        for number in range(2):
            greedy.transfer(bytes(600), handle=number, more=True)
        detach = await greedy.expect("detach")
        assert detach.condition == RESOURCE_LIMIT
        assert "on one connection" in detach["error"].value[1]
        assert len(lines(caplog, "partial_bytes_max")) == 1


async def test_a_message_in_parts_that_is_too_big_ends_its_link_and_is_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serving(ProxyLimits(message_bytes_max=1000)) as proxy,
        await RawClient.begun(proxy.address) as greedy,
    ):
        await greedy.attach_sender("sender", "queue")
        greedy.transfer(bytes(100_000), more=True)
        assert (await greedy.expect("detach")).condition == "amqp:link:message-size-exceeded"
        (line,) = lines(caplog, "message_bytes_max")
        assert "more than 1000 bytes" in line and "container" in line
        assert not lines(caplog, "partial_bytes_max")


class SlowNames(StubSession):
    """Every look-up waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.may_go_on = asyncio.Event()

    async def of_target(self, exchange: str, routing_key: str) -> tuple[StubSet, StubBatches]:
        self.asked.append(exchange or routing_key)
        await self.may_go_on.wait()
        return await super().of_target(exchange, routing_key)

    async def are_asked(self, count: int) -> None:
        """So many look-ups, and no more for a while."""
        async with asyncio.timeout(30):
            while len(self.asked) < count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(self.asked) == count


async def test_a_burst_of_attaches_waits_at_its_connection_and_no_other() -> None:
    session = SlowNames()
    async with (
        serving(ProxyLimits(attaching_max=2), session) as proxy,
        await RawClient.begun(proxy.address) as greedy,
        await RawClient.begun(proxy.address) as other,
    ):
        greedy.send(*(attach_sender(f"sender-{number}", f"q{number}", number) for number in range(6)))
        await session.are_asked(2)
        other.send(attach_sender("sender", "theirs"))
        await session.are_asked(3)
        assert session.asked == ["q0", "q1", "theirs"]
        greedy.say("detach", handle=3, closed=True)
        await greedy.expect("detach")
        session.may_go_on.set()
        await other.expect("attach")
        attached = {(await greedy.expect("attach"))["name"] for _ in range(6)}
        assert "sender-5" in attached
        assert session.asked == ["q0", "q1", "theirs", "q2", "q4", "q5"], "nothing is made for what has ended"


def test_a_set_has_room_for_what_several_connections_may_receive_on() -> None:
    assert PrimarySettings().stream_consumers_max == 10 * ProxyLimits().receivers_max
