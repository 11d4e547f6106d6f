"""Brokers for a proxy under test in one process: every node is there, every command is confirmed at once.

Law: only what leaves the proxy's own code is replaced; nothing is checked here, so that whatever a client sends gets far.
"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from lockstep.client.client import Client
from lockstep.client.command_batches import Confirmation
from lockstep.client.session import Session
from lockstep.client.transaction_state import TransactionState
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.server_messages import DeliveredMessage
from services.proxy.nodes import Nodes

MISSING = "missing"
"""Names that begin with it are of no node, and cannot be made."""
DELIVERIES_MAX = 20
"""That one consumer gets: its queue has no more."""
BODY = b"m" * 40
EPOCH = Epoch(1)


def stub_nodes(stub: "StubSession | None" = None) -> Nodes:
    """The proxy's nodes, over brokers that say yes, or over this session."""
    session = cast(Session, stub or StubSession())
    status = SimpleNamespace(view=SimpleNamespace(sets=[SimpleNamespace(name="stub")]))

    async def ask() -> Any:
        return status

    client = cast(Client, SimpleNamespace(administration=SimpleNamespace(status=ask)))
    return Nodes(client, session, may_create_queues=True, may_create_topics=True)


def _done(value: int = 1) -> Confirmation:
    """Confirmed in the next turn of the event loop."""
    future: Confirmation = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, value)
    return future


class StubSession:
    """One set, in which everything is."""

    def __init__(self) -> None:
        self.set = StubSet()
        self.batches = StubBatches()

    async def of_target(self, exchange: str, routing_key: str) -> tuple["StubSet", "StubBatches"]:
        await asyncio.sleep(0)
        if (exchange or routing_key).startswith(MISSING):
            raise Rejected(ErrorCode.NOT_FOUND, "no such node")
        return self.set, self.batches

    async def of_set(self, set_name: str) -> tuple["StubSet", "StubBatches"]:
        return await self.of_target("", set_name)

    async def set_of_target(self, exchange: str, routing_key: str) -> str:
        await self.of_target(exchange, routing_key)
        return "stub"

    async def declare_queue(self, name: str, *_: Any, **__: Any) -> None:
        await self._make(name)

    async def declare_exchange(self, name: str, *_: Any, **__: Any) -> None:
        await self._make(name)

    async def _make(self, name: str) -> None:
        await asyncio.sleep(0)
        if name.startswith(MISSING):
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "no name for a node")

    async def delete_queue(self, *_: Any, **__: Any) -> int:
        await asyncio.sleep(0)
        return 0

    async def bind(self, *_: Any, **__: Any) -> None:
        await asyncio.sleep(0)

    async def unbind(self, *_: Any, **__: Any) -> None:
        await asyncio.sleep(0)

    async def describe_queue(self, name: str) -> Any:
        await asyncio.sleep(0)
        raise Rejected(ErrorCode.NOT_FOUND, "no such queue")

    def forget_target(self, exchange: str, routing_key: str) -> None:
        """Nothing is remembered."""

    def transaction(self, *, timeout_ms: int = 0, wide_timeout_ms: int = 0) -> "StubTransaction":
        return StubTransaction()


class EndedSession(StubSession):
    """A session that is over, as it is for a proxy that was stalled: nothing that is asked of it happens."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = EndedBatches()

    async def _make(self, name: str) -> None:
        raise _ended()

    def transaction(self, *, timeout_ms: int = 0, wide_timeout_ms: int = 0) -> "StubTransaction":
        return EndedTransaction()


def _ended() -> Rejected:
    return Rejected(ErrorCode.UNKNOWN_SESSION, "the session is over")


class StubSet:
    """Its queues have `deliveries_max` messages for each consumer."""

    set_name = "stub"
    deliveries_max = DELIVERIES_MAX
    lost_sessions = losses_told = 0
    is_telling_loss = False

    def __init__(self) -> None:
        self._consumers: dict[int, Any] = {}
        self._left: dict[int, int] = {}
        self._last = 0

    def is_over(self, _: object) -> bool:
        """There is one epoch."""
        return False

    def consume(
        self,
        port: Any,
        queue: str,
        credit: int,
        is_exclusive: bool,
        *,
        selector: str = "",
        is_browser: bool = False,
        after: QueuePosition | None = None,
    ) -> int:
        self._last += 1
        self._consumers[self._last] = port
        self._left[self._last] = self.deliveries_max
        return self._last

    def stop_consuming(self, consumer: int, _first: Sequence[object] = ()) -> None:
        self._consumers.pop(consumer, None)
        self._left.pop(consumer, None)

    def grant(self, consumer: int, credit: int) -> None:
        asyncio.get_running_loop().call_soon(self._deliver, consumer, credit)

    def drain(self, consumer: int) -> None:
        asyncio.get_running_loop().call_soon(self._drained, consumer)

    def _deliver(self, consumer: int, credit: int) -> None:
        port = self._consumers.get(consumer)
        count = min(credit, self._left.get(consumer, 0))
        if port is None or not count:
            return
        first = self.deliveries_max - self._left[consumer]
        self._left[consumer] -= count
        port.deliver("queue", EPOCH, tuple(message_of(first + place) for place in range(count)))

    def _drained(self, consumer: int) -> None:
        if consumer in self._consumers:
            self._consumers[consumer].drained()

    def submit(self, _: Any) -> Confirmation:
        return _done()


def message_of(number: int) -> DeliveredMessage:
    position = QueuePosition(number + 1)
    return DeliveredMessage(position, b"\x00\x53\x70\x45\x00\x53\x75\xa0\x28", BODY, 0, 0, True)


class StubBatches:
    """Confirms in the next turn of the event loop."""

    def publish(self, *_: Any) -> Confirmation:
        return _done()

    def together(self, exchange: str, routing_key: str) -> int:
        return 1000

    def publish_alone(self, exchange: str, routing_key: str, messages: Sequence[Any]) -> Confirmation:
        return self.publish(exchange, routing_key, messages, None)

    def settle(self, *_: Any) -> Confirmation:
        return _done()

    def flush(self) -> None:
        """Nothing waits."""


class StubTransaction:
    """Commits."""

    def __init__(self) -> None:
        self.state = TransactionState.OPEN

    async def publish(self, routing_key: str, messages: Sequence[Any], *, exchange: str = "") -> Confirmation:
        await asyncio.sleep(0)
        return _done()

    async def accept_deliveries(self, *_: Any) -> Confirmation:
        await asyncio.sleep(0)
        return _done()

    async def commit(self) -> None:
        await asyncio.sleep(0)
        self.state = TransactionState.COMMITTED

    async def rollback(self) -> None:
        await asyncio.sleep(0)
        self.state = TransactionState.ROLLED_BACK


class EndedBatches(StubBatches):
    """Refuses in the next turn of the event loop."""

    def publish(self, *_: Any) -> Confirmation:
        future: Confirmation = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, _ended())
        return future


class EndedTransaction(StubTransaction):
    """Its begin was never sent."""

    async def commit(self) -> None:
        raise _ended()

    async def rollback(self) -> None:
        raise _ended()
