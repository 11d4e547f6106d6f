"""A consumer: messages of one queue as an asynchronous iterator, and what becomes of them.

Law: at most `credit` messages are unsettled in this process; each settled one makes room for another. A message that was
delivered before a failover is void after it: the queue has it again, and settling it is refused (DESIGN T6).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from lockstep.client.command_batches import BATCH_MESSAGES_MAX, CommandBatches, Confirmation
from lockstep.client.set_session import SetSession
from lockstep.core.commands import Disposition
from lockstep.core.deaths import Deaths
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, QueuePosition, SetName, TransactionKey
from lockstep.core.server_messages import DeliveredMessage

VOIDED_AT_ONCE = 1_000
VOIDED_COST = 500
"""Of noting that so many are void, in microseconds."""


class Message:
    """One delivery. Settle it once: `accept`, `release`, `fail` or `reject`; the result need not be awaited."""

    __slots__ = ("_consumer", "_content", "epoch", "is_known_void", "is_settled", "lost_sessions")

    def __init__(
        self, consumer: "Consumer", epoch: Epoch, content: DeliveredMessage, lost_sessions: int
    ) -> None:
        self._consumer = consumer
        self._content = content
        self.epoch = epoch
        self.lost_sessions = lost_sessions
        """How many sessions its set had ended before the one that has it."""
        self.is_settled = False
        self.is_known_void = False
        """Its consumer has heard so."""

    def __repr__(self) -> str:
        return f"Message({self.queue}@{self.position >> 24}.{self.position & 0xFFFFFF} epoch={self.epoch})"

    @property
    def is_void(self) -> bool:
        """Its epoch or session is over: the queue has it again."""
        return self.is_known_void or (not self.is_settled and self._consumer.is_stale(self))

    @property
    def consumer(self) -> "Consumer":
        return self._consumer

    @property
    def queue(self) -> str:
        return self._consumer.queue

    @property
    def set_name(self) -> SetName:
        return self._consumer.set_name

    @property
    def body(self) -> bytes:
        return self._content.body

    @property
    def properties(self) -> bytes:
        return self._content.properties

    @property
    def position(self) -> QueuePosition:
        return self._content.position

    @property
    def delivery_count(self) -> int:
        """Failed deliveries before this one."""
        return self._content.delivery_count

    @property
    def is_durable(self) -> bool:
        return self._content.is_durable

    @property
    def ttl_ms(self) -> int:
        """What is left of its time to live, by this machine's clock: at least 1; 0: it has none."""
        expires_ms = self._content.expires_ms
        return max(1, expires_ms - time.time_ns() // 1_000_000) if expires_ms else 0

    @property
    def deaths(self) -> Deaths:
        """Of a dead letter: why it is one, the last time first."""
        return self._content.deaths

    @property
    def annotations(self) -> bytes:
        """What AMQP clients said that had it before and gave it back: AMQP's keys and values in turn, encoded."""
        return self._content.annotations

    @property
    def priority(self) -> int:
        """0 to 9; higher ones are delivered first."""
        return self._content.priority

    def accept(self) -> Confirmation:
        """It is done: take it from the queue."""
        return self._consumer.settle(self, Disposition.ACCEPT)

    def release(self) -> Confirmation:
        """Back to the queue, as if never delivered."""
        return self._consumer.settle(self, Disposition.RELEASE)

    def fail(self) -> Confirmation:
        """Back to the queue with its delivery count grown by one."""
        return self._consumer.settle(self, Disposition.FAIL)

    def reject(self) -> Confirmation:
        """To the queue's dead-letter target; gone if it has none, or none that is in the same resource set and takes it."""
        return self._consumer.settle(self, Disposition.REJECT)


class Consumer:
    """Lives from `Session.consume` to `close`, or until its queue is gone; then iterating raises `Rejected`."""

    def __init__(
        self,
        session: SetSession,
        batches: CommandBatches,
        queue: str,
        credit: int,
        is_exclusive: bool,
        selector: str = "",
    ) -> None:
        self.queue = queue
        self.set_name = session.set_name
        self._session = session
        self._batches = batches
        self._arrived: deque[Message] = deque()
        self._unsettled: dict[tuple[Epoch, QueuePosition], Message] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._end: Rejected | None = None
        self._is_closed = False
        self._to_grant = 0
        self._grant_from = max(1, credit // 4)
        """Credit is granted in portions: one message to the primary per quarter."""
        self._number = session.consume(self, queue, credit, is_exclusive, selector=selector)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while True:
            message = self.take()
            if message is not None:
                return message
            if self._end is not None:
                raise self._end
            if self._is_closed:
                raise StopAsyncIteration
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[future] = None
            try:
                await future
            finally:
                self._waiting.pop(future, None)

    def take(self) -> Message | None:
        """The next message that has arrived already, or None."""
        while self._arrived:
            message = self._arrived.popleft()
            if not message.is_known_void:
                return message
        return None

    def put_back(self, message: Message) -> None:
        """What was taken, and reached nobody: it is the next one again; if this is closed, its queue has it again."""
        if message.is_void or message.is_settled:
            return
        if self._is_closed:
            message.release()
            return
        self._arrived.appendleft(message)
        self._wake()

    async def next(self, timeout_seconds: float) -> Message | None:
        """The next message, or None when none came in time."""
        # Not `wait_for`: where a message arrives as the caller is cancelled, that goes on as if nobody had asked it to end.
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self.__anext__()
        except TimeoutError:
            return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """No more messages; those that nobody took are released, those taken stay to be settled. Waits a moment until the queue
        has them, and until what was rejected is no more in it.
        """
        if self._is_closed:
            return
        self._is_closed = True
        ending = self._session.stop_consuming(self._number)
        self._wake()
        waiting: list[asyncio.Future[Any]] = [] if ending is None else [ending]
        waiting += [message.release() for message in list(self._arrived) if not message.is_void]
        self._arrived.clear()
        if waiting:
            await asyncio.wait(waiting, timeout=5.0)

    def settle(self, message: Message, disposition: int) -> Confirmation:
        """What `Message` calls. In a transaction, what cannot be settled is never refused like this: nobody need hear it."""
        if self.is_stale(message):
            refused: Confirmation = asyncio.get_running_loop().create_future()
            refused.set_exception(stale(message))
            refused.exception()
            return refused
        message.is_settled = True
        return self._settle((message,), disposition, None)

    def accept_in(
        self,
        messages: Iterable[Message],
        transaction: TransactionKey,
        batches: CommandBatches,
        answered: Callable[[Confirmation], None] = lambda _: None,
    ) -> list[Confirmation]:
        """Accepts messages of its own, of one epoch, if a transaction commits; what its set refuses goes back to the queue.

        `batches`: those of the transaction; `answered` is told of each confirmation, of as many as go together. Raises `Rejected`
        for the first that cannot be accepted: ILLEGAL_STATE where another session has it, STALE_DELIVERY where it is void or
        settled. Those before it are accepted, and the transaction cannot commit any more: no set would hear of the others
        (DESIGN T1).
        """
        if batches is not self._batches:
            batches.leave_out(transaction)
            text = "the message is in the hands of another session than the transaction"
            raise Rejected(ErrorCode.ILLEGAL_STATE, text, queue=self.queue)
        accepted: list[Message] = []
        refused: Message | None = None
        for message in messages:
            if self.is_stale(message):
                refused = message
                break
            message.is_settled = True
            accepted.append(message)
        confirmations = []
        for begin in range(0, len(accepted), BATCH_MESSAGES_MAX):
            part = accepted[begin : begin + BATCH_MESSAGES_MAX]
            confirmation = self._settle(part, Disposition.ACCEPT, transaction)
            confirmation.add_done_callback(partial(self._accept_answered, part, answered))
            confirmations.append(confirmation)
        if refused is not None:
            batches.leave_out(transaction)
            raise stale(refused)
        return confirmations

    def is_stale(self, message: Message) -> bool:
        """Whether it cannot be settled any more. Nobody voids it where it was settled before, or came to a consumer that has
        stopped since: it is known by the session that had it."""
        if message.lost_sessions != self._session.lost_sessions or self._session.is_over(message.epoch):
            message.is_known_void = True
        return message.is_settled or message.is_known_void

    def _accept_answered(
        self,
        messages: Sequence[Message],
        answered: Callable[[Confirmation], None],
        confirmation: Confirmation,
    ) -> None:
        """What was refused is still in this process's hands."""
        if not confirmation.cancelled() and confirmation.exception() is not None:
            for message in messages:
                self._release_refused(message)
        answered(confirmation)

    def _settle(
        self, messages: Sequence[Message], disposition: int, transaction: TransactionKey | None
    ) -> Confirmation:
        """Of one epoch."""
        epoch, positions = messages[0].epoch, [message.position for message in messages]
        for position in positions:
            self._unsettled.pop((epoch, position), None)
        self._grant(len(positions))
        return self._batches.settle(self.queue, epoch, positions, disposition, transaction)

    def _release_refused(self, message: Message) -> None:
        """It goes back to the queue; unless that has it again: the next session may hold the same message for somebody else."""
        message.is_settled = False
        if self.is_stale(message):
            return
        self._to_grant -= 1  # The credit for it was granted already.
        message.release()

    def _grant(self, count: int) -> None:
        self._to_grant += count
        if self._to_grant >= self._grant_from and not self._is_closed:
            credit, self._to_grant = self._to_grant, 0
            self._session.grant(self._number, credit)

    # What the session in the set says (ConsumerPort).

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]) -> None:
        lost_sessions = self._session.losses_told
        for content in messages:
            message = Message(self, epoch, content, lost_sessions)
            self._unsettled[epoch, content.position] = message
            self._arrived.append(message)
        self._wake()

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> Iterator[int]:
        for first in range(0, len(positions), VOIDED_AT_ONCE):
            for position in positions[first : first + VOIDED_AT_ONCE]:
                if (message := self._unsettled.pop((epoch, position), None)) is not None:
                    message.is_known_void = True
                else:
                    # It was settled, and that was still in line: the credit for it was granted already.
                    self._to_grant -= 1
            yield VOIDED_COST

    def drained(self) -> None:
        """Nobody asks for it here."""

    def stop(self, code: ErrorCode, message: str) -> None:
        if code is ErrorCode.NOT_FOUND:
            self._batches.not_found("", self.queue)
        if not self._is_closed:
            self._end = Rejected(code, message, queue=self.queue, resource_set=self.set_name)
        self._wake()

    def _wake(self) -> None:
        """Everybody looks again: a waiter that was cancelled must not keep a message from the next one."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)


def stale(message: Message) -> Rejected:
    """Why a message cannot be settled any more."""
    why = "void since a failover or the end of its session" if message.is_known_void else "settled already"
    return Rejected(
        ErrorCode.STALE_DELIVERY, f"the message is {why}", queue=message.queue, position=message.position
    )
