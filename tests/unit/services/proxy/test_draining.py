"""A client that wants its link drained is told once that it is, whatever credit it had, and its counts stay right (2.6.7)."""

from tests.amqp.codec import Frame
from tests.amqp.raw_client import RawClient, credit
from tests.amqp.stub_brokers import DELIVERIES_MAX
from tests.amqp.stub_proxy import serving


def is_drained(frame: Frame) -> bool:
    return frame["handle"] == 0 and frame["drain"] is True


async def flows_behind(client: RawClient) -> list[Frame]:
    """All that comes until the proxy answers something sent now, and something behind that."""
    for channel in (7, 8, 9):
        await client.begin(channel)
    return [frame for frame in client.passed if frame.name == "flow" and is_drained(frame)]


async def test_a_drain_without_credit_is_answered_each_time() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_receiver("receiver", "queue")
        for _ in range(3):
            client.send(credit(0, 0, drain=True))
            flow = await client.expect("flow", is_drained)
            assert (flow["link_credit"], flow["delivery_count"]) == (0, 0)
        client.send(credit(0, 5))
        for _ in range(5):
            await client.expect("transfer")
        assert await flows_behind(client) == []


async def test_a_drain_that_messages_use_up_is_answered_by_them() -> None:
    """Clients begin the next drain when they have them: a flow behind them would end that one."""
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_receiver("receiver", "queue")
        client.send(credit(0, 4, drain=True))
        for _ in range(4):
            await client.expect("transfer")
        assert await flows_behind(client) == []


async def test_a_drain_of_more_than_there_is_counts_what_was_not_used() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_receiver("receiver", "queue")
        client.send(credit(0, DELIVERIES_MAX + 5, drain=True))
        for _ in range(DELIVERIES_MAX):
            await client.expect("transfer")
        flow = await client.expect("flow", is_drained)
        assert (flow["link_credit"], flow["delivery_count"]) == (0, DELIVERIES_MAX + 5)
        assert await flows_behind(client) == []
