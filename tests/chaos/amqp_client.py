"""An AMQP 1.0 client for tests: Proton's engine under asyncio, with senders, receivers and transactions of futures.

Law: it says nothing by itself. A connection that is lost, or silent beyond its idle time-out, fails whatever waits for it with
`ConnectionLost`: what was under way then has an outcome that nobody has heard.
"""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeVar, cast

from proton import (
    Collector,
    Condition,
    Connection,
    Delivery,
    Described,
    Endpoint,
    Event,
    Link,
    Message,
    Receiver,
    Sender,
    Terminus,
    Transport,
    symbol,
    ulong,
)

IDLE_SECONDS = 3.0
"""Without a sign of life for so long, a connection is given up: its proxy hangs."""
OPEN_SECONDS = 3.0
"""For a connection to be opened: a proxy that hangs still has a port that takes connections."""
ATTACH_SECONDS = 15.0
RECONNECT_SECONDS = 0.1
TICK_SECONDS = 0.25
ACCEPTED = 0x24
_DECLARED = 0x33
_TRANSACTIONAL = 0x34


_Result = TypeVar("_Result")
_Link = TypeVar("_Link", bound="AmqpLink")


class ConnectionLost(Exception):
    """The connection is gone, with everything on it."""


class Refused(Exception):
    """It did not happen: rejected, or its link was ended by the peer."""

    def __init__(self, what: str, condition: Condition | None) -> None:
        super().__init__(f"{what}: {condition}")
        self.name = condition.name if condition is not None else what
        """Of the condition."""


class Delivered(NamedTuple):
    """A message that arrived."""

    delivery: Delivery
    body: bytes


class AmqpClient(asyncio.Protocol):
    """One connection, from `connect` to `close` or its loss; used from one event loop."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the connection is over, with what ended it."""
        self._engine = Connection()
        self._collector = Collector()
        self._engine.collect(self._collector)
        self._transport = Transport(Transport.CLIENT)
        self._transport.sasl().allowed_mechs("ANONYMOUS")
        self._transport.idle_timeout = IDLE_SECONDS
        self._transport.bind(self._engine)
        self._wire: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._links: dict[Link, AmqpLink] = {}
        self._session = self._engine.session()
        self._is_writing = False
        self._numbers = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(cls, address: str, container: str) -> Self:
        """Returns when the connection is open. Raises `ConnectionLost`."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        client = cls()
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await loop.create_connection(lambda: client, host, int(port))
                client._engine.container = container
                client._engine.open()
                client._session.open()
                client.wrote()
                client._tick()
                await client.unless_lost(client._opened)
        except (OSError, TimeoutError) as error:
            client.abort(f"{address}: {error!r}")
            raise ConnectionLost(f"{address}: {error!r}") from error
        return client

    async def close(self) -> None:
        """Closes as AMQP does, and waits a moment for the answer."""
        if not self.lost.done():
            self._engine.close()
            self.wrote()
            await asyncio.wait([self.lost], timeout=1.0)
        self.abort("closed")

    def abort(self, why: str) -> None:
        """Ends it on this side, as if the process were gone."""
        if self._wire is not None:
            self._wire.abort()
        self._lose(why)

    # --- links ---

    async def sender(self, address: str) -> "SendingLink":
        """To a queue. Raises `ConnectionLost`, `Refused`."""
        link = self._session.sender(f"to {address} {next(self._numbers)}")
        link.target.address = address
        return await self._attach(SendingLink(self, link))

    async def receiver(self, address: str, credit: int) -> "ReceivingLink":
        """From a queue. Raises `ConnectionLost`, `Refused`."""
        link = self._session.receiver(f"from {address} {next(self._numbers)}")
        link.source.address = address
        attached = await self._attach(ReceivingLink(self, link))
        attached.grant(credit)
        return attached

    async def controller(self, *, is_symbolic: bool) -> "Controller":
        """Of transactions; `is_symbolic`: descriptors are symbols, else numbers. Raises `ConnectionLost`, `Refused`."""
        link = self._session.sender(f"transactions {next(self._numbers)}")
        link.target.type = Terminus.COORDINATOR
        link.target.capabilities.put_object(symbol("amqp:local-transactions"))
        return await self._attach(Controller(self, link, is_symbolic=is_symbolic))

    async def _attach(self, link: "_Link") -> "_Link":
        self._links[link.link] = link
        link.link.open()
        self.wrote()
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                await self.unless_lost(link.opened)
        except TimeoutError:
            self.abort(f"{link.link.name}: not attached in {ATTACH_SECONDS:g} s")
            raise AssertionError(f"{link.link.name}: not attached in {ATTACH_SECONDS:g} s") from None
        return link

    async def unless_lost(self, waiting: "asyncio.Future[_Result]") -> "_Result":
        """What a future comes to; raises `ConnectionLost` if the connection is over before."""
        both: list[asyncio.Future[Any]] = [waiting, self.lost]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        raise ConnectionLost(self.lost.result())

    # --- bytes (asyncio.Protocol) ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(f"the peer is gone: {error!r}")

    def data_received(self, data: bytes) -> None:
        while data and not self.lost.done():
            capacity = self._transport.capacity()
            if capacity <= 0:
                self.abort("the engine takes no more")
                return
            self._transport.push(data[:capacity])
            data = data[capacity:]
            self._handle_events()
        self._write()

    def wrote(self) -> None:
        """Something is to be said, at the end of this turn of the event loop."""
        if not self._is_writing:
            self._is_writing = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._is_writing = False
        if self.lost.done() or self._wire is None:
            return
        while (pending := self._transport.pending()) > 0:
            self._wire.write(self._transport.peek(pending) or b"")
            self._transport.pop(pending)
        if self._transport.closed:
            self.abort(f"closed: {self._transport.condition or self._engine.remote_condition}")

    def _tick(self) -> None:
        if self.lost.done():
            return
        self._transport.tick(time.monotonic())
        self._handle_events()
        self._write()
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _lose(self, why: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(why)
        if self._timer is not None:
            self._timer.cancel()
        for link in self._links.values():
            link.end(ConnectionLost(why))

    # --- events of the engine ---

    def _handle_events(self) -> None:
        while (event := self._collector.peek()) is not None:
            self._handle(event)
            self._collector.pop()

    def _handle(self, event: Event) -> None:
        at: Any = event.link
        match event.type:
            case Event.CONNECTION_REMOTE_OPEN:
                if not self._opened.done():
                    self._opened.set_result(None)
            case Event.CONNECTION_REMOTE_CLOSE:
                self._engine.close()
                self.wrote()
            case Event.TRANSPORT_ERROR:
                self.abort(f"{self._transport.condition}")
            case Event.LINK_REMOTE_OPEN | Event.LINK_FLOW:
                if (link := self._links.get(at)) is not None:
                    link.changed()
            case Event.LINK_REMOTE_CLOSE | Event.LINK_REMOTE_DETACH:
                if (link := self._links.pop(at, None)) is not None:
                    link.end(Refused("the link was ended", link.link.remote_condition))
                    link.link.close()
                    self.wrote()
            case Event.DELIVERY:
                if (link := self._links.get(at)) is not None and event.delivery is not None:
                    link.happened(event.delivery)


async def connect_to_any(addresses: list[str], container: str) -> AmqpClient:
    """To the first that answers. Turns `addresses`, which are one client's own: the next call begins with another one."""
    while True:
        addresses.append(addresses.pop(0))
        try:
            return await AmqpClient.connect(addresses[0], container)
        except ConnectionLost:
            await asyncio.sleep(RECONNECT_SECONDS)


