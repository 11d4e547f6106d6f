"""Who is told what a state does while it applies records: delivery on a primary, events, the log consolidator's dirty keys.

Law: calls come after the whole record was applied, in log order, once per queue and batch and never once per message. A
listener reads the state and changes nothing; without one nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lockstep.core.ids import MessageId, QueueId, QueuePosition, SessionKey, TransactionKey
from lockstep.core.items import entry_keys, message_keys

if TYPE_CHECKING:
    from lockstep.core.exchanges import Exchange
    from lockstep.core.outcomes import Outcome
    from lockstep.core.queues import Queue
    from lockstep.core.sessions import Answer, Session


class StateListener:
    """Hears nothing; override what you need. Given to a `SetState`, which drives it for as long as it has it."""

    def enqueued(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        """Messages became visible, in ascending order, behind all that were there."""

    def dequeued(
        self,
        queue: Queue,
        positions: Sequence[QueuePosition],
        reason: int,
        transaction: TransactionKey | None,
    ) -> None:
        """Messages left for a `DequeueReason`, by the commit of `transaction` or outside one."""

    def unlocked(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        """A rollback or abort gave messages back; they keep their positions."""

    def requeued(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        """Deliveries failed and were counted; the messages keep their positions."""

    def queue_declared(self, queue: Queue) -> None: ...

    def queue_deleted(self, queue: Queue) -> None:
        """With all its messages, for which there is no call of `dequeued`."""

    def exchange_deleted(self, exchange: Exchange) -> None:
        """With all its bindings."""

    def session_opened(self, session: Session) -> None: ...

    def session_closed(self, session: Session) -> None: ...

    def transaction_ended(self, key: TransactionKey, outcome: Outcome) -> None:
        """Committed or rolled back; a new epoch's abort (`RollbackReason.FAILOVER`) leaves no recorded outcome."""

    def answered(self, session: SessionKey, number: int, answer: Answer) -> None:
        """A command of a session has its answer; it may be given when the commit index covers `answer.index`."""

    def items_changed(self, keys: Iterable[bytes]) -> None:
        """Durable items came, changed or went: `SetState.item(key)` has each, or None (or a transient one in its place). Messages
        and entries come by the next two, which pass their keys on where they are not overridden.
        """

    def messages_changed(self, messages: Sequence[MessageId]) -> None:
        """The same of contents."""
        self.items_changed(message_keys(messages))

    def entries_changed(self, queue: QueueId, positions: Sequence[QueuePosition]) -> None:
        """The same of places in a queue."""
        self.items_changed(entry_keys(queue, positions))
