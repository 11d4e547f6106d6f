"""What the primary notices while its own records are applied: messages that may go out, queues that came and went.

Law: a listener appends nothing. What calls for a record (a worn-out message) is kept until the command is done.
"""

from collections.abc import Sequence

from lockstep.core.exchanges import Exchange
from lockstep.core.ids import QueuePosition, TransactionKey
from lockstep.core.outcomes import Outcome
from lockstep.core.queues import Queue
from lockstep.core.state_listener import StateListener
from services.primary.core.context import Context
from services.primary.core.queue_dispatch import Consumer

WATCHED_AT_ONCE = 8
"""Messages that came together and are begun to be watched at once, for they may come to very many queues."""


class PrimaryListener(StateListener):
    """Lives as long as the epoch, on its state."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._figures = context.figures
        self.came_back: list[tuple[Queue, Sequence[QueuePosition]]] = []
        """Given back by a rollback or a failed delivery, to be looked at when the command is done."""
        self.came: list[tuple[Queue, Sequence[QueuePosition]]] = []
        """Published, and so many that they are watched behind the command."""
        self.deleted: list[tuple[Queue, list[Consumer]]] = []
        """Queues that went, with the consumers they had."""
        self.deleted_exchanges: list[str] = []
        """Names of exchanges that went."""

    @property
    def has_news(self) -> bool:
        return bool(self.came_back or self.deleted or self.deleted_exchanges or self.came)

    def enqueued(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        self._figures.enqueued += len(positions)
        self._context.dispatch.appended(self._context.writer.log.end, queue.id)
        expiry = self._context.expiry
        if not expiry.is_expecting(queue):
            return
        if len(positions) <= WATCHED_AT_ONCE:
            expiry.watch(queue, positions)
            # Each costs about as much as a queue: whoever goes on in steps says so.
            self._context.state.spread += len(positions)
        else:
            self.came.append((queue, positions))

    def dequeued(
        self,
        queue: Queue,
        positions: Sequence[QueuePosition],
        reason: int,
        transaction: TransactionKey | None,
    ) -> None:
        self._figures.dequeued += len(positions)

    def unlocked(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        self.came_back.append((queue, positions))

    def requeued(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        self.came_back.append((queue, positions))

    def transaction_ended(self, key: TransactionKey, outcome: Outcome) -> None:
        self._figures.transaction_ended(outcome)
        self._context.questions.ended(key)
        self._context.doubts.over(key)

    def queue_declared(self, queue: Queue) -> None:
        self._context.dispatch.add_queue(queue)

    def queue_deleted(self, queue: Queue) -> None:
        self.deleted.append((queue, self._context.dispatch.remove_queue(queue)))

    def exchange_deleted(self, exchange: Exchange) -> None:
        self.deleted_exchanges.append(exchange.name)