class AmqpLink:
    """Lives as long as its connection; driven by it."""

    def __init__(self, client: AmqpClient, link: Link) -> None:
        self.link = link
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: ConnectionLost | Refused | None = None
        """Why there is no more to it."""
        self._client = client
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Attached, or its credit changed."""
        if not self.opened.done() and self.link.state & Endpoint.REMOTE_ACTIVE:
            self.opened.set_result(None)
        self._wake()

    def end(self, error: ConnectionLost | Refused) -> None:
        self.ended = self.ended or error
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()
        self._wake()

    def happened(self, delivery: Delivery) -> None:
        """A delivery came, or something became of one."""
        raise NotImplementedError

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if self.ended is not None:
                raise self.ended
            await self._changed.wait()


class SendingLink(AmqpLink):
    """Messages out; each has a future of its outcome: `ACCEPTED`, or what else the transaction's state says."""

    def __init__(self, client: AmqpClient, link: Sender) -> None:
        super().__init__(client, link)
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)

    async def send(self, message: Message, transaction: bytes | None = None) -> "asyncio.Future[Any]":
        """Sends as soon as there is credit. The future raises `Refused`, `ConnectionLost`; so does this."""
        await self._until(lambda: self.ended is None and self.link.credit > 0)
        return self.send_now(message, transaction)

    def send_now(self, message: Message, transaction: bytes | None = None) -> "asyncio.Future[Any]":
        """As `send`, whatever the credit: what is too much waits in the engine."""
        if self.ended is not None:
            raise self.ended
        tag = str(next(self._numbers))
        delivery = self.link.delivery(tag)
        if transaction is not None:
            fields: list[Any] = [transaction]
            delivery.local.data = fields
            delivery.update(_TRANSACTIONAL)
        self.link.stream(message.encode())
        self.link.advance()
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(_retrieve)
        self._waiting[tag] = outcome
        self._client.wrote()
        return outcome

    def happened(self, delivery: Delivery) -> None:
        state = delivery.remote_state
        outcome = self._waiting.get(delivery.tag)
        if outcome is None or not (state or delivery.settled):
            return
        del self._waiting[delivery.tag]
        data: Any = delivery.remote.data
        if state == ACCEPTED:
            outcome.set_result(ACCEPTED)
        elif state == _DECLARED:
            outcome.set_result(bytes(data[0]))
        elif state == _TRANSACTIONAL:
            inner: Any = data[1] if len(data) > 1 else None
            if isinstance(inner, Described) and inner.descriptor == ACCEPTED:
                outcome.set_result(ACCEPTED)
            else:
                outcome.set_exception(Refused(f"in the transaction: {inner}", None))
        else:
            outcome.set_exception(Refused(f"{state!r}", delivery.remote.condition))
        delivery.settle()
        self._client.wrote()

    def end(self, error: ConnectionLost | Refused) -> None:
        super().end(error)
        # A link that is ended says nothing of what was under way on it.
        lost = ConnectionLost(str(error))
        waiting, self._waiting = self._waiting, {}
        for outcome in waiting.values():
            if not outcome.done():
                outcome.set_exception(lost)


