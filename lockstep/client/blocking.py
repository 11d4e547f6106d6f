"""The client for programs without an event loop: the same words, and calls that return when they are done.

Law: one background thread runs one event loop for all clients of the process; every call is the asyncio client's, run there.
Calls may come from any thread.
"""

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import uvloop

from lockstep.client import client as asynchronous
from lockstep.client import consumer as asynchronous_consumer
from lockstep.client import distributed_transaction
from lockstep.client import session as asynchronous_session
from lockstep.client import transaction as asynchronous_transaction
from lockstep.client.administration import ClusterStatus
from lockstep.client.outcome import Outcome
from lockstep.client.outgoing import Headers, Outgoing
from lockstep.client.session_settings import SessionSettings
from lockstep.client.transaction_state import TransactionState
from lockstep.core.commands import QueueOptions
from lockstep.core.ids import QueuePosition
from lockstep.core.server_messages import (
    DeliveredMessage,
    Description,
)
from lockstep.core.xid import Xid

_Result = TypeVar("_Result")


class _Loop:
    """The background thread; started by the first client, ended with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs it there and waits for its result."""
        return self.start(coroutine).result()

    def start(self, coroutine: Coroutine[Any, Any, _Result]) -> "Future[_Result]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._running())

    def call(self, call: Callable[[], _Result]) -> _Result:
        """Runs a plain function there."""

        async def called() -> _Result:
            return call()

        return self.run(called())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="lockstep-client", daemon=True)
                self._thread.start()
                atexit.register(self._stop)
            return self._loop

    def _stop(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=1.0)


_loop = _Loop()


def connect(addresses: str | Sequence[str], *, settings: SessionSettings | None = None) -> "Client":
    """As `lockstep.connect`."""
    return Client(_loop.run(asynchronous.connect(addresses, settings=settings)))


