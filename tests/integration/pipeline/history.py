"""A short history of a real cluster that has every kind of event, and the cluster's own account of it.

Law: what the pipeline is compared with is read without it: events by the client of the events service, queues by browsing.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from lockstep.client import Client, QueueOptions, Session
from lockstep.client.event_offsets import EventOffset
from lockstep.client.events import EventsClient, Start
from services.pipeline.columns import as_record_batch
from tests.integration.cluster import SETS

KEEPER = "keeper"
"""A group that is opened first and acknowledges nothing: what others find with `earliest`."""

FAST_EVENTS, SLOW = 20, "north"
"""Of each transaction of the traffic behind a round; one in the slow set, and no window may lose it."""
TRAFFIC = 12
"""Transactions in each round and set."""


@dataclass
class History:
    """What the tests of jobs share."""

    addresses: list[str]
    began: dict[str, EventOffset] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    """Messages in each queue at the end, by browsing."""

    @property
    def brokers(self) -> str:
        return ",".join(self.addresses)

    def open(self) -> None:
        with EventsClient(self.addresses) as client:
            self.began = dict(client.open_subscription(KEEPER, Start.START_LATEST).offsets)

    def rows(self) -> list[dict[str, Any]]:
        """All events so far, by the events service alone, in order of sets and logs."""
        return log_rows(self.addresses, KEEPER, self.began)


def log_rows(addresses: list[str], group: str, began: dict[str, EventOffset]) -> list[dict[str, Any]]:
    """The events behind `began`."""
    rows: list[dict[str, Any]] = []
    with EventsClient(addresses) as client:
        known, plan = began, client.plan(group, began)
        while True:
            for one in plan.ranges:
                name = one.to.resource_set
                begin = known.get(name, EventOffset(0, 0))
                for batch in client.read(name, begin, EventOffset.of(one.to)):
                    rows += as_record_batch(batch).to_pylist()
            known = {one.to.resource_set: EventOffset.of(one.to) for one in plan.ranges}
            plan = client.plan(group, known)
            if all(not one.events for one in plan.ranges):
                break
    return sorted(rows, key=lambda row: (row["resource_set"], row["index"], row["place"]))


async def play(client: Client, rounds: int = 3, pause_seconds: float = 1.1) -> None:
    """Publishes, moves, rejects, rolls back, goes over several sets, expires and deletes."""
    async with client.session() as session:
        for name in SETS:
            await session.declare_queue(f"{name}-dead", set_name=name)
            options = QueueOptions(dead_letter_exchange="", dead_letter_key=f"{name}-dead")
            await session.declare_queue(f"{name}-in", options, set_name=name)
            await session.declare_queue(f"{name}-out", set_name=name)
            await session.declare_queue(f"{name}-gone", set_name=name)
            await session.declare_queue(f"{name}-bulk", set_name=name)
        for number in range(rounds):
            await asyncio.gather(*(_round(client, name, number) for name in SETS))
            async with session.transaction() as transaction:
                for name in SETS:
                    await transaction.publish(f"{name}-out", [b"joint", b"%d" % number])
            await asyncio.gather(*(_traffic(client, name, pause_seconds) for name in SETS))
        for name in SETS:
            await session.delete_queue(f"{name}-gone")


async def _round(client: Client, name: str, number: int) -> None:
    async with client.session() as session:
        await session.publish(f"{name}-in", b"alone in its command")
        bodies = [b"%s-%d-%d" % (name.encode(), number, place) for place in range(10)]
        await session.publish(f"{name}-in", bodies, properties=b"p")
        await session.publish(f"{name}-gone", [b"a", b"b"])
        await _move(session, name)
        transaction = session.transaction()
        await transaction.publish(f"{name}-out", [b"never", b"never"])
        await transaction.rollback()


async def _traffic(client: Client, name: str, seconds: float) -> None:
    size = 1 if name == SLOW else FAST_EVENTS
    async with client.session() as session:
        for _ in range(TRAFFIC):
            async with session.transaction() as transaction:
                await transaction.publish(f"{name}-bulk", [b"bulk"] * size)
            await asyncio.sleep(seconds / TRAFFIC)


async def _move(session: Session, name: str) -> None:
    async with await session.consume(f"{name}-in", credit=4) as consumer:
        for place in range(4):
            message = await anext(consumer)
            if place == 0:
                await message.reject()
            elif place == 1:
                await message.accept()
            else:
                async with session.transaction() as transaction:
                    await transaction.accept(message)
                    await transaction.publish(f"{name}-out", message.body)


async def depths(client: Client) -> dict[str, int]:
    """What is in the queues, by browsing."""
    found = {}
    async with client.session() as session:
        for name in SETS:
            for kind in ("in", "out", "dead", "bulk"):
                queue = f"{name}-{kind}"
                found[queue] = len([message async for message in session.browse(queue)])
    return found
