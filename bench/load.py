"""The load program of the SDK, a process of its own: `python -m bench.load ORDER`, ORDER being a JSON text (`Order`).

Law, of every load program, whoever wrote it: it prepares everything, prints "ready" and waits for a line on its input; then it
runs through its warm-up, and counts what begins in the measured seconds behind it. Then it prints one line of JSON (`Done`), and
when its input has ended it removes the queues that it declared.

What counts is all that begins in those seconds, whenever it is confirmed, and nothing else, and they are what it is divided by:
what is in a window or in a transaction at their begin is not counted, so what is there at their end has to be. They are the same
for all connections. Where the work is counted instead they are those from the first begin to the last end.
"""

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from itertools import count
from typing import Any

import msgspec
import psycopg
import uvloop

from lockstep.client.client import Client, connect
from lockstep.client.consumer import Consumer
from lockstep.client.session import Session
from lockstep.core.commands import QueueOptions
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from lockstep.runtime.process import ensure_malloc_settings

FORMAT_ID = 6
"""Of branches that the load program ends by itself."""
MOVED = 1000
"""Messages in each of the two queues of a connection that moves them to and fro."""
CREDIT = 1000
FILL_CALL = 500
FILL_WINDOW = 20
DECLARED_AT_ONCE = 200
OPERATIONS_MAX = 2_000_000
"""Latencies that are kept."""


class Order(msgspec.Struct, frozen=True):
    """What is to be done, by one process."""

    operation: str
    addresses: list[str]
    sets: list[str]
    prefix: str
    """Of the names of its queues."""
    connections: int
    size: int
    body_bytes: int
    ring: int
    warm_seconds: float
    seconds: float
    call: int = 1
    queues: int = 0
    depth: int = 0
    rate: float = 0.0
    """Of this process: transactions a second."""
    dsn: str = ""
    participant: str = ""


class Done(msgspec.Struct):
    """What became of it."""

    operations: int
    messages: int
    seconds: float
    """In which they were done."""
    latencies_us: list[int]


class Counter:
    """Counts what begins in the measured seconds; one for all connections of the process."""

    def __init__(self, order: Order) -> None:
        self.begin = time.monotonic() + order.warm_seconds
        self.end = self.begin + order.seconds
        self.operations = self.messages = 0
        self.latencies_us: list[int] = []

    def count(self, start: float, messages: int) -> None:
        """An operation that began at `start` is done now."""
        if not self.begin <= start < self.end:
            return
        self.operations += 1
        self.messages += messages
        if len(self.latencies_us) < OPERATIONS_MAX:
            self.latencies_us.append(int(1e6 * (time.monotonic() - start)))


class Worker:
    """One connection: a client, its session and its queues."""

    def __init__(self, order: Order, number: int, client: Client, session: Session) -> None:
        self.order = order
        self.number = number
        self.client = client
        self.session = session
        self.set_name = order.sets[number % len(order.sets)]
        self.bodies = [b"x" * order.body_bytes] * order.size
        self.queues: list[str] = []

    async def prepare(self, names: Sequence[str], depth: int) -> None:
        """Declares its queues and fills them."""
        self.queues = list(names)
        ring = self.order.ring
        options = QueueOptions(length_max=ring, is_evicting=True) if ring else QueueOptions()
        for first in range(0, len(names), DECLARED_AT_ONCE):
            await asyncio.gather(
                *(
                    self.session.declare_queue(name, options, set_name=self.set_name)
                    for name in names[first : first + DECLARED_AT_ONCE]
                )
            )
        for name in names if depth else ():
            await self._fill(name, depth)

    async def _fill(self, queue: str, messages: int) -> None:
        bodies = [b"x" * self.order.body_bytes] * FILL_CALL
        confirmations: deque[Awaitable[object]] = deque()
        for first in range(0, messages, FILL_CALL):
            confirmations.append(
                await self.session.publish_soon(queue, bodies[: min(FILL_CALL, messages - first)])
            )
            if len(confirmations) == FILL_WINDOW:
                await confirmations.popleft()
        await asyncio.gather(*confirmations)


async def _publish(worker: Worker, counter: Counter) -> None:
    order, session, bodies = worker.order, worker.session, worker.bodies
    share = order.connections / order.rate if order.rate else 0.0
    due = time.monotonic() + share * worker.number / order.connections
    for turn in count():
        if share:
            # An operation that is late counts from when it was due: otherwise a stall would hide the wait of those behind it.
            start = due
            due += share
            await asyncio.sleep(max(0.0, start - time.monotonic()))
        else:
            start = time.monotonic()
        if start >= counter.end:
            return
        async with session.transaction() as transaction:
            await transaction.publish(worker.queues[turn % len(worker.queues)], bodies)
        counter.count(start, order.size)


async def _move(worker: Worker, counter: Counter) -> None:
    order, session = worker.order, worker.session
    async with contextlib.AsyncExitStack() as stack:
        consumers: list[Consumer] = [
            await stack.enter_async_context(await session.consume(queue, credit=10 * order.size))
            for queue in worker.queues
        ]
        for turn in count():
            source = turn % 2
            taken = [await anext(consumers[source]) for _ in range(order.size)]
            start = time.monotonic()
            if start >= counter.end:
                return
            async with session.transaction() as transaction:
                await transaction.accept(*taken)
                await transaction.publish(worker.queues[1 - source], worker.bodies)
            counter.count(start, 2 * order.size)