class _Closing:
    """What ends with its `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(_Closing):
    """As `lockstep.client.Client`."""

    def __init__(self, inner: asynchronous.Client) -> None:
        self._inner = inner

    def close(self) -> None:
        _loop.run(self._inner.close())

    def session(self) -> "Session":
        return Session(_loop.call(self._inner.session))

    def get_outcome(self, transaction_id: str, *, fence: bool = False) -> Outcome:
        return _loop.run(self._inner.get_outcome(transaction_id, fence=fence))

    def status(self, *, with_state_hash: bool = False) -> ClusterStatus:
        return _loop.run(self._inner.administration.status(with_state_hash=with_state_hash))


class Session(_Closing):
    """As `lockstep.client.Session`."""

    def __init__(self, inner: asynchronous_session.Session) -> None:
        self._inner = inner

    def close(self) -> None:
        _loop.run(self._inner.close())

    def declare_queue(self, name: str, options: QueueOptions | None = None, *, set_name: str = "") -> int:
        return _loop.run(self._inner.declare_queue(name, options, set_name=set_name))

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return _loop.run(self._inner.delete_queue(name, if_unused=if_unused, if_empty=if_empty))

    def purge_queue(self, name: str) -> int:
        return _loop.run(self._inner.purge_queue(name))

    def declare_exchange(
        self, name: str, kind: str = "direct", *, durable: bool = True, set_name: str = ""
    ) -> int:
        return _loop.run(self._inner.declare_exchange(name, kind, durable=durable, set_name=set_name))

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        _loop.run(self._inner.delete_exchange(name, if_unused=if_unused))

    def bind(self, exchange: str, queue: str, key: str = "", arguments: Headers = ()) -> None:
        _loop.run(self._inner.bind(exchange, queue, key, arguments))

    def unbind(self, exchange: str, queue: str, key: str = "", arguments: Headers = ()) -> None:
        _loop.run(self._inner.unbind(exchange, queue, key, arguments))

    def publish(
        self,
        routing_key: str,
        messages: Outgoing,
        *,
        exchange: str = "",
        properties: bytes = b"",
        durable: bool = True,
        ttl_ms: int = 0,
        headers: Headers = (),
    ) -> None:
        _loop.run(
            self._inner.publish(
                routing_key,
                messages,
                exchange=exchange,
                properties=properties,
                durable=durable,
                ttl_ms=ttl_ms,
                headers=headers,
            )
        )

    def consume(
        self, queue: str, *, credit: int = 100, exclusive: bool = False, selector: str = ""
    ) -> "Consumer":
        return Consumer(
            _loop.run(self._inner.consume(queue, credit=credit, exclusive=exclusive, selector=selector))
        )

    def browse(self, queue: str, *, after: int = 0, limit: int | None = None) -> Iterator[DeliveredMessage]:
        messages = self._inner.browse(queue, after=after, limit=limit)

        async def next_message() -> DeliveredMessage | None:
            return await anext(messages, None)

        while (message := _loop.run(next_message())) is not None:
            yield message

    def transaction(self, *, timeout_ms: int = 0) -> "Transaction":
        return Transaction(self._inner.transaction(timeout_ms=timeout_ms))

    def distributed_transaction(self, *, timeout_ms: int = 0) -> "DistributedTransaction":
        return DistributedTransaction(self._inner.distributed_transaction(timeout_ms=timeout_ms))

    def describe(self, set_name: str) -> Description:
        return _loop.run(self._inner.describe(set_name))


class Message:
    """As `lockstep.client.Message`; each call returns when the message is settled for good."""

    def __init__(self, inner: asynchronous_consumer.Message) -> None:
        self.inner = inner
        self.queue: str = inner.queue
        self.body: bytes = inner.body
        self.properties: bytes = inner.properties
        self.position: QueuePosition = inner.position
        self.delivery_count: int = inner.delivery_count

    def __repr__(self) -> str:
        return repr(self.inner)

    def accept(self) -> None:
        self._settle(self.inner.accept)

    def release(self) -> None:
        self._settle(self.inner.release)

    def fail(self) -> None:
        self._settle(self.inner.fail)

    def reject(self) -> None:
        self._settle(self.inner.reject)

    @staticmethod
    def _settle(settle: "Callable[[], asyncio.Future[int]]") -> None:
        async def settled() -> None:
            await settle()

        _loop.run(settled())


class Consumer(_Closing):
    """As `lockstep.client.Consumer`."""

    def __init__(self, inner: asynchronous_consumer.Consumer) -> None:
        self._inner = inner

    def close(self) -> None:
        _loop.run(self._inner.close())

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                yield Message(_loop.run(self._inner.__anext__()))
            except StopAsyncIteration:
                return

    def next(self, timeout_seconds: float) -> Message | None:
        """The next message, or None when none came in time."""
        message = _loop.run(self._inner.next(timeout_seconds))
        return None if message is None else Message(message)


class Transaction:
    """As `lockstep.client.Transaction`."""

    def __init__(
        self, inner: asynchronous_transaction.Transaction | distributed_transaction.DistributedTransaction
    ) -> None:
        self._inner = inner

    @property
    def id(self) -> str | None:
        return self._inner.id

    @property
    def state(self) -> TransactionState:
        return self._inner.state

    def publish(
        self,
        routing_key: str,
        messages: Outgoing,
        *,
        exchange: str = "",
        properties: bytes = b"",
        durable: bool = True,
        ttl_ms: int = 0,
        headers: Headers = (),
    ) -> None:
        async def published() -> None:
            await self._inner.publish(
                routing_key,
                messages,
                exchange=exchange,
                properties=properties,
                durable=durable,
                ttl_ms=ttl_ms,
                headers=headers,
            )

        _loop.run(published())

    def accept(self, *messages: Message) -> None:
        _loop.run(self._inner.accept(*(message.inner for message in messages)))

    def commit(self) -> None:
        _loop.run(self._inner.commit())

    def rollback(self) -> None:
        _loop.run(self._inner.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _loop.run(self._inner.__aexit__(kind, error, trace))


class PostgresConnection(Protocol):
    """What it needs of a connection, such as psycopg's Connection that is not in autocommit mode."""

    def execute(self, query: bytes, /) -> object: ...
    def rollback(self) -> None: ...


class DistributedTransaction(Transaction):
    """As `lockstep.client.DistributedTransaction`."""

    def __init__(self, inner: distributed_transaction.DistributedTransaction) -> None:
        super().__init__(inner)
        self._distributed = inner

    def enlist(self, participant: str) -> Xid:
        return _loop.run(self._distributed.enlist(participant))

    def enlist_postgres(self, connection: PostgresConnection, participant: str) -> None:
        _loop.run(self._distributed.enlist_postgres(_InThread(connection), participant))


class _InThread:
    """A blocking connection as the transaction wants it: each of its calls in a thread, which the event loop does not wait in."""

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection

    async def execute(self, query: bytes, /) -> object:
        return await asyncio.to_thread(self._connection.execute, query)

    async def rollback(self) -> None:
        await asyncio.to_thread(self._connection.rollback)
