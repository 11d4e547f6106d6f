"""Proton's own Python client, as its documentation has it, with what tests ask of it beside: what a link has received, and
outcomes as they were said.

Law: everything runs on `proton.utils.BlockingConnection` and handlers of `proton.reactor`; every wait has an end.
"""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from proton import (
    Condition,
    Connection,
    Delivery,
    Endpoint,
    Event,
    Link,
    Message,
    Receiver,
    Sender,
    Terminus,
    Timeout,
    Transport,
    symbol,
)
from proton.handlers import MessagingHandler
from proton.reactor import Container, LinkOption
from proton.utils import BlockingConnection, BlockingReceiver, BlockingSender

WAIT_SECONDS = 30.0
"""For what has to happen."""
QUIET_SECONDS = 0.15
"""For what must not."""
CREDIT = 100
_STEP_SECONDS = 0.05


class Received:
    """One message, and its delivery."""

    def __init__(self, message: Message, delivery: Delivery) -> None:
        self.message = message
        self.delivery = delivery

    def __repr__(self) -> str:
        return f"Received({self.body!r}, delivery_count={self.message.delivery_count})"

    @property
    def body(self) -> Any:
        body = self.message.body
        return bytes(body) if isinstance(body, memoryview) else body

    def accept(self) -> None:
        self.settle(Delivery.ACCEPTED)

    def settle(self, state: int | None) -> None:
        """Settles with an outcome, or without one."""
        if state is not None:
            self.delivery.update(state)
        self.delivery.settle()

    def modify(self, *, failed: bool = False, undeliverable: bool = False) -> None:
        self.delivery.local.failed = failed
        self.delivery.local.undeliverable = undeliverable
        self.settle(Delivery.MODIFIED)


class _Link:
    def __init__(
        self, client: "ProtonClient", handler: "_Collecting", made: BlockingSender | BlockingReceiver
    ) -> None:
        self._client = client
        self._handler = handler
        # When it is gone, so is the handler.
        self._made = made

    @property
    def condition(self) -> str | None:
        """Why the other side ended it."""
        return self._handler.condition.name if self._handler.condition is not None else None

    @property
    def is_ended(self) -> bool:
        """By the other side."""
        return self._handler.is_ended


class Receiving(_Link):
    """A receiving link; it accepts nothing by itself."""

    def __init__(
        self, client: "ProtonClient", handler: "_Collecting", made: BlockingSender | BlockingReceiver
    ) -> None:
        super().__init__(client, handler, made)
        assert isinstance(made.link, Receiver)
        self.link = made.link

    @property
    def address(self) -> str:
        """Of its source, as the other side says it."""
        return self.link.remote_source.address or ""

    def take(self, count: int = 1) -> list[Received]:
        """The next messages; fails if they do not come."""
        self._client.until(lambda: len(self._handler.received) >= count, f"{count} messages come")
        taken = self._handler.received[:count]
        del self._handler.received[:count]
        return taken

    def take_one(self) -> Received:
        return self.take(1)[0]

    def take_nothing(self) -> None:
        """Waits a moment for nothing to come."""
        self._client.pause(QUIET_SECONDS)
        assert self._handler.received == []

    def has(self) -> int:
        """Messages that have come and were not taken."""
        return len(self._handler.received)

    def drain(self) -> None:
        """Asks for what the credit allows and is there; waits until the rest of the credit is back."""
        self.link.drain(0)
        self._client.until(lambda: self.link.credit == 0, "the credit is used or given back")
        self.link.drain_mode = False

    def close(self) -> None:
        self.link.close()
        self._client.until(lambda: bool(self.link.state & Endpoint.REMOTE_CLOSED), "the link is closed")


class Sending(_Link):
    """A sending link."""

    def __init__(
        self, client: "ProtonClient", handler: "_Collecting", made: BlockingSender | BlockingReceiver
    ) -> None:
        super().__init__(client, handler, made)
        assert isinstance(made.link, Sender)
        self.link = made.link

    @property
    def address(self) -> str:
        """Of its target, as the other side says it."""
        return self.link.remote_target.address or ""

    def start(self, message: Message | bytes | str) -> Delivery:
        """Sends when there is credit, and waits for nothing else."""
        self._client.until(lambda: self.link.credit > 0, "credit")
        return sent(self.link, message if isinstance(message, Message) else Message(body=message))

    def send(self, *messages: Message | bytes | str) -> None:
        """Sends; returns when all are accepted, and fails if one is not."""
        for delivery in [self.start(message) for message in messages]:
            assert self.outcome(delivery) == Delivery.ACCEPTED

    def outcome(self, delivery: Delivery) -> int:
        """What became of a message, when it is settled."""
        self._client.until(lambda: delivery.settled, "the message is settled")
        state = delivery.remote_state
        return int(state)

    def refusal(self, message: Message | bytes | str) -> str:
        """The condition with which a message is rejected."""
        delivery = self.start(message)
        assert self.outcome(delivery) == Delivery.REJECTED
        condition = delivery.remote.condition
        assert condition is not None
        return condition.name

    def close(self) -> None:
        self.link.close()
        self._client.until(lambda: bool(self.link.state & Endpoint.REMOTE_CLOSED), "the link is closed")


