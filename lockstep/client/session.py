"""A session: what one client does, over any number of resource sets, with everything in order and at most once.

Law: names decide. A queue or exchange belongs to one resource set, which the directory tells; in each set the session keeps one
stream and one numbering, which survive failovers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from lockstep.client.command_batches import CommandBatches, Confirmation
from lockstep.client.consumer import Consumer
from lockstep.client.coordinators import Coordinators
from lockstep.client.directory import Directory, Kind, Name, Place
from lockstep.client.distributed_transaction import DistributedTransaction
from lockstep.client.outcome import Outcome
from lockstep.client.outgoing import Headers, Outgoing, outgoing
from lockstep.client.resource_manager import ResourceManager
from lockstep.client.session_events import Learn
from lockstep.client.set_session import SetSession, Voided
from lockstep.client.traced_transaction import Generations, TracedTransaction
from lockstep.client.transaction import Transaction
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import QueuePosition, SetName
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.runtime.tracing import tracing

_ELSEWHERE = {ErrorCode.NOT_FOUND, ErrorCode.ALREADY_EXISTS, ErrorCode.OTHER_SET}
"""What may be due to a name that has moved to another set."""
LOOK_AGAIN_SECONDS = 1.0
"""After so long without a primary a new session may know none of the brokers that its set has now; a failover takes less."""
BROWSE_PAGE = 500
"""Messages of one browse answer."""
DESCRIBE_PAGE = 1000
"""Queues and exchanges of one answer."""


class Session:
    """Lives from `Client.session` to `close`; used from one event loop."""

    def __init__(
        self,
        directory: Directory,
        open_in: Callable[[Place, Voided | None], SetSession],
        ask_outcome: "Callable[[str], asyncio.Future[Outcome]]",
        coordinators: Coordinators,
        in_order: bool = True,
        voided: Voided | None = None,
    ) -> None:
        self._in_order = in_order
        self._coordinators = coordinators
        self._directory = directory
        self._open_in = open_in
        self._voided = voided
        self._ask_outcome = ask_outcome
        self._tracing = tracing()
        self._generations = Generations(directory)
        self._sets: dict[SetName, tuple[SetSession, CommandBatches]] = {}
        self._is_closed = False
        self._looking: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for what is in flight, then ends the session in every set; its open transactions are rolled back."""
        self._is_closed = True
        for _, batches in self._sets.values():
            batches.flush()
        await asyncio.gather(*(session.close() for session, _ in self._sets.values()))

    # --- wiring ---

    async def declare_queue(
        self, name: str, options: c.QueueOptions | None = None, *, set_name: str = ""
    ) -> int:
        """Declares a queue, in `set_name` if it is new (which may be left out if there is one set only); returns its id."""
        command = c.DeclareQueueCommand(0, name, options or c.QueueOptions())
        return await self._declare((Kind.KIND_QUEUE, name), set_name, command)

    async def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Deletes a queue; returns how many messages were in it."""
        command = c.DeleteQueueCommand(0, name, if_unused, if_empty)
        _, deleted = await self._run([(Kind.KIND_QUEUE, name)], command)
        self._directory.forget(Kind.KIND_QUEUE, name)
        return deleted

    async def purge_queue(self, name: str) -> int:
        """Removes all messages that nobody holds; returns their number."""
        _, purged = await self._run([(Kind.KIND_QUEUE, name)], c.PurgeQueueCommand(0, name))
        return purged

    async def declare_exchange(
        self, name: str, kind: str = "direct", *, durable: bool = True, set_name: str = ""
    ) -> int:
        """Declares an exchange of kind direct, fanout, topic or headers; returns its id."""
        command = c.DeclareExchangeCommand(0, name, kind, durable)
        return await self._declare((Kind.KIND_EXCHANGE, name), set_name, command)

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        await self._run([(Kind.KIND_EXCHANGE, name)], c.DeleteExchangeCommand(0, name, if_unused))
        self._directory.forget(Kind.KIND_EXCHANGE, name)

    async def bind(self, exchange: str, queue: str, key: str = "", arguments: Headers = ()) -> None:
        """Messages of the exchange that match go to the queue; both are of one set."""
        await self._bind(exchange, queue, key, arguments, is_unbind=False)

    async def unbind(self, exchange: str, queue: str, key: str = "", arguments: Headers = ()) -> None:
        await self._bind(exchange, queue, key, arguments, is_unbind=True)

    async def _bind(self, exchange: str, queue: str, key: str, arguments: Headers, is_unbind: bool) -> None:
        names = [(Kind.KIND_EXCHANGE, exchange), (Kind.KIND_QUEUE, queue)]
        command = c.BindCommand(0, exchange, queue, key, tuple(sorted(arguments)), is_unbind)
        await self._run(names, command)

    # --- messages ---

    async def publish(
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
        """Publishes one message or many, all or none; returns when they are durable at every in-sync member.

        Without an exchange the routing key is a queue's name. Calls that run at the same time share batches by themselves.
        """
        await await_(
            await self.publish_soon(
                routing_key,
                messages,
                exchange=exchange,
                properties=properties,
                durable=durable,
                ttl_ms=ttl_ms,
                headers=headers,
                priority=priority,
            )
        )

    async def publish_soon(
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
    ) -> Confirmation:
        """As `publish`, and returns as soon as they are on their way, with what to wait for. Waits while too much is."""
        session, batches = await self.of_target(exchange, routing_key)
        await session.room()
        return batches.publish(
            exchange, routing_key, outgoing(messages, properties, durable, ttl_ms, headers, priority), None
        )

    async def consume(
        self, queue: str, *, credit: int = 100, exclusive: bool = False, selector: str = ""
    ) -> Consumer:
        """Messages of a queue as they come, at most `credit` of them unsettled at a time.

        `selector`: only those whose AMQP properties match it (the language of JMS); "": all. Iterating raises
        `Rejected` INVALID_ARGUMENT if it is none; a credit below 1 is refused with that at once.
        """
        if not credit >= 1:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT, f"with a credit of {credit} no message comes", queue=queue
            )
        session, batches = self._of(await self._directory.locate(Kind.KIND_QUEUE, queue))
        return Consumer(session, batches, queue, credit, exclusive, selector)

    async def browse(
        self, queue: str, *, after: int = 0, limit: int | None = None
    ) -> AsyncIterator[sm.DeliveredMessage]:
        """Reads a queue from the head (or behind position `after`) without taking anything."""
        session, _ = self._of(await self._directory.locate(Kind.KIND_QUEUE, queue))
        left = limit
        while left is None or left > 0:
            page = BROWSE_PAGE if left is None else min(left, BROWSE_PAGE)
            answer = await session.ask(rq.Browse(0, queue, QueuePosition(after), page))
            assert isinstance(answer, sm.BrowseAnswer), "a browse is answered as one"
            if answer.code is not ErrorCode.NONE:
                if answer.code is ErrorCode.NOT_FOUND:
                    self.forget_target("", queue)
                raise Rejected(answer.code, answer.message, queue=queue)
            for message in answer.messages:
                after = message.position
                yield message
            if answer.is_end or not answer.messages:
                return
            if left is not None:
                left -= len(answer.messages)

    def transaction(self, *, timeout_ms: int = 0, wide_timeout_ms: int = 0) -> Transaction:
        """A transaction over queues; `async with` commits it at the end of the block. Over several sets it is distributed.

        `wide_timeout_ms`: from when it is, for who looks after its time before that; 0: as `timeout_ms`, and with that 0 what
        coordinators and sets give, a minute.
        """
        if self._tracing is not None:
            return TracedTransaction(
                self, self._ask_outcome, timeout_ms, wide_timeout_ms, self._tracing, self._generations
            )
        return Transaction(self, self._ask_outcome, timeout_ms, wide_timeout_ms)

    def distributed_transaction(self, *, timeout_ms: int = 0) -> DistributedTransaction:
        """A transaction over queues of any sets, and over databases and services that are enlisted in it."""
        return DistributedTransaction(self, self._coordinators, self._ask_outcome, timeout_ms)

    async def set_of_target(self, exchange: str, routing_key: str) -> SetName:
        """The set of an exchange, or of the queue that the routing key names if there is none."""
        return (await self.of_target(exchange, routing_key))[0].set_name

    async def resource_manager(self, set_name: str) -> ResourceManager:
        """The verbs of XA in a set, for whoever drives branches of distributed transactions by hand."""
        return ResourceManager(*await self.of_set(SetName(set_name)))

    async def describe(self, set_name: str) -> sm.Description:
        """Queues, exchanges and figures of a set, as its primary has them. Many queues come by pages, each as of its time; the
        figures are those of the first.
        """
        session, _ = await self.of_set(SetName(set_name))
        pages: list[sm.Description] = []
        token = 0
        while token or not pages:
            page = await session.ask(rq.Describe(0, page_size=DESCRIBE_PAGE, page_token=token))
            assert isinstance(page, sm.Description), "a describe is answered as one"
            pages.append(page)
            token = page.next_page_token
        queues = tuple(queue for page in pages for queue in page.queues)
        exchanges = tuple(exchange for page in pages for exchange in page.exchanges)
        return replace(pages[0], queues=queues, exchanges=exchanges, next_page_token=0)

    async def describe_queue(self, name: str) -> sm.QueueDetails:
        """What is declared of a queue and bound to it; raises `Rejected` NOT_FOUND."""
        session, _ = self._of(await self._directory.locate(Kind.KIND_QUEUE, name))
        answer = await session.ask(rq.DescribeQueue(0, name))
        assert isinstance(answer, sm.QueueDetails), "a describe of a queue is answered as one"
        if answer.code is not ErrorCode.NONE:
            self._directory.forget(Kind.KIND_QUEUE, name)
            raise Rejected(answer.code, f"no queue {name!r}", queue=name)
        return answer

    # --- sets ---

    async def of_target(self, exchange: str, routing_key: str) -> tuple[SetSession, CommandBatches]:
        """The session in the set of an exchange, or of the queue that the routing key names if there is none."""
        directory = self._directory
        place = directory.known_target(exchange, routing_key)
        return self._of(place or await directory.locate_target(exchange, routing_key))

    def forget_target(self, exchange: str, routing_key: str) -> None:
        """Its set says that there is no such exchange or queue: the directory is asked again the next time."""
        self._directory.forget_target(exchange, routing_key)

    async def of_set(self, set_name: SetName) -> tuple[SetSession, CommandBatches]:
        """The session in a set."""
        known = self._sets.get(set_name)
        return known or self._of(await self._directory.locate(Kind.KIND_SET, set_name))

    def _of(self, place: Place) -> tuple[SetSession, CommandBatches]:
        if self._is_closed:
            raise Rejected(ErrorCode.ILLEGAL_STATE, "the session is closed")
        known = self._sets.get(place.set_name)
        if known is None:
            session = self._open_in(self._directory.latest(place), self._voided)
            batches = CommandBatches(session, self._in_order, self.forget_target)
            known = self._sets[place.set_name] = (session, batches)
            self._look_again_soon(session)
        return known

    def _look_again_soon(self, session: SetSession) -> None:
        asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._look_again, session)

    def _look_again(self, session: SetSession) -> None:
        """The place from which it was opened may be old, and nobody there know of it any more. Once it is served, its primaries
        tell it where others are."""
        if not session.is_attached and not session.is_closed and not self._is_closed:
            looking = asyncio.ensure_future(self._tell_anew(session))
            self._looking.add(looking)
            looking.add_done_callback(self._looking.discard)

    async def _tell_anew(self, session: SetSession) -> None:
        self._directory.forget(Kind.KIND_SET, session.set_name)
        with contextlib.suppress(LockstepError):
            place = await self._directory.locate(Kind.KIND_SET, session.set_name)
            session.feed(Learn(place.epoch, place.candidates))
        self._look_again_soon(session)

    async def _declare(self, name: Name, set_name: str, command: c.AnyCommand) -> int:
        find = partial(self._directory.place_for, *name, set_name)
        place, declared = await self._run([name], command, find)
        self._directory.remember(*name, place)
        return declared

    async def _place_of(self, names: Sequence[Name]) -> Place:
        """Of an exchange, a queue, or both; raises `Rejected` (NOT_FOUND, OTHER_SET)."""
        places = [await self._directory.locate(kind, name) for kind, name in names]
        if places[-1].set_name != places[0].set_name:
            exchange, queue = (name for _, name in names)
            raise Rejected(
                ErrorCode.OTHER_SET,
                f"exchange {exchange} is in set {places[0].set_name}, queue {queue} in {places[1].set_name}",
                exchange=exchange,
                queue=queue,
            )
        return places[0]

    async def _run(
        self,
        names: Sequence[Name],
        command: c.AnyCommand,
        find: Callable[[], Awaitable[Place]] | None = None,
    ) -> tuple[Place, int]:
        """Runs a command where `names` are, or where `find` says; once more, if they have moved since they were remembered.
        Returns where it was run, and the value of its answer."""
        find = find or partial(self._place_of, names)
        place: Place | None = None
        try:
            place = await find()
            return place, await self._run_in(place, command)
        except Rejected as rejected:
            if rejected.code not in _ELSEWHERE:
                raise
            were_known = [self._directory.forget(kind, name) for kind, name in names]
            if not any(were_known):
                raise
            found = await find()
            if place is not None and place.set_name == found.set_name:
                raise
        return found, await self._run_in(found, command)

    async def _run_in(self, place: Place, command: c.AnyCommand) -> int:
        session, batches = self._of(place)
        batches.flush()
        return (await session.submit(command)).value


async def await_(confirmation: Confirmation) -> int:
    """Awaits a confirmation; being cancelled cancels the waiting only, not the command."""
    return await asyncio.shield(confirmation)
