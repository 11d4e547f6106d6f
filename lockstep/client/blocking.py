"""The client for programs without an event loop: the same words, and calls that return when they are done.

Law: one background thread runs one event loop for all clients of the process; every call is the asyncio client's, run there.
Calls may come from any thread. Whoever is interrupted in a call, by an exception of a signal's handler, ends it, and what it has
taken all the same is put back. A process that is forked has its own thread, and can do nothing with the clients of the other one.
Nothing waits for a thread that cannot answer: what is called when it has ended, or in it, is refused.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import uvloop

from lockstep.client import client as asynchronous
from lockstep.client import consumer as asynchronous_consumer
from lockstep.client import distributed_transaction
from lockstep.client import session as asynchronous_session
from lockstep.client import transaction as asynchronous_transaction
from lockstep.client.administration import ClusterStatus
from lockstep.client.outcome import Outcome
from lockstep.client.outgoing import Headers, Outgoing, listed
from lockstep.client.session_settings import SessionSettings
from lockstep.client.transaction_state import TransactionState
from lockstep.core.commands import OutgoingMessage, QueueOptions
from lockstep.core.deaths import Deaths
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import QueuePosition
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.server_messages import (
    DeliveredMessage,
    Description,
)
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid

_Result = TypeVar("_Result")


class _Loop:
    """The background thread; started by the first client, ended with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.is_elsewhere = False
        """Its thread is one of the process that this one was forked from."""
        self._is_stopped = False

    def run(
        self, coroutine: Coroutine[Any, Any, _Result], put_back: Callable[[_Result], object] | None = None
    ) -> _Result:
        """Runs it there and waits for its result. Raises `Rejected` (ILLEGAL_STATE) if the thread is another process's or this
        one, or has ended.

        Being interrupted cancels it; `put_back` is called there with a result that came all the same.
        """
        if why := self._why_not():
            coroutine.close()
            raise Rejected(ErrorCode.ILLEGAL_STATE, why)
        call: _Call[_Result] | None = None
        try:
            call = _Call(self._running(), coroutine, put_back)
            return call.answer.result()
        except BaseException:
            if call is not None:
                call.give_up()
            raise
        finally:
            call = None  # It has the error, and the error this frame.

    def call(self, call: Callable[[], _Result]) -> _Result:
        """Runs a plain function there."""

        async def called() -> _Result:
            return call()

        return self.run(called())

    def end(self, ending: Coroutine[Any, Any, None]) -> None:
        """As `run`, for the end of something; in the thread itself, where the collector runs finalizers too, it is only begun."""
        if self._is_here and not self.is_elsewhere:
            _Call(self._running(), ending, None)
        else:
            self.run(ending)

    @property
    def _is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _why_not(self) -> str:
        """Why nothing can be run and waited for; "": it can."""
        if self.is_elsewhere:
            return "it was made in the process that this one was forked from: connect here"
        if self._is_stopped:
            return "the process ends, and its clients have ended already: close them earlier"
        if self._is_here:
            return "the call is in the thread that would do it, as from a finalizer: it would wait for itself"
        return ""

    def leave(self) -> None:
        """In a child of the process: the thread was not copied, and its sockets are the other process's."""
        # The lock may have been copied as it was held.
        self._lock = threading.Lock()
        self.is_elsewhere = self._loop is not None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="lockstep-client", daemon=True)
                self._thread.start()
                atexit.register(self._stop)
            return self._loop

    def _stop(self) -> None:
        if self._loop is not None and self._thread is not None and not self.is_elsewhere:
            self._is_stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=1.0)


class _Call(Generic[_Result]):
    """One call, until its caller has what came of it, or does not wait any more. All but `give_up` runs on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, _Result],
        put_back: Callable[[_Result], object] | None,
    ) -> None:
        self.answer: Future[_Result] = Future()
        self._loop = loop
        self._put_back = put_back
        self._task: asyncio.Task[_Result] | None = None
        self._is_given_up = False
        loop.call_soon_threadsafe(self._begin, coroutine)

    def give_up(self) -> None:
        """Its caller does not wait any more, and may have missed what came of it."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self, coroutine: Coroutine[Any, Any, _Result]) -> None:
        self._task = asyncio.ensure_future(coroutine)
        self._task.add_done_callback(self._done)

    def _cancel(self) -> None:
        self._is_given_up = True
        if self._task is not None and not self._task.cancel():
            self._done(self._task)

    def _done(self, task: asyncio.Task[_Result]) -> None:
        if task.cancelled():
            self.answer.cancel()
        elif self._is_given_up:
            put_back, self._put_back = self._put_back, None
            if task.exception() is None and put_back is not None:
                put_back(task.result())
        elif (error := task.exception()) is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())