def sent(link: Sender, message: Message) -> Delivery:
    """Sends, and waits for nothing."""
    delivery = link.send(message)
    assert isinstance(delivery, Delivery)
    return delivery


class _Collecting(MessagingHandler):
    def __init__(self) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self.received: list[Received] = []
        self.condition: Condition | None = None
        self.is_ended = False

    def on_message(self, event: Event) -> None:
        assert event.delivery is not None
        self.received.append(Received(event.message, event.delivery))

    def on_link_error(self, event: Event) -> None:
        self.on_link_closing(event)

    def on_link_closing(self, event: Event) -> None:
        assert event.link is not None
        self.is_ended = True
        self.condition = event.link.remote_condition

    def on_link_remote_detach(self, event: Event) -> None:
        self.on_link_closing(event)


class Capabilities(LinkOption):
    """Capabilities of the node that a link is for, such as `queue` and `topic`."""

    def __init__(self, *names: str) -> None:
        self._names = [symbol(name) for name in names]

    def apply(self, link: Link) -> None:
        terminus = link.source if link.is_receiver else link.target
        terminus.capabilities.put_object(self._names[0])


class DynamicTarget(LinkOption):
    """The other side makes the node that a sender sends to."""

    def apply(self, link: Link) -> None:
        link.target.dynamic = True
        link.target.type = Terminus.TARGET


class SettledBySecond(LinkOption):
    """The receiver settles when the sender has."""

    def apply(self, link: Link) -> None:
        link.rcv_settle_mode = Link.RCV_SECOND


class ProtonClient:
    """One connection, as `with`; its container's id is `container`, made up if there is none."""

    def __init__(self, port: int, *, container: str = "", scheme: str = "amqp", **options: Any) -> None:
        host = "127.0.0.1" if scheme == "amqp" else "localhost"
        options.setdefault("allowed_mechs", "ANONYMOUS")
        made = Container(container_id=container) if container else Container()
        self.connection = BlockingConnection(
            f"{scheme}://{host}:{port}", timeout=WAIT_SECONDS, container=made, **options
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.connection.disconnected:
            self.connection.close()

    @property
    def conn(self) -> Connection:
        assert self.connection.conn is not None, "it is not closed"
        return self.connection.conn

    @property
    def transport(self) -> Transport:
        assert self.conn.transport is not None, "it is not closed"
        return self.conn.transport

    def lose(self) -> None:
        """Cuts the wire without a word of AMQP."""
        transport = self.transport
        transport.close_tail()
        transport.close_head()
        self.connection.disconnected = True
        self.connection.closing = True
        while self.connection.container.process() and transport._selectable is not None:
            pass

    def until(self, condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Processes until something holds; fails in time. A connection that ends meanwhile raises what Proton raises."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                # In short steps: Proton looks at a condition only when something comes.
                return self.connection.wait(condition, timeout=_STEP_SECONDS)
            except Timeout:
                assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"

    def pause(self, seconds: float) -> None:
        """Processes for so long."""
        deadline = time.monotonic() + seconds
        container = self.connection.container
        before, container.timeout = container.timeout, _STEP_SECONDS
        while time.monotonic() < deadline and not self.connection.disconnected:
            container.process()
        container.timeout = before

    def sender(self, address: str | None, *options: LinkOption, name: str | None = None) -> Sending:
        """Raises Proton's `LinkException` if it is refused."""
        handler = _Collecting()
        made = self.connection.create_sender(
            address, handler=handler, name=name or str(uuid4()), options=list(options)
        )
        return Sending(self, handler, made)

    def receiver(
        self,
        address: str | None = None,
        *options: LinkOption,
        credit: int = CREDIT,
        name: str | None = None,
        dynamic: bool = False,
    ) -> Receiving:
        """Raises Proton's `LinkException` if it is refused."""
        handler = _Collecting()
        made = self.connection.create_receiver(
            address,
            credit=credit,
            handler=handler,
            name=name or str(uuid4()),
            dynamic=dynamic,
            options=list(options),
        )
        return Receiving(self, handler, made)


def bodies(received: Sequence[Received]) -> list[Any]:
    return [one.body for one in received]