class ReceivingLink(AmqpLink):
    """Messages in, in order; they stay unsettled until something is said of them."""

    def __init__(self, client: AmqpClient, link: Receiver) -> None:
        super().__init__(client, link)
        self._arrived: deque[Delivered] = deque()
        self._settling: dict[str, asyncio.Future[bool]] = {}

    def grant(self, count: int) -> None:
        if self.ended is None:
            self.link.flow(count)
            self._client.wrote()

    async def take(self, count: int, seconds: float) -> list[Delivered]:
        """Up to `count` messages: all that are here, as soon as one is; none if none comes in time. Raises as `ended`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._until(lambda: bool(self._arrived))
        return [self._arrived.popleft() for _ in range(min(count, len(self._arrived)))]

    def retire(self, taken: Delivered, transaction: bytes, *, is_settled: bool) -> None:
        """Accepts it in a transaction; `is_settled`: and lets go of it at once."""
        delivery = taken.delivery
        fields: list[Any] = [transaction, Described(ulong(ACCEPTED), [])]
        delivery.local.data = fields
        delivery.update(_TRANSACTIONAL)
        if is_settled:
            delivery.settle()
        self._client.wrote()

    def accept(self, taken: Delivered) -> None:
        """Accepts and settles it: nobody will answer."""
        taken.delivery.update(Delivery.ACCEPTED)
        taken.delivery.settle()
        self._client.wrote()

    def accept_and_hear(self, taken: Delivered) -> "asyncio.Future[bool]":
        """Accepts it, and lets the peer settle: the future says whether it did as accepted. It raises `ConnectionLost`."""
        heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heard.add_done_callback(_retrieve)
        self._settling[taken.delivery.tag] = heard
        taken.delivery.update(Delivery.ACCEPTED)
        self._client.wrote()
        return heard

    def happened(self, delivery: Delivery) -> None:
        if delivery.readable and not delivery.partial:
            data = self.link.recv(delivery.pending)
            self.link.advance()
            message = Message()
            message.decode(data)
            body: Any = message.body
            self._arrived.append(Delivered(delivery, bytes(body)))
            self._wake()
        elif delivery.settled:
            heard = self._settling.pop(delivery.tag, None)
            if heard is not None and not heard.done():
                heard.set_result(delivery.remote_state == ACCEPTED)
            delivery.settle()

    def end(self, error: ConnectionLost | Refused) -> None:
        super().end(error)
        self._arrived.clear()
        settling, self._settling = self._settling, {}
        for heard in settling.values():
            if not heard.done():
                heard.set_exception(ConnectionLost(str(error)))


class Controller(SendingLink):
    """Transactions: declare and discharge."""

    def __init__(self, client: AmqpClient, link: Sender, *, is_symbolic: bool) -> None:
        super().__init__(client, link)
        self._declare = symbol("amqp:declare:list") if is_symbolic else ulong(0x31)
        self._discharge = symbol("amqp:discharge:list") if is_symbolic else ulong(0x32)

    def declare(self) -> "asyncio.Future[bytes]":
        """The future is the transaction's name."""
        return self.send_now(Message(body=Described(self._declare, [None])))

    def discharge(self, transaction: bytes, *, is_failed: bool) -> "asyncio.Future[int]":
        """The future raises `Refused`: rolled back for certain; `ConnectionLost`: nobody has heard."""
        return self.send_now(Message(body=Described(self._discharge, [transaction, is_failed])))


def _retrieve(outcome: "asyncio.Future[Any]") -> None:
    """Nobody needs to wait for it."""
    if not outcome.cancelled():
        outcome.exception()
