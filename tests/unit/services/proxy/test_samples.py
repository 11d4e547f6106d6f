"""What a proxy shows of what its clients do."""

import asyncio

from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lockstep.core.histogram import Histogram
from lockstep.runtime.metrics import Sampling
from services.proxy.samples import ProxySamples
from tests.amqp import codec
from tests.amqp.raw_client import RawClient, credit
from tests.amqp.stub_brokers import DELIVERIES_MAX, EndedSession
from tests.amqp.stub_proxy import StubProxy, serving

MESSAGE = codec.message(b"body")


def shown(proxy: StubProxy) -> dict[str, float]:
    """Name and label -> value."""
    return {
        ":".join((one.name.removeprefix("lockstep_proxy_"), *one.labels.values())): one.value
        for one in ProxySamples(proxy.worker).read()
        if not isinstance(one.value, Histogram)
    }


async def test_messages_are_counted_both_ways() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue", 0)
        *_, last = [client.transfer(MESSAGE) for _ in range(3)]
        assert (await client.outcome_of(last)).name == "accepted"
        assert (await client.outcome_of(client.transfer(b"no message"))).name == "rejected"
        await client.attach_receiver("receiver", "queue", 1)
        client.send(credit(1, DELIVERIES_MAX + 1))
        for _ in range(DELIVERIES_MAX):
            await client.expect("transfer")
        figures = shown(proxy)
    assert figures["messages_in_total:done"] == 3
    assert figures["messages_in_total:refused"] == 1
    assert figures["messages_in_total:in_doubt"] == 0
    assert figures["messages_out_total"] == DELIVERIES_MAX
    assert (figures["connections"], figures["links"], figures["logins_total"]) == (1, 2, 1)


async def test_transactions_are_counted_by_their_ends() -> None:
    async with serving() as proxy:
        async with await RawClient.begun(proxy.address) as client:
            await client.attach_coordinator()
            for is_rolled_back in (False, False, True):
                await client.discharge(await client.declare(), fail=is_rolled_back)
            await client.declare()
            assert shown(proxy)["open_transactions"] == 1
            client.say("close")
            await client.expect("close")
        figures = shown(proxy)
    assert figures["transactions_total:done"] == 2
    assert figures["transactions_total:refused"] == 2
    assert figures["open_transactions"] == 0


async def test_a_commit_that_fails_is_counted_as_a_rollback() -> None:
    async with serving(session=EndedSession()) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_coordinator()
        await client.discharge(await client.declare())
        assert shown(proxy)["transactions_total:refused"] == 1


async def test_scrapers_can_read_it() -> None:
    async with serving() as proxy:
        registry = CollectorRegistry(auto_describe=False)
        loop = asyncio.get_running_loop()
        registry.register(Sampling(loop, [ProxySamples(proxy.worker).read]))
        text = await loop.run_in_executor(None, generate_latest, registry)
    parsed = text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call]
    families = {family.name: family.type for family in parsed}
    assert families["lockstep_proxy_messages_in"] == "counter"
    assert families["lockstep_proxy_links"] == "gauge"
