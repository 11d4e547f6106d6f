"""Commands: what a client does in a session (DESIGN 6); `session.proto` carries the same words.

Law: commands that change state are numbered per (session, resource set) from 1 without gaps; a number is consumed by the record
that answers it and by nothing else.

They are msgspec structs: one is made in a fifth of the time of a frozen dataclass, and copied in a tenth. An `isinstance`
that says no takes eight times as long as to compare the type, which is done where every command is looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from lockstep.core.ids import Epoch, QueuePosition, TransactionKey
from lockstep.core.priority_levels import PRIORITY_DEFAULT

ANSWERS_KEPT = 1024
"""Answers that a set keeps for each session, and so the most commands that a session may have without having heard of them."""
SPAN_MS_MAX = 1 << 42
"""Longest time span that can be asked for (139 years): a time and a span always make a time."""


class Command(msgspec.Struct, frozen=True):
    """Base of all commands."""

    number: int


class DeclareExchangeCommand(Command, frozen=True):
    """Declare an exchange; ok without effect when the same exists. Answer value: its id."""

    name: str
    kind: str
    is_durable: bool


class DeleteExchangeCommand(Command, frozen=True):
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


class DeclareQueueCommand(Command, frozen=True):
    """Declare a queue; ok without effect when the same exists, ALREADY_EXISTS when it differs. Answer value: its id."""

    name: str
    options: QueueOptions


class DeleteQueueCommand(Command, frozen=True):
    """Delete a queue. IN_USE while a prepared transaction touches it. Answer value: messages that were in it."""

    name: str
    if_unused: bool = False
    if_empty: bool = False


class PurgeQueueCommand(Command, frozen=True):
    """Remove all messages that are there and that nobody holds. Answer value: their number, or, if it was begun and had to come
    again to another primary or on another stream, of those that were left.
    """

    name: str


class BindCommand(Command, frozen=True):
    """Bind a queue to an exchange. With the argument `SELECTOR_ARGUMENT` (`lockstep.core.routing`) only messages whose properties
    match it go through the binding.
    """

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
    priority: int = PRIORITY_DEFAULT
    """0 to `PRIORITY_MAX`: higher ones are delivered first."""


class PublishCommand(Command, frozen=True):
    """A batch with one exchange and routing key. All of it is routed or refused. Answer value: number of enqueues."""

    exchange: str
    routing_key: str
    messages: Sequence[OutgoingMessage]
    """Nobody changes it any more."""
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


class SettleCommand(Command, frozen=True):
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
    excluded_consumer: int = 0
    """Of a RELEASE or FAIL: this consumer of the stream is not offered them again while it lives there (AMQP modified,
    undeliverable-here); 0: none. It is forgotten with the stream, and so by a failover."""
    annotations: bytes = b""
    """Of a RELEASE or FAIL: what is said of the messages from now on, combined with what was said before (AMQP modified,
    message-annotations): AMQP's keys and values in turn, encoded."""
    may_be_partial: bool = False
    """Of a REJECT: where that is done in parts it is answered behind the first, with how many of its first positions are done.
    The session holds the others still: a queue that ends with its last consumer takes them along if that is closed meanwhile."""


class BeginCommand(Command, frozen=True):
    """Open a TX. Answered at once, before the record is committed: `transaction` is the name to ask for in `GetOutcome`."""

    timeout_ms: int = 0


class CommitCommand(Command, frozen=True):
    """Commit a TX of `operations` operations; a gap makes it rollback-only. Answered when the commit is at the commit index."""

    transaction: TransactionKey
    operations: int
    begins: int = 0
    """If it commits, so many TX without time-outs are opened with it, as by begins; none where there is no room for all of them.
    Answer value: where they were opened the index of the commit, and they have those right before it; `COMMITTED` otherwise.
    """
    last_publish: PublishCommand | None = None
    """Its last operation, done right before it. If it is refused, the transaction is rolled back, and the commit is answered what
    the publish would have been.
    """


class RollbackCommand(Command, frozen=True):
    """Roll a TX back: what it accepted returns to its queues in order with delivery count + 1."""

    transaction: TransactionKey


class SelectDtxCommand(Command, frozen=True):
    """The session is going to work with branches (the dtx class's select). `hears_read_only`: it understands `rdonly`.

    `has_many_branches`: it works in several of them at once, which XA's threads do not.
    """

    hears_read_only: bool = False
    has_many_branches: bool = False


class BranchCommand(Command, frozen=True):
    """Base of the verbs that name a branch by its encoded xid; they answer an `XaStatus` (the DTX contract).

    A rejected one has the `BranchState` that it met as its answer's value.
    """

    xid: bytes


class StartCommand(BranchCommand, frozen=True):
    """Begin a branch, join one, or resume work that this session suspended; or make an open TX of this session a branch, with
    the operations that it has. Answer value: the index of the transaction, whose epoch is that of the answer, or in decimal
    digits its message, if the set was handed over since. Operations name it as those of a TX do, each session numbering its own
    from 1."""

    is_join: bool = False
    is_resume: bool = False
    transaction: TransactionKey | None = None


class EndCommand(BranchCommand, frozen=True):
    """End or suspend the session's work in a branch, in which it did `operations` operations since it began or joined it."""

    operations: int
    is_failed: bool = False
    is_suspended: bool = False


class PrepareBranchCommand(BranchCommand, frozen=True):
    """Vote. Answered when the branch is prepared on every in-sync member; with other commands behind it meanwhile (T9)."""

    resource_sets: tuple[str, ...] = ()
    """All in which the transaction has branches, as far as whoever prepares it says; for readers of committed events."""


class CommitBranchCommand(BranchCommand, frozen=True):
    """Commit a prepared branch or, in one phase, one that has ended.

    NOT_FOUND with the value COMMITTED: it has committed before, as far as outcomes are kept.
    """

    is_one_phase: bool = False


class RollbackBranchCommand(BranchCommand, frozen=True):
    """Roll a branch back that has ended or is prepared."""


class ForgetBranchCommand(BranchCommand, frozen=True):
    """Forget that a branch was ended heuristically."""


class SetTimeoutCommand(BranchCommand, frozen=True):
    """Change the time-out of a branch, which runs until it is prepared; 0: none."""

    timeout_ms: int


class EndHeuristicallyCommand(BranchCommand, frozen=True):
    """An operator decides what the branch's coordinator does not: the outcome is kept as such until it is forgotten."""

    is_commit: bool


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
    | SelectDtxCommand
    | StartCommand
    | EndCommand
    | PrepareBranchCommand
    | CommitBranchCommand
    | RollbackBranchCommand
    | ForgetBranchCommand
    | SetTimeoutCommand
    | EndHeuristicallyCommand
)
