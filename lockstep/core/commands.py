"""Commands: what a client does in a session (DESIGN 6); `session.proto` carries the same words.

Law: commands that change state are numbered per (session, resource set) from 1 without gaps; a number is consumed by the record
that answers it and by nothing else.

What exists once per message (`OutgoingMessage`) is a msgspec struct: it is made in a fifth of the time of a frozen dataclass.
"""

from dataclasses import dataclass

import msgspec

from lockstep.core.ids import Epoch, QueuePosition, TransactionKey

ANSWERS_KEPT = 1024
"""Answers that a set keeps for each session, and so the most commands that a session may have without having heard of them."""
SPAN_MS_MAX = 1 << 42
"""Longest time span that can be asked for (139 years): a time and a span always make a time."""


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands."""

    number: int


@dataclass(frozen=True, slots=True)
class DeclareExchangeCommand(Command):
    """Declare an exchange; ok without effect when the same exists. Answer value: its id."""

    name: str
    kind: str
    is_durable: bool


@dataclass(frozen=True, slots=True)
class DeleteExchangeCommand(Command):
    name: str
    if_unused: bool = False


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """As in `DeclareQueue`; `is_exclusive` binds it to the declaring session."""

    is_durable: bool = True
    is_exclusive: bool = False
    is_auto_delete: bool = False
    length_max: int = 0
    bytes_max: int = 0
    is_evicting: bool = False
    message_ttl_ms: int = 0
    dead_letter_exchange: str | None = None
    dead_letter_key: str = ""
    delivery_count_max: int = 0


@dataclass(frozen=True, slots=True)
class DeclareQueueCommand(Command):
    """Declare a queue; ok without effect when the same exists, ALREADY_EXISTS when it differs. Answer value: its id."""

    name: str
    options: QueueOptions


@dataclass(frozen=True, slots=True)
class DeleteQueueCommand(Command):
    """Delete a queue. IN_USE while a prepared transaction touches it. Answer value: messages that were in it."""

    name: str
    if_unused: bool = False
    if_empty: bool = False


@dataclass(frozen=True, slots=True)
class PurgeQueueCommand(Command):
    """Remove all messages that nobody holds. Answer value: their number."""

    name: str


@dataclass(frozen=True, slots=True)
class BindCommand(Command):
    exchange: str
    queue: str
    key: str
    arguments: tuple[tuple[str, str], ...] = ()
    is_unbind: bool = False


class OutgoingMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of a publish; properties and body are opaque. `ttl_ms` 0: none but the queue's."""

    properties: bytes
    body: bytes
    is_durable: bool = True
    ttl_ms: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    """Only for headers exchanges."""


@dataclass(frozen=True, slots=True)
class PublishCommand(Command):
    """A batch with one exchange and routing key. All of it is routed or refused. Answer value: number of enqueues."""

    exchange: str
    routing_key: str
    messages: tuple[OutgoingMessage, ...]
    transaction: TransactionKey | None = None
    sequence: int = 0
    """Place among the operations of its transaction, from 1 (DESIGN T1)."""


class Disposition:
    """What becomes of delivered messages. On the wire."""

    ACCEPT = 1
    RELEASE = 2
    """Back to the queue, as if never delivered."""
    FAIL = 3
    """Back to the queue with delivery count + 1 (AMQP modified, delivery-failed)."""
    REJECT = 4
    """To the dead-letter target, or gone without one."""


@dataclass(frozen=True, slots=True)
class SettleCommand(Command):
    """Accept, release, fail or reject messages that this session holds. Only ACCEPT can be in a transaction.

    STALE_DELIVERY when one of them is not held by the session in `delivery_epoch`: then none is settled and its transaction
    becomes rollback-only (DESIGN T6).
    """

    queue: str
    delivery_epoch: Epoch
    positions: tuple[QueuePosition, ...]
    disposition: int = Disposition.ACCEPT
    transaction: TransactionKey | None = None
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class BeginCommand(Command):
    """Open a TX. Answered at once, before the record is committed: `transaction` is the name to ask for in `GetOutcome`."""

    timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class CommitCommand(Command):
    """Commit a TX of `operations` operations; a gap makes it rollback-only. Answered when the commit is at the commit index."""

    transaction: TransactionKey
    operations: int


@dataclass(frozen=True, slots=True)
class RollbackCommand(Command):
    """Roll a TX back: what it accepted returns to its queues in order with delivery count + 1."""

    transaction: TransactionKey


AnyCommand = (
    DeclareExchangeCommand
    | DeleteExchangeCommand
    | DeclareQueueCommand
    | DeleteQueueCommand
    | PurgeQueueCommand
    | BindCommand
    | PublishCommand
    | SettleCommand
    | BeginCommand
    | CommitCommand
    | RollbackCommand
)