_loop = _Loop()
_left: list[_Loop] = []
"""Of the processes that this one was forked from: not to be taken apart, for their sockets are those processes'."""


def _forked() -> None:
    global _loop
    _loop.leave()
    if _loop.is_elsewhere:
        _left.append(_loop)
        _loop = _Loop()


os.register_at_fork(after_in_child=_forked)


def connect(addresses: str | Sequence[str], *, settings: SessionSettings | None = None) -> "Client":
    """As `lockstep.connect`."""
    connecting = asynchronous.connect(addresses, settings=settings)
    return Client(_loop.run(connecting, lambda client: asyncio.ensure_future(client.close())))


class _OnLoop:
    """What lives on the event loop."""

    def __init__(self) -> None:
        self._loop = _loop


class _Closing(_OnLoop):
    """What ends with its `with` block."""

    def close(self) -> None:
        """Returns when it has ended; in the clients' own thread, as a finalizer, at once. Does nothing in a process that is
        forked: it is the other one's still."""
        if not self._loop.is_elsewhere:
            self._close()

    def _close(self) -> None:
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
        super().__init__()
        self._inner = inner

    def _close(self) -> None:
        self._loop.end(self._inner.close())

    def session(self) -> "Session":
        return Session(self._loop.call(self._inner.session))

    def get_outcome(self, transaction_id: str, *, fence: bool = False) -> Outcome:
        return self._loop.run(self._inner.get_outcome(transaction_id, fence=fence))

    def status(self, *, with_state_hash: bool = False) -> ClusterStatus:
        return self._loop.run(self._inner.administration.status(with_state_hash=with_state_hash))


class Session(_Closing):
    """As `lockstep.client.Session`."""

    def __init__(self, inner: asynchronous_session.Session) -> None:
        super().__init__()
        self._inner = inner

    def _close(self) -> None:
        self._loop.end(self._inner.close())

    def declare_queue(self, name: str, options: QueueOptions | None = None, *, set_name: str = "") -> int:
        return self._loop.run(self._inner.declare_queue(name, options, set_name=set_name))

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return self._loop.run(self._inner.delete_queue(name, if_unused=if_unused, if_empty=if_empty))

    def purge_queue(self, name: str) -> int:
        return self._loop.run(self._inner.purge_queue(name))

    def declare_exchange(
        self, name: str, kind: str = "direct", *, durable: bool = True, set_name: str = ""
    ) -> int:
        return self._loop.run(self._inner.declare_exchange(name, kind, durable=durable, set_name=set_name))

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._loop.run(self._inner.delete_exchange(name, if_unused=if_unused))

    def bind(self, exchange: str, queue: str, key: str = "", arguments: Headers = ()) -> None:
        self._loop.run(self._inner.bind(exchange, queue, key, arguments))

    def unbind(self, exchange: str, queue: str, key: str = "", arguments: Headers = ()) -> None:
        self._loop.run(self._inner.unbind(exchange, queue, key, arguments))

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
        priority: int = PRIORITY_DEFAULT,
    ) -> None:
        self._loop.run(
            self._inner.publish(
                routing_key,
                _listed(messages),
                exchange=exchange,
                properties=properties,
                durable=durable,
                ttl_ms=ttl_ms,
                headers=headers,
                priority=priority,
            )
        )

    def consume(
        self, queue: str, *, credit: int = 100, exclusive: bool = False, selector: str = ""
    ) -> "Consumer":
        opening = self._inner.consume(queue, credit=credit, exclusive=exclusive, selector=selector)
        return Consumer(self._loop.run(opening, lambda consumer: asyncio.ensure_future(consumer.close())))

    def browse(self, queue: str, *, after: int = 0, limit: int | None = None) -> Iterator[DeliveredMessage]:
        messages = self._inner.browse(queue, after=after, limit=limit)

        async def next_message() -> DeliveredMessage | None:
            return await anext(messages, None)

        while (message := self._loop.run(next_message())) is not None:
            yield message

    def transaction(self, *, timeout_ms: int = 0) -> "Transaction":
        return Transaction(self._inner.transaction(timeout_ms=timeout_ms))

    def distributed_transaction(self, *, timeout_ms: int = 0) -> "DistributedTransaction":
        return DistributedTransaction(self._inner.distributed_transaction(timeout_ms=timeout_ms))

    def describe(self, set_name: str) -> Description:
        return self._loop.run(self._inner.describe(set_name))


