"""A client that wants its link drained is told once that it is, whatever credit it had, and its counts stay right (2.6.7)."""

import asyncio
from typing import Any

import pytest

from lockstep.client.command_batches import Confirmation
from services.proxy import steps
from services.proxy.outgoing_link import RETURNED_AT_ONCE
from tests.amqp.codec import Frame, composite, performative
from tests.amqp.raw_client import WINDOW, RawClient, attach_receiver, credit
from tests.amqp.stub_brokers import DELIVERIES_MAX, StubBatches, StubSession, StubSet
from tests.amqp.stub_proxy import serving


class Drained(StubSet):
    def __init__(self) -> None:
        super().__init__()
        self.drains = 0
        self.delivered = 0

    def drain(self, consumer: int) -> None:
        self.drains += 1
        super().drain(consumer)

    def _deliver(self, consumer: int, credit: int) -> None:
        super()._deliver(consumer, credit)
        self.delivered += credit


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


async def test_a_drain_of_credit_that_was_taken_back_is_asked_for_once() -> None:
    """The engine has messages already for which there is no credit any more, and no window."""
    session = StubSession()
    session.set = drained = Drained()
    async with (
        serving(session=session) as proxy,
        await RawClient.begun(proxy.address, incoming_window=0) as client,
    ):
        await client.attach_receiver("receiver", "queue")
        client.send(credit(0, 4, incoming_window=0))
        while drained.delivered < 4:
            await asyncio.sleep(0.001)
        client.send(credit(0, 0, drain=True, incoming_window=0))
        await flows_behind(client)
        assert drained.drains == 1
        client.send(credit(0, 4, incoming_window=WINDOW))
        for _ in range(4):
            await client.expect("transfer")


async def test_a_drain_behind_what_was_sent_is_asked_for_once() -> None:
    """The engine tells of that when the drain has come already."""
    session = StubSession()
    session.set = drained = Drained()
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_receiver("receiver", "queue")
        client.send(credit(0, DELIVERIES_MAX - 1))
        for _ in range(DELIVERIES_MAX - 1):
            await client.expect("transfer")
        client.send(credit(0, DELIVERIES_MAX + 1, drain=True))
        await client.expect("flow", is_drained)
        assert drained.drains == 1


class Delaying(StubSession):
    """Nobody finds a node before the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.finds = asyncio.Event()

    async def of_target(self, exchange: str, routing_key: str) -> tuple[StubSet, StubBatches]:
        await self.finds.wait()
        return await super().of_target(exchange, routing_key)


@pytest.mark.parametrize("is_one_write", [True, False])
@pytest.mark.parametrize(
    ("said", "delivered", "flows"),
    [
        ([credit(0, 0, drain=True)], 0, 1),
        ([credit(0, 4), credit(0, 0, drain=True)], 0, 1),
        ([credit(0, 0, drain=True), credit(0, 3)], 3, 0),
        ([credit(0, 4, drain=True)], 4, 0),
        ([credit(0, 0, drain=True), credit(0, 4, drain=True)], 4, 0),
        ([credit(0, DELIVERIES_MAX + 5, drain=True)], DELIVERIES_MAX, 1),
    ],
    ids=["no credit", "credit taken back", "taken back", "used up", "then with credit", "not used up"],
)
async def test_a_drain_in_front_of_the_answer_to_the_attach_is_heard_behind_that(
    said: list[bytes], delivered: int, flows: int, is_one_write: bool
) -> None:
    """The link's node is still being looked for."""
    session = Delaying()
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        attach = attach_receiver("receiver", "queue")
        client.send(attach + b"".join(said) if is_one_write else attach)
        await client.begin(5)
        if not is_one_write:
            for flow in said:
                client.send(flow)
        await client.begin(6)
        assert not any(frame.name == "attach" for frame in client.passed)
        session.finds.set()
        await client.expect("attach")
        for _ in range(delivered):
            await client.expect("transfer")
        assert len(await flows_behind(client)) == flows
        assert not any(frame.name == "transfer" for frame in client.passed)


async def test_a_drain_of_no_credit_owes_nothing_on_another_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """On which messages leave while what came with that drain is taken: they have used up the credit of its own."""
    monkeypatch.setattr(steps, "STEP_SECONDS", 0.0)
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        for handle in range(3):
            await client.attach_receiver(f"receiver {handle}", "queue", handle)
        behind = (credit(1, 0) + credit(2, 0)) * 200
        client.send(credit(0, 4, drain=True) + credit(1, 0, drain=True) + behind)
        for _ in range(4):
            await client.expect("transfer")
        assert await flows_behind(client) == []


class Said(StubSession):
    """Notes settles and drains in their order."""

    def __init__(self) -> None:
        super().__init__()
        said = self.said = list[str]()

        class Set(StubSet):
            def drain(self, consumer: int) -> None:
                said.append("drain")
                super().drain(consumer)

        class Batches(StubBatches):
            def settle(self, *arguments: Any) -> Confirmation:
                said.append("settle")
                return super().settle(*arguments)

        self.set, self.batches = Set(), Batches()


@pytest.mark.parametrize(
    ("drained", "between"),
    [(0, b""), (0, credit(0, 1)), (1, b"")],
    ids=["of its link", "behind more credit", "of another link"],
)
async def test_what_a_client_gives_back_in_front_of_a_drain_is_told_before_it(
    drained: int, between: bytes
) -> None:
    """Else it hears that the queue is empty, which has what it gave back a moment before."""
    session = Said()
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_receiver("receiver", "queue")
        await client.attach_receiver("another", "queue", handle=1)
        client.send(credit(0, 1))
        number = (await client.expect("transfer"))["delivery_id"]
        given_back = performative(
            "disposition", role=True, first=number, settled=True, state=composite("released")
        )
        client.send(between + given_back + credit(drained, 2, drain=True))
        await flows_behind(client)
    assert session.said[:2] == ["settle", "drain"]


@pytest.mark.parametrize(
    "said",
    [
        performative("detach", handle=0),
        performative("detach", handle=0, closed=True),
        performative("end"),
    ],
    ids=["detach", "close", "end"],
)
async def test_what_a_link_leaves_in_front_of_a_drain_of_another_is_told_before_it(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much it is: it goes back in pieces, in a task of its own."""
    count = RETURNED_AT_ONCE + 1
    session = Said()
    # The end of the link is no step's end.
    monkeypatch.setattr(steps, "STEP_SECONDS", 60.0)
    async with serving(session=session) as proxy, await RawClient.opened(proxy.address) as client:
        session.set.deliveries_max = count
        for channel in (0, 1):
            await client.begin(channel, incoming_window=count)
            await client.attach_receiver(f"receiver {channel}", "queue", channel=channel)
        client.send(credit(0, count, incoming_window=count))
        for _ in range(count):
            await client.expect("transfer")
        client.send(said + credit(0, 2, channel=1, drain=True))
        for _ in range(2):
            await client.expect("transfer")
    assert session.said[:3] == ["settle", "settle", "drain"]
