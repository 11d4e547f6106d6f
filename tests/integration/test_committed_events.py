"""Committed events of a running cluster of three brokers and three sets: all of them, whole transactions, whoever dies."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from itertools import count

import pytest
import pytest_asyncio

from lockstep.client.client import connect
from lockstep.client.event_errors import OffsetMismatch
from lockstep.client.event_offsets import EventOffset, offsets_of
from lockstep.client.event_rows import events_in
from lockstep.client.events import EventsClient, Start
from lockstep.client.session import Session
from lockstep.core.commands import QueueOptions
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.xa import XaStatus
from lockstep.runtime.ports import choose_ports
from lockstep.wire.v1 import events_pb2 as pb
from tests.integration.cluster import SETS, Deployment, deployed
from tests.integration.coordination import ClientTransaction
from tests.integration.coordinator_processes import Coordinators
from tests.integration.event_reader import EventReader, bodies, reader
from tests.integration.metrics import metric

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAIRED = ("east.pairs", "west.pairs")
"""Each transaction of a writer puts one message into both."""
_numbers = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Deployment]:
    async with deployed(tmp_path_factory.mktemp("cluster")) as deployment:
        yield deployment


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinators(deployment: Deployment) -> AsyncGenerator[Coordinators]:
    """One, and others that tests start."""
    coordinators = Coordinators(deployment)
    await coordinators.start()
    try:
        yield coordinators
    finally:
        await coordinators.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(deployment: Deployment, coordinators: Coordinators) -> AsyncGenerator[Session]:
    async with await connect(deployment.addresses) as client, client.session() as session:
        for name in SETS:
            await session.declare_queue(f"{name}.in", set_name=name)
        for queue in PAIRED:
            await session.declare_queue(queue, set_name=queue.partition(".")[0])
        yield session


@contextlib.asynccontextmanager
async def opened(deployment: Deployment, group: str) -> AsyncIterator[EventReader]:
    async with reader(deployment.addresses, group) as found:
        assert await found.open()
        yield found
        await asyncio.to_thread(found.client.close_subscription, group)


def body() -> bytes:
    """One that there was never."""
    return b"message %d" % next(_numbers)


async def write_pair(session: Session) -> bytes:
    content = body()
    async with session.transaction() as tx:
        for queue in PAIRED:
            await tx.publish(queue, [content])
    return content


class Writers:
    """Some at once, each with one transaction over two sets after the other, until `stop`."""

    def __init__(self, session: Session, number: int = 3) -> None:
        self._session = session
        self._is_stopping = False
        self._tasks = [asyncio.create_task(self._write()) for _ in range(number)]
        self.committed: set[bytes] = set()
        """What is known to be."""

    async def _write(self) -> None:
        while not self._is_stopping:
            # A transaction that a dying broker leaves in doubt is there or not: in both queues, that is.
            try:
                self.committed.add(await write_pair(self._session))
            except LockstepError:
                # A session that is over answers at once: others go on, such as whoever is to stop this.
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._is_stopping = True
        await asyncio.gather(*self._tasks)


async def planned_in(found: EventReader, set_name: str, events: int) -> pb.PlanResponse.PlannedRange:
    """A range with so many events, as soon as the brokers that are asked know them to be committed."""
    async with asyncio.timeout(30):
        while True:
            for planned in (await found.plan()).ranges:
                if planned.to.resource_set == set_name and planned.events >= events:
                    return planned
            await asyncio.sleep(0.05)


async def read_whole_transactions(found: EventReader, plans: int, max_events: int = 0) -> list[bytes]:
    """What came to both queues, of so many plans; fails at a plan that has one half of something."""
    seen: list[bytes] = []
    for _ in range(plans):
        events = await found.take(max_events, wait_seconds=1.0)
        one, other = (bodies(events, queue) for queue in PAIRED)
        assert sorted(one) == sorted(other), "all or nothing of each transaction"
        seen += one
    return seen


async def read_until_seen(found: EventReader, wanted: set[bytes]) -> list[bytes]:
    """The same, of as many plans as it takes until everything that is wanted was there."""
    seen: list[bytes] = []
    async with asyncio.timeout(60):
        while not wanted <= set(seen):
            seen += await read_whole_transactions(found, 1)
    return seen


async def test_every_durable_effect_is_told_in_order(deployment: Deployment, session: Session) -> None:
    async with opened(deployment, "story") as found:
        story = QueueOptions(dead_letter_exchange="", dead_letter_key="north.dead")
        await session.declare_queue("north.dead", set_name="north")
        await session.declare_queue("north.story", story, set_name="north")
        await session.declare_queue("north.brief", set_name="north")
        await session.publish("north.story", [b"one", b"two"], properties=b"p")
        async with await session.consume("north.story", credit=10) as consumer:
            one, two = await consumer.next(30), await consumer.next(30)
            assert one is not None and two is not None
            async with session.transaction() as tx:
                await tx.publish("north.story", [b"three"])
                await tx.accept(one)
            undone = session.transaction()
            await undone.publish("north.story", [b"never"])
            await undone.rollback()
            await two.reject()
        await session.publish("north.brief", [b"brief"], ttl_ms=1)
        await session.publish("north.in", [b"transient"], durable=False)
        await session.purge_queue("north.story")
        events = await found.take_until(
            "it expires", lambda events: any(event.kind == "expire" for event in events)
        )
        await session.delete_queue("north.story")
        events += await found.take_until(
            "it is deleted", lambda events: any(event.kind == "delete" for event in events)
        )
        told = [(event.kind, event.resource, event.body) for event in events if event.kind != "expire"]
        assert told == [
            ("declare", "north.dead", b""),
            ("declare", "north.story", b""),
            ("declare", "north.brief", b""),
            ("enqueue", "north.story", b"one"),
            ("enqueue", "north.story", b"two"),
            ("enqueue", "north.story", b"three"),
            ("dequeue", "north.story", b""),
            ("rollback", "", b""),
            ("dead_letter", "north.story", b""),
            ("enqueue", "north.dead", b""),
            ("enqueue", "north.brief", b"brief"),
            ("dequeue", "north.story", b""),
            ("delete", "north.story", b""),
        ]
        by_kind = {(event.kind, event.resource): event for event in events}
        first, second, third = events[3:6]
        assert (first.properties, first.transaction, first.events) == (b"p", "", 2)
        accepted, left, came = (
            events[6],
            by_kind["dead_letter", "north.story"],
            by_kind["enqueue", "north.dead"],
        )
        assert accepted.position == first.position
        assert (third.index, third.transaction) == (accepted.index, accepted.transaction)
        assert third.transaction.startswith("north/")
        assert left.position == came.source == second.position
        assert by_kind["expire", "north.brief"].position == by_kind["enqueue", "north.brief"].position
        indexes = [event.index for event in events]
        assert indexes == sorted(indexes)
        times = [event.commit_time for event in events]
        assert times == sorted(times)


async def test_a_group_is_opened_once_and_stands_where_it_was_acknowledged(
    deployment: Deployment, session: Session
) -> None:
    async with reader(deployment.addresses, "steady") as found:
        assert await found.open()
        begun = dict(found.known)
        assert sorted(begun) == sorted(SETS)
        await session.publish("east.in", [body()])
        assert not await found.open()
        assert found.known == begun, "what was committed since is still to come"
        await found.take(wait_seconds=30.0)
        await found.acknowledge()
        groups = await asyncio.to_thread(found.client.subscriptions)
        assert groups["steady"] == found.known
        assert found.known["east"].index > begun["east"].index
        found.known, reached = begun, found.known
        await found.acknowledge()
        groups = await asyncio.to_thread(found.client.subscriptions)
        assert groups["steady"] == reached, "acknowledging is cumulative"
        await asyncio.to_thread(found.client.close_subscription, "steady")
        await asyncio.to_thread(found.client.close_subscription, "steady")
        assert "steady" not in await asyncio.to_thread(found.client.subscriptions)


async def test_what_is_no_group_or_no_offset_is_refused(deployment: Deployment) -> None:
    async with reader(deployment.addresses, "nobody") as found:
        with pytest.raises(Rejected) as caught:
            await found.plan()
        assert caught.value.code is ErrorCode.NOT_FOUND
        found.known = {"east": EventOffset(1, 1)}
        with pytest.raises(Rejected) as caught:
            await found.acknowledge()
        assert caught.value.code is ErrorCode.NOT_FOUND
        await found.open()
        east = found.known["east"]
        found.known["east"] = EventOffset(east.index, east.epoch + 7)
        for asked in (found.plan, found.acknowledge):
            with pytest.raises(OffsetMismatch):
                await asked()
        await asyncio.to_thread(found.client.close_subscription, "nobody")


async def test_a_plan_waits_for_something_new(deployment: Deployment, session: Session) -> None:
    async with opened(deployment, "patient") as found:
        begun = time.monotonic()
        assert await found.take(wait_seconds=0.5) == []
        assert time.monotonic() - begun >= 0.5
        content = body()
        waiting = asyncio.create_task(found.take(wait_seconds=30.0))
        await asyncio.sleep(0.3)
        begun = time.monotonic()
        await session.publish("west.in", [content])
        assert bodies(await waiting, "west.in") == [content]
        assert time.monotonic() - begun < 10


async def test_a_tail_tells_what_comes(deployment: Deployment, session: Session) -> None:
    async with opened(deployment, "beside a tail") as found:
        wanted = [body() for _ in range(5)]

        def tail() -> list[bytes]:
            seen: list[bytes] = []
            with EventsClient(deployment.addresses) as client:
                for batch in client.tail("east", found.known["east"]):
                    seen += bodies(list(events_in(batch)), "east.in")
                    if len(seen) == len(wanted):
                        return seen
            return seen

        tailing = asyncio.create_task(asyncio.to_thread(tail))
        for content in wanted:
            await session.publish("east.in", [content])
            await asyncio.sleep(0.02)
        assert await asyncio.wait_for(tailing, 30) == wanted


async def test_a_range_is_the_same_at_every_broker_however_often_it_is_read(
    deployment: Deployment, session: Session
) -> None:
    async with opened(deployment, "repeated") as found:
        for _ in range(20):
            await write_pair(session)
        await session.publish("east.in", [body() * 200 for _ in range(2_500)])
        planned = await planned_in(found, "east", 2_520)
        whole = await found.read(planned)
        assert len(whole) == planned.events == 2_520
        assert await found.read(planned) == whole
        for address in deployment.addresses:
            async with reader([address], "repeated") as other:
                del planned.brokers[:]
                assert await other.read(planned) == whole
                cut = pb.PlanResponse.PlannedRange()
                cut.CopyFrom(planned)
                # Between the transactions.
                middle = whole[7]
                cut.to.index, cut.to.epoch = middle.index, planned.to.epoch
                first = await other.read(cut)
                cut.start.CopyFrom(cut.to)
                cut.to.CopyFrom(planned.to)
                assert first + await other.read(cut) == whole


async def test_plans_have_all_of_a_transaction_or_nothing_while_they_run(
    deployment: Deployment, session: Session
) -> None:
    async with opened(deployment, "atomic") as found:
        writers = Writers(session)
        seen = await read_whole_transactions(found, 10)
        seen += await read_whole_transactions(found, 10, max_events=5)
        # A group that begins meanwhile begins between transactions.
        async with opened(deployment, "begun meanwhile") as late:
            await read_whole_transactions(late, 5)
        await writers.stop()
        assert len(seen) > 10, "plans go on while transactions run"
        seen += await read_until_seen(found, writers.committed - set(seen))
        assert sorted(seen) == sorted(writers.committed), "everything, once"


async def test_plans_go_on_although_transactions_overlap_without_end(
    deployment: Deployment, session: Session, coordinators: Coordinators
) -> None:
    """By chance there is hardly a moment in which none of so many is committed in one of its sets only."""
    (port,) = choose_ports(1)
    await coordinators.start(arguments=("--metrics-port", str(port)))
    held = partial(metric, port, "lockstep_distributed_holds_total")
    async with opened(deployment, "among many") as found:
        async with deployment.client() as client:
            # As the first client, this one may know one coordinator only.
            assert len(await client.administration.coordinators()) == 2
            sessions = [client.session() for _ in range(2)]
            writers = [Writers(one, 64) for one in (*sessions, session)]
            seen: list[bytes] = []
            plans = 0
            try:
                # One in a hundred plans, more or less, has to be held.
                async with asyncio.timeout(300):
                    while plans < 10 or await held() == 0:
                        # Nothing lags when a plan has all that was committed when it was asked for.
                        came = await read_whole_transactions(found, 1)
                        plans += bool(came)
                        seen += came
                    async with opened(deployment, "begun among many") as late:
                        await late.take(wait_seconds=5.0)
            finally:
                print(f"{plans} plans, {await held()} holds, {len(seen)} read")
                await asyncio.gather(*(one.stop() for one in writers))
        committed = set().union(*(one.committed for one in writers))
        seen += await read_until_seen(found, committed - set(seen))
        assert sorted(seen) == sorted(committed), "everything, once"


async def test_a_plan_that_may_not_be_held_for_long_lists_what_it_splits(
    deployment: Deployment, session: Session, coordinators: Coordinators
) -> None:
    """One half is committed, and the other is in doubt: the log has the transaction, without a decision."""
    coordinator = coordinators.clients[0]
    async with opened(deployment, "impatient") as found:
        sets = ["east", "west"]
        transaction = await ClientTransaction.begin(coordinator, [f"set:{name}" for name in sets])
        await transaction.close(coordinator)
        content = body()
        managers = [await session.resource_manager(name) for name in sets]
        for manager, xid, queue in zip(managers, transaction.xids, PAIRED, strict=True):
            await manager.select()
            branch = await manager.start(xid)
            await branch.publish(queue, [content])
            await manager.end(xid)
            assert await manager.prepare(xid, sets) is XaStatus.OK
        await managers[0].commit(transaction.xids[0])
        planned = await found.plan(wait_seconds=1.0)
        assert {one.to.resource_set: one.events for one in planned.ranges}["east"] == 0, "it is held"
        planned = await asyncio.to_thread(
            found.client.plan, found.group, found.known, wait_seconds=30.0, hold_seconds_max=0.1
        )
        assert planned.split == [transaction.transaction_id.hex()]
        ranges = {one.to.resource_set: one for one in planned.ranges}
        assert bodies(await found.read(ranges["east"]), "east.pairs") == [content]
        assert bodies(await found.read(ranges["west"]), "west.pairs") == []
        found.known = offsets_of(one.to for one in planned.ranges)
        await managers[1].commit(transaction.xids[1])
        events = await found.take_until("the other half", lambda events: bool(bodies(events, "west.pairs")))
        assert bodies(events, "west.pairs") == [content]
        assert bodies(events, "east.pairs") == []


async def test_a_plan_has_both_branches_of_a_transaction_in_one_set_or_none(
    deployment: Deployment, session: Session, coordinators: Coordinators
) -> None:
    """Two workers have a branch each, and one of these has heard of the commit."""
    coordinator = coordinators.clients[0]
    async with opened(deployment, "workers") as found:
        transaction = await ClientTransaction.begin(coordinator, ["set:east", "set:east"])
        await transaction.close(coordinator)
        manager = await session.resource_manager("east")
        await manager.select()
        contents = [body(), body()]
        for xid, content in zip(transaction.xids, contents, strict=True):
            await (await manager.start(xid)).publish("east.in", [content])
            await manager.end(xid)
            assert await manager.prepare(xid, ["east", "east"]) is XaStatus.OK
        await manager.commit(transaction.xids[0])
        planned = await found.plan(wait_seconds=1.0)
        assert {one.to.resource_set: one.events for one in planned.ranges}["east"] == 0, "it is held"
        await manager.commit(transaction.xids[1])
        events = await found.take_until("both", lambda events: bool(bodies(events, "east.in")))
        assert bodies(events, "east.in") == contents


async def test_a_transaction_that_commits_many_plans_after_its_operations_is_whole(
    deployment: Deployment, session: Session
) -> None:
    content = [body() for _ in range(3)]
    tx = session.transaction()
    for queue in PAIRED:
        await tx.publish(queue, content[:2])
    async with opened(deployment, "long") as found:
        for _ in range(5):
            pair = await write_pair(session)
            assert await read_until_seen(found, {pair}) == [pair]
        for queue in PAIRED:
            await tx.publish(queue, content[2:])
        await found.acknowledge()
        await tx.commit()
        events = await found.take(wait_seconds=30.0)
        assert [bodies(events, queue) for queue in PAIRED] == [content, content]
        assert {event.events for event in events} == {3}


async def test_a_broker_that_is_killed_stops_no_reader(deployment: Deployment, session: Session) -> None:
    async with opened(deployment, "undisturbed") as found:
        writers = Writers(session, 2)
        seen = await read_whole_transactions(found, 5)
        planned = await planned_in(found, "east", 1)
        before = await found.read(planned)
        victim = next(
            name
            for name, broker in deployment.cluster.brokers.items()
            if broker.address == planned.brokers[0]
        )
        reading = asyncio.create_task(read_whole_transactions(found, 10))
        await deployment[victim].broker.kill()
        async with reader(deployment.addresses, "again") as other:
            assert await other.read(planned) == before
        seen += await reading
        await writers.stop()
        await deployment.cluster.start_broker(victim)
        await deployment.until_in_sync()
        seen += await read_until_seen(found, writers.committed - set(seen))
        assert len(seen) == len(set(seen)), "nothing twice"


async def test_a_group_is_where_it_was_when_everything_has_been_restarted(
    deployment: Deployment, session: Session
) -> None:
    async with reader(deployment.addresses, "lasting") as found:
        await found.open()
        await read_until_seen(found, {await write_pair(session)})
        await found.acknowledge()
        acknowledged = dict(found.known)
        content = await write_pair(session)
        before = (await found.plan()).ranges
        processes = [(local.broker, local.store) for local in deployment.cluster.brokers.values()]
        await asyncio.gather(*(process.kill() for pair in processes for process in pair))
        await asyncio.gather(*(deployment.cluster.start_store(name) for name in deployment.cluster.brokers))
        await asyncio.gather(*(deployment.cluster.start_broker(name) for name in deployment.cluster.brokers))
        await deployment.until_in_sync()
        groups = await asyncio.to_thread(found.client.subscriptions)
        assert groups["lasting"] == acknowledged
        assert not await found.open(Start.START_EARLIEST)
        assert found.known == acknowledged
        events = await found.take(wait_seconds=30.0)
        assert [bodies(events, queue) for queue in PAIRED] == [[content], [content]]
        assert [planned.start for planned in before] == [
            offset.in_set(name) for name, offset in sorted(acknowledged.items())
        ]
        await asyncio.to_thread(found.client.close_subscription, "lasting")


async def test_a_set_that_came_since_begins_at_its_beginning(
    deployment: Deployment, session: Session
) -> None:
    async with opened(deployment, "earlier") as found:
        async with deployment.client() as client:
            await client.administration.create_set("south", ["B1", "B2", "B3"])
        await deployment.until_in_sync()
        content = body()
        await session.declare_queue("south.in", set_name="south")
        await session.publish("south.in", [content])
        async with reader(deployment.addresses, "earlier") as again:
            assert not await again.open()
            assert again.known["south"] == EventOffset(0, 0)
        events = await found.take_until("it is there", lambda events: "south" in found.known)
        assert [event.kind for event in events if event.resource == "south.in"] == ["declare", "enqueue"]
        assert bodies(events, "south.in") == [content]


async def test_what_is_not_committed_is_waited_for_and_then_refused(deployment: Deployment) -> None:
    """Nobody takes an empty answer for the events of a range."""
    async with opened(deployment, "ranged") as found:
        end = found.known["east"]
        with EventsClient(deployment.addresses, patience_seconds=1.0) as client:

            def read() -> None:
                list(client.read("east", end, EventOffset(end.index + 1_000_000, end.epoch)))

            with pytest.raises(Rejected) as caught:
                await asyncio.to_thread(read)
            assert caught.value.code is ErrorCode.UNAVAILABLE