class Message(_OnLoop):
    """As `lockstep.client.Message`; each call returns when the message is settled for good."""

    def __init__(self, inner: asynchronous_consumer.Message) -> None:
        super().__init__()
        self.inner = inner
        self.queue: str = inner.queue
        self.body: bytes = inner.body
        self.properties: bytes = inner.properties
        self.position: QueuePosition = inner.position
        self.delivery_count: int = inner.delivery_count
        self.deaths: Deaths = inner.deaths
        self.annotations: bytes = inner.annotations
        self.priority: int = inner.priority

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def is_void(self) -> bool:
        """Its epoch or session is over: the queue has it again."""
        return self.inner.is_void

    def accept(self) -> None:
        self._settle(self.inner.accept)

    def release(self) -> None:
        self._settle(self.inner.release)

    def fail(self) -> None:
        self._settle(self.inner.fail)

    def reject(self) -> None:
        self._settle(self.inner.reject)

    def _settle(self, settle: "Callable[[], asyncio.Future[int]]") -> None:
        async def settled() -> None:
            await settle()

        self._loop.run(settled())


class Consumer(_Closing):
    """As `lockstep.client.Consumer`."""

    def __init__(self, inner: asynchronous_consumer.Consumer) -> None:
        super().__init__()
        self._inner = inner

    def _close(self) -> None:
        self._loop.end(self._inner.close())

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self._loop.run(self._inner.__anext__(), self._inner.put_back)
            except StopAsyncIteration:
                return
            yield Message(message)

    def next(self, timeout_seconds: float) -> Message | None:
        """The next message, or None when none came in time."""

        def put_back(taken: asynchronous_consumer.Message | None) -> None:
            if taken is not None:
                self._inner.put_back(taken)

        message = self._loop.run(self._inner.next(timeout_seconds), put_back)
        return None if message is None else Message(message)


class Transaction(_OnLoop):
    """As `lockstep.client.Transaction`."""

    def __init__(
        self, inner: asynchronous_transaction.Transaction | distributed_transaction.DistributedTransaction
    ) -> None:
        super().__init__()
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
        priority: int = PRIORITY_DEFAULT,
    ) -> None:
        listed = _listed(messages)

        async def published() -> None:
            await self._inner.publish(
                routing_key,
                listed,
                exchange=exchange,
                properties=properties,
                durable=durable,
                ttl_ms=ttl_ms,
                headers=headers,
                priority=priority,
            )

        self._loop.run(published())

    def accept(self, *messages: Message) -> None:
        self._loop.run(self._inner.accept(*(message.inner for message in messages)))

    def commit(self) -> None:
        self._loop.run(self._inner.commit())

    def rollback(self) -> None:
        self._loop.run(self._inner.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self._loop.is_elsewhere:
            self._loop.run(self._inner.__aexit__(kind, error, trace))


class PostgresConnection(Protocol):
    """What it needs of a connection, such as psycopg's Connection that is not in autocommit mode."""

    def execute(self, query: bytes, /) -> object: ...
    def rollback(self) -> None: ...


class DistributedTransaction(Transaction):
    """As `lockstep.client.DistributedTransaction`."""

    def __init__(self, inner: distributed_transaction.DistributedTransaction) -> None:
        super().__init__(inner)
        self._distributed = inner

    @property
    def heuristic(self) -> XaStatus:
        """After a commit: whether somebody else than its coordinator has ended participants, such as `HEURMIX`."""
        return self._distributed.heuristic

    def enlist(self, participant: str) -> Xid:
        return self._loop.run(self._distributed.enlist(participant))

    def enlist_postgres(self, connection: PostgresConnection, participant: str) -> None:
        self._loop.run(self._distributed.enlist_postgres(_InThread(connection), participant))


@dataclass(frozen=True, slots=True)
class _InThread:
    """A blocking connection as the transaction wants it: each of its calls in a thread, which the event loop does not wait in."""

    connection: PostgresConnection

    @property
    def autocommit(self) -> bool:
        return bool(getattr(self.connection, "autocommit", False))

    async def execute(self, query: bytes, /) -> object:
        return await asyncio.to_thread(self.connection.execute, query)

    async def rollback(self) -> None:
        await asyncio.to_thread(self.connection.rollback)


def _listed(messages: Outgoing) -> Outgoing:
    """An iterator is read in the thread that it is of; others would wait for it on the event loop."""
    if isinstance(messages, bytes | bytearray | memoryview | OutgoingMessage | list | tuple):
        return messages
    return listed(messages)
