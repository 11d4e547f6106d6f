"""The trace of a transaction across its client or proxy, the primary, the backups and the stores."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider

from lockstep.client.session import Session
from lockstep.runtime.tracing import tracing
from tests.amqp import codec
from tests.amqp.codec import composite
from tests.amqp.raw_client import RawClient
from tests.integration.cluster import Deployment, deployed
from tests.integration.trace_collector import Collected, TraceCollector

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETS = {"east": ["B1", "B2", "B3"], "west": ["B2", "B3", "B1"]}
SECONDS = 30.0
ALL = {
    ("lockstep-client", "transaction"): 1,
    ("lockstep-broker", "primary"): 1,
    ("lockstep-broker", "commit"): 1,
    ("lockstep-broker", "backup"): 2,
    ("lockstep-store", "store"): 3,
}


@dataclass
class Rig:
    deployment: Deployment
    session: Session
    collector: TraceCollector

    async def spans(self, transaction: str, count: int) -> list[Collected]:
        """When so many have come."""
        return await self.until(lambda: self.collector.of(transaction), count)

    @staticmethod
    async def until(find: Callable[[], list[Collected]], count: int) -> list[Collected]:
        deadline = time.monotonic() + SECONDS
        while len(found := find()) < count and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return found


@pytest.fixture(scope="module")
def collector() -> Iterator[TraceCollector]:
    with TraceCollector() as collector, pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        tracing.cache_clear()
        yield collector
        traces = tracing()
        assert traces is not None
        traces.close()
        tracing.cache_clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory, collector: TraceCollector) -> AsyncGenerator[Rig]:
    directory = tmp_path_factory.mktemp("cluster")
    async with (
        deployed(directory, sets=SETS, coordinators=1, proxies=1) as deployment,
        deployment.client() as client,
        client.session() as session,
    ):
        await session.declare_queue("east.in", set_name="east")
        await session.declare_queue("west.in", set_name="west")
        yield Rig(deployment, session, collector)


async def test_everybody_who_takes_part_in_a_transaction_is_in_its_trace(rig: Rig) -> None:
    async with rig.session.transaction() as tx:
        await tx.publish("east.in", [b"one"])
        await tx.publish("east.in", [b"other"])
    assert tx.id is not None
    found = await rig.spans(tx.id, sum(ALL.values()))
    assert Counter((span.service, span.name) for span in found) == ALL
    assert len({span.trace for span in found}) == 1
    (root,) = (span for span in found if span.name == "transaction")
    assert not root.parent
    assert {span.parent for span in found if span is not root} == {root.span}
    assert {span.attributes["lockstep.set"] for span in found} == {"east"}
    assert {span.attributes["lockstep.epoch"] for span in found} == {1}
    (primary,) = (span for span in found if span.name == "primary")
    assert (primary.attributes["lockstep.messages"], primary.attributes["lockstep.outcome"]) == (
        2,
        "committed",
    )
    assert {span.attributes["lockstep.broker"] for span in found if span.name == "backup"} == {"B2", "B3"}
    assert all(0 <= span.seconds < SECONDS for span in found)


async def test_a_rollback_is_traced_as_one(rig: Rig) -> None:
    tx = rig.session.transaction()
    await tx.publish("east.in", [b"never"])
    await tx.rollback()
    assert tx.id is not None
    found = await rig.spans(tx.id, sum(ALL.values()))
    assert {
        span.attributes["lockstep.outcome"] for span in found if span.name in {"transaction", "primary"}
    } == {"rolled_back"}


async def test_a_transaction_of_an_amqp_client_begins_at_its_proxy(rig: Rig) -> None:
    (address,) = rig.deployment.cluster.proxy_addresses
    async with await RawClient.begun(address) as client:
        await client.attach_coordinator(0)
        await client.attach_sender("sender", "east.in", 1)
        transaction = await client.declare(0)
        state = composite("transactional_state", txn_id=codec.binary(transaction))
        await client.outcome_of(client.transfer(codec.message(b"by AMQP"), 1, state=state))
        assert (await client.discharge(transaction, 0)).name == "accepted"
    (root,) = await rig.until(
        lambda: [span for span in rig.collector.spans if span.service == "lockstep-proxy"], 1
    )
    found = await rig.spans(str(root.attributes["lockstep.transaction"]), sum(ALL.values()))
    assert Counter((span.service, span.name) for span in found) == {
        (service.replace("client", "proxy"), name): count for (service, name), count in ALL.items()
    }


async def test_the_span_of_the_application_is_linked(rig: Rig) -> None:
    application = TracerProvider().get_tracer("application")
    with application.start_as_current_span("order") as order:
        async with rig.session.transaction() as tx:
            await tx.publish("east.in", [b"of an order"])
    assert tx.id is not None
    found = await rig.spans(tx.id, sum(ALL.values()))
    (root,) = (span for span in found if span.name == "transaction")
    assert root.links == (order.get_span_context().trace_id.to_bytes(16, "big"),)


async def test_branches_are_linked_to_the_transaction_over_several_sets(rig: Rig) -> None:
    async with rig.session.transaction() as tx:
        await tx.publish("east.in", [b"here"])
        await tx.publish("west.in", [b"there"])
    assert tx.id is not None
    found = await rig.spans(tx.id, 2)
    assert sorted((span.service, span.name) for span in found) == [
        ("lockstep-client", "transaction"),
        ("lockstep-coordinator", "coordinator commit"),
    ]
    (root,) = (span for span in found if span.name == "transaction")
    assert {(span.trace, span.parent) for span in found if span is not root} == {(root.trace, root.span)}
    branches = await rig.until(lambda: [span for span in rig.collector.spans if root.trace in span.links], 2)
    assert sorted((span.name, span.attributes["lockstep.set"]) for span in branches) == [
        ("primary", "east"),
        ("primary", "west"),
    ]
