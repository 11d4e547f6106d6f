"""A client of a scenario: the real session core, told what to do line by line.

Law: commands are submitted at once and answered while the stage lets time pass; what returns a value waits for it. A commit in
doubt is asked for until its outcome is final, as every careful client does (P6).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lockstep.client.session_events import Close, StopConsuming
from lockstep.client.session_settings import SessionSettings
from lockstep.core.commands import (
    BeginCommand,
    CommitCommand,
    DeclareQueueCommand,
    DeleteQueueCommand,
    Disposition,
    OutgoingMessage,
    PublishCommand,
    QueueOptions,
    RollbackCommand,
    SettleCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, QueuePosition, SetName, TransactionKey
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.requests import (
    Browse,
    GetOutcome,
)
from lockstep.core.server_messages import (
    BrowseAnswer,
    DeliveredMessage,
    OutcomeAnswer,
)
from tests.simulation.client import Client
from tests.simulation.promises import Actor, Promise
from tests.simulation.workloads.transferring import resolve, taken_positions

if TYPE_CHECKING:
    from tests.simulation.staging.stage import Stage

_HEAD = QueuePosition(0)
_PAGE_MESSAGES = 1000
_BROWSED = ErrorCode.NONE, ErrorCode.NOT_FOUND
Taken = list[tuple[Epoch, DeliveredMessage]]
"""Deliveries in hand, each with its epoch."""


class ScriptedClient:
    """Lives as long as its stage. Queues are named as they are, in the only resource set."""

    def __init__(self, stage: "Stage", name: str, settings: SessionSettings | None = None) -> None:
        """`settings`: of its session; None: the stage's."""
        self._stage = stage
        self.name = name
        self.client = Client(stage.world, name, [SetName("s1")], settings)
        stage.world.clients.append(self.client)
        self.session = self.client.sessions[SetName("s1")]

    # --- queues and messages ------------------------------------------------------------------------------------------

    def declare(self, *queues: str, options: QueueOptions | None = None) -> None:
        """Declare queues and wait for it."""
        for queue in queues:
            promise = self.session.submit(DeclareQueueCommand(0, queue, options or QueueOptions()))
            self._stage.done(promise)

    def delete(self, queue: str) -> Promise:
        return self.session.submit(DeleteQueueCommand(0, queue))

    def publish(
        self,
        queue: str,
        tx: TransactionKey | None = None,
        count: int = 1,
        is_durable: bool = True,
        size: int = 0,
        exchange: str = "",
        priority: int = PRIORITY_DEFAULT,
    ) -> Promise:
        """Messages with bodies that no other has, at least `size` bytes long each."""
        head = [self.client.body(1) for _ in range(count)]
        messages = tuple(
            OutgoingMessage(b"", body.ljust(size, b"."), is_durable, priority=priority) for body in head
        )
        return self.session.submit(PublishCommand(0, exchange, queue, messages, tx))

    def take(self, queue: str, count: int = 1) -> Taken:
        """Consume, wait for `count` messages, stop consuming, and hold them."""
        consumer, inbox = self.session.consume(queue, count)
        self._stage.until(lambda: len(inbox.waiting) >= count, what=f"{count} messages of {queue}")
        self.session.feed(StopConsuming(consumer))
        return inbox.waiting

    def settle(
        self,
        queue: str,
        taken: Taken,
        tx: TransactionKey | None = None,
        disposition: int = Disposition.ACCEPT,
        *,
        may_be_partial: bool = False,
    ) -> Promise:
        """Settle what was taken in one epoch."""
        ((epoch, positions),) = taken_positions(taken).items()
        command = SettleCommand(0, queue, epoch, positions, disposition, tx, may_be_partial=may_be_partial)
        return self.session.submit(command)

    def ask_browse(self, queue: str, after: QueuePosition = _HEAD) -> Promise:
        """One page of a queue behind `after`, of as many messages as the primary's limits allow."""
        return self.session.ask(Browse(0, queue, after, _PAGE_MESSAGES))

    def browse(self, queue: str) -> list[bytes]:
        """The bodies in a queue from its head to its end, none if it is not there; the checkers look at every page."""
        bodies, after, is_end = list[bytes](), _HEAD, False
        while not is_end:
            answer = self.answer(partial(self.ask_browse, queue, after))
            assert isinstance(answer, BrowseAnswer) and answer.code in _BROWSED, answer
            assert answer.messages or answer.is_end, "a page of a queue that goes on has a message"
            bodies += [message.body for message in answer.messages]
            after, is_end = answer.messages[-1].position if answer.messages else after, answer.is_end
        return bodies

    def answer(self, ask: Callable[[], Promise]) -> object:
        """Ask until there is an answer: a question is lost with its session."""
        while True:
            asking = ask()
            self._stage.until(lambda asking=asking: asking.is_done, what="an answer")  # type: ignore[misc]
            if asking.value is not None:
                return asking.value

    # --- transactions -------------------------------------------------------------------------------------------------

    def begin(self, timeout_ms: int = 0) -> TransactionKey:
        """Begin a transaction and wait for its name."""
        operation = self._stage.done(self.session.submit(BeginCommand(0, timeout_ms)))
        assert operation.transaction is not None, operation
        return operation.transaction

    def transaction(self, *queues: str, is_durable: bool = True) -> TransactionKey:
        """Begin a transaction that publishes a message to each of the queues; wait until they are there."""
        key = self.begin()
        for promise in [self.publish(queue, key, is_durable=is_durable) for queue in queues]:
            self._stage.done(promise)
        return key

    def commit(self, tx: TransactionKey) -> Promise:
        """Commit; when that ends in doubt the outcome is asked for until it is final."""
        promise = self.session.submit(CommitCommand(0, tx, 0))

        def follow() -> Actor:
            yield promise
            if promise.operation is not None and promise.operation.is_in_doubt:
                yield from resolve(self.session, tx)

        self.session.spawn(follow())
        return promise

    def rollback(self, tx: TransactionKey) -> Promise:
        return self.session.submit(RollbackCommand(0, tx))

    def ask_outcome(
        self, tx: TransactionKey, fence: bool = False, of: "ScriptedClient | None" = None
    ) -> Promise:
        """`of`: whose transaction it is; he has told the id of his session."""
        sessions = () if of is None else (of.session.core.session_id,)
        return self.session.ask(GetOutcome(0, tx, fence, sessions))

    def outcome(self, tx: TransactionKey, fence: bool = False, of: "ScriptedClient | None" = None) -> int:
        """What became of a transaction (an `OutcomeState`), waited for."""
        answer = self.answer(lambda: self.ask_outcome(tx, fence, of))
        assert isinstance(answer, OutcomeAnswer), answer
        return answer.state

    def close(self) -> None:
        """End the session on purpose, and wait for that."""
        self.session.feed(Close())
        self._stage.until(lambda: self.session.is_closed, what="the session's end")

    def all_done(self, promises: Sequence[Promise]) -> None:
        for promise in promises:
            self._stage.done(promise)