async def _stream(worker: Worker, counter: Counter) -> None:
    order, session, queue = worker.order, worker.session, worker.queues[0]
    bodies = worker.bodies[: order.call]
    unconfirmed: deque[tuple[float, Awaitable[object]]] = deque()
    while (start := time.monotonic()) < counter.end:
        unconfirmed.append((start, await session.publish_soon(queue, bodies)))
        if len(unconfirmed) * order.call >= order.size:
            began, confirmation = unconfirmed.popleft()
            await confirmation
            counter.count(began, order.call)
    for began, confirmation in unconfirmed:
        await confirmation
        counter.count(began, order.call)


async def _consume(worker: Worker, counter: Counter) -> None:
    async with await worker.session.consume(worker.queues[0], credit=CREDIT) as consumer:
        for _ in range(worker.order.size):
            accepted = (await anext(consumer)).accept()
        await accepted
    counter.operations += worker.order.size
    counter.messages += worker.order.size


async def _xa(worker: Worker, counter: Counter) -> None:
    manager = await worker.session.resource_manager(worker.set_name)
    await manager.select()
    for turn in count():
        xid = Xid(FORMAT_ID, worker.order.prefix.encode(), b"%d-%d" % (worker.number, turn))
        start = time.monotonic()
        if start >= counter.end:
            return
        branch = await manager.start_soon(xid)
        branch.publish(worker.queues[0], worker.bodies)
        for status in (await manager.end_and_prepare(xid), await manager.commit(xid)):
            assert status is XaStatus.OK, status
        counter.count(start, worker.order.size)


async def _over_sets(worker: Worker, counter: Counter) -> None:
    """One queue in each of two sets; the coordinator ends it."""
    session = worker.session
    queues = worker.queues[0], f"{worker.queues[0]}-other"
    other = worker.order.sets[(worker.number + 1) % len(worker.order.sets)]
    await session.declare_queue(queues[1], QueueOptions(length_max=1000, is_evicting=True), set_name=other)
    while (start := time.monotonic()) < counter.end:
        async with session.transaction() as transaction:
            for queue in queues:
                await transaction.publish(queue, worker.bodies)
        counter.count(start, 2 * worker.order.size)
    await session.delete_queue(queues[1])


async def _with_postgres(worker: Worker, counter: Counter) -> None:
    """Messages of one queue and as many rows of a table."""
    order = worker.order
    rows = [(worker.number, body) for body in worker.bodies]
    async with await psycopg.AsyncConnection.connect(order.dsn) as connection:
        while (start := time.monotonic()) < counter.end:
            async with worker.session.distributed_transaction() as transaction:
                await transaction.enlist_postgres(connection, order.participant)
                async with connection.cursor() as cursor:
                    await cursor.executemany("insert into bench values (%s, %s)", rows)
                await transaction.publish(worker.queues[0], worker.bodies)
            counter.count(start, order.size)


_OPERATIONS: dict[str, Callable[[Worker, Counter], Coroutine[Any, Any, None]]] = {
    "publish": _publish,
    "move": _move,
    "stream": _stream,
    "consume": _consume,
    "xa": _xa,
    "sets": _over_sets,
    "postgres": _with_postgres,
}


def queue_names(order: Order, number: int) -> list[str]:
    """Of one connection. With `queues` those of all connections together are so many, and none has none."""
    if order.operation == "move":
        return [f"{order.prefix}-{number}-{which}" for which in "ab"]
    if not order.queues:
        return [f"{order.prefix}-{number}"]
    own = range(number % order.queues, order.queues, order.connections)
    return [f"{order.prefix}-q{which}" for which in own]


async def run(order: Order) -> None:
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        depth = {"move": order.depth or MOVED, "consume": order.size}.get(order.operation, order.depth)
        for number in range(order.connections):
            worker = await stack.enter_async_context(_worker(order, number))
            names = queue_names(order, number)
            await worker.prepare(names, 0 if order.queues and number >= order.queues else depth)
            workers.append(worker)
        print("ready", flush=True)
        if not await asyncio.to_thread(sys.stdin.readline):
            return
        counter = Counter(order)
        operate = _OPERATIONS[order.operation]
        if order.operation == "consume":
            counter.begin = time.monotonic()
        await asyncio.gather(*(operate(worker, counter) for worker in workers))
        if order.operation == "consume":
            counter.end = time.monotonic()
        done = Done(
            counter.operations, counter.messages, counter.end - counter.begin, sorted(counter.latencies_us)
        )
        print(msgspec.json.encode(done).decode(), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await _remove(workers)


async def _remove(workers: Sequence[Worker]) -> None:
    owners = list({name: worker for worker in workers for name in worker.queues}.items())
    for first in range(0, len(owners), DECLARED_AT_ONCE):
        some = owners[first : first + DECLARED_AT_ONCE]
        await asyncio.gather(*(worker.session.delete_queue(name) for name, worker in some))


@contextlib.asynccontextmanager
async def _worker(order: Order, number: int) -> AsyncIterator[Worker]:
    async with await connect(order.addresses, patience_seconds=30) as client, client.session() as session:
        yield Worker(order, number, client, session)


if __name__ == "__main__":
    ensure_malloc_settings()
    uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Order)))
