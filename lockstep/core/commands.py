"""What a client says on a session stream and what it hears (DESIGN 6); `session.proto` carries the same words.

Law: commands that change state are numbered per (session, resource set) from 1 without gaps; a number is consumed by the record
that answers it and by nothing else. Requests without a number change nothing that is replicated. Every message of a primary
carries its epoch and commit index; a client drops what comes with a lower epoch than it has seen (R6).

What exists once per message (`OutgoingMessage`, `DeliveredMessage`) or once per command on the way back (`CommandAnswered`) is a
msgspec struct: it is made in a fifth of the time of a frozen dataclass.
"""

from dataclasses import dataclass

import msgspec

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SessionId, SessionKey, SetName, TransactionKey

ANSWERS_KEPT = 1024
"""Answers that a set keeps for each session, and so the most commands that a session may have without having heard of them."""
SPAN_MS_MAX = 1 << 42
"""Longest time span that can be asked for (139 years): a time and a span always make a time."""

# --- commands: numbered -----------------------------------------------------------------------------------------------


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

# --- requests: not numbered -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldDeliveries:
    """Messages that a client has received from one queue in one epoch and that no answered command has settled."""

    queue: str
    epoch: Epoch
    positions: tuple[QueuePosition, ...]


@dataclass(frozen=True, slots=True)
class AttachSession:
    """First message of a stream: open a session in this set (`session` 0), or resume the one opened by that (index, epoch).

    `session` 0 with the id of a session that exists resumes it: the answer to its opening was lost, no command was ever sent.
    Consumers end with their stream; the client opens them again, with the credit that is left.
    """

    set_name: SetName
    session_id: SessionId
    session: SessionKey
    session_epoch: Epoch
    timeout_ms: int
    heard: int
    """All answers up to this command number have arrived; later ones are sent again."""
    held: tuple[HeldDeliveries, ...] = ()
    """What the client has in hand. What the primary thinks the session holds beyond it got lost with the last stream and
    is released, as if never delivered."""


@dataclass(frozen=True, slots=True)
class DetachSession:
    """The client is done: the session ends, its open transactions are rolled back."""


@dataclass(frozen=True, slots=True)
class OpenConsumer:
    """Deliver messages of a queue, at most `credit` beyond those granted before. `consumer`: a number of the client's choice."""

    consumer: int
    queue: str
    credit: int
    is_exclusive: bool = False


@dataclass(frozen=True, slots=True)
class GrantCredit:
    consumer: int
    credit: int


@dataclass(frozen=True, slots=True)
class CloseConsumer:
    """No more deliveries; what the session holds stays held until it is settled or the session ends."""

    consumer: int


@dataclass(frozen=True, slots=True)
class Browse:
    """Read a queue without taking anything: up to `limit` messages behind position `after` (0: from the head)."""

    request: int
    queue: str
    after: QueuePosition
    limit: int


@dataclass(frozen=True, slots=True)
class GetOutcome:
    """What became of a transaction (DESIGN T5). With `fence` an open one is rolled back first."""

    request: int
    transaction: TransactionKey
    fence: bool


@dataclass(frozen=True, slots=True)
class Describe:
    """Exchanges, queues, transactions and figures of the set, for `status` and people. Answered by `Description`."""

    request: int
    with_state_hash: bool = False
    """It costs some microseconds for every message in the set, in which the primary does nothing else."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The client lives. Answered at once by `HeartbeatAnswered`, before the session is attached too."""


AnyRequest = (
    AttachSession
    | DetachSession
    | OpenConsumer
    | GrantCredit
    | CloseConsumer
    | Browse
    | GetOutcome
    | Describe
    | Heartbeat
)
ClientMessage = AnyCommand | AnyRequest

# --- what the client hears --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """Base: who says it, and how far the log was committed then."""

    epoch: Epoch
    commit_index: LogIndex


@dataclass(frozen=True, slots=True)
class SessionAttached(ServerMessage):
    session: SessionKey
    session_epoch: Epoch
    """Epoch in which the session was opened: part of its name."""
    next_number: int
    """The command that the set expects next; the client sends again from here."""
    candidates: tuple[str, ...]
    """Addresses of brokers that may serve this set (known hosts); the one believed to be primary is the first, here and below."""


@dataclass(frozen=True, slots=True)
class AttachRefused(ServerMessage):
    """UNKNOWN_SESSION: its commands without an answer are in doubt. NOT_PRIMARY: try the candidates."""

    code: ErrorCode
    message: str
    candidates: tuple[str, ...]


class CommandAnswered(msgspec.Struct, frozen=True, gc=False):
    """Answer to one command. code NONE: done. `value` as the command says; for begin it is the transaction's index.

    The epoch of that transaction is the one in which its begin was sent last: had an earlier epoch's log kept it, the resumption
    would not have asked for it again.
    """

    number: int
    code: ErrorCode
    message: str
    value: int


@dataclass(frozen=True, slots=True)
class Answers(ServerMessage):
    """Answers, in the order of their numbers but for begin's, which comes early."""

    answers: tuple[CommandAnswered, ...]


@dataclass(frozen=True, slots=True)
class PushedBack(ServerMessage):
    """These commands took no number and did nothing: send them again, from `number` on, later."""

    number: int
    code: ErrorCode
    message: str


class DeliveredMessage(msgspec.Struct, frozen=True, gc=False):
    position: QueuePosition
    properties: bytes
    body: bytes
    delivery_count: int
    expires_ms: int
    is_durable: bool


@dataclass(frozen=True, slots=True)
class Deliveries(ServerMessage):
    """Messages that the session now holds, for one consumer. They are named by (queue, epoch of this message, position)."""

    consumer: int
    queue: str
    messages: tuple[DeliveredMessage, ...]


@dataclass(frozen=True, slots=True)
class ConsumerOpened(ServerMessage):
    consumer: int


@dataclass(frozen=True, slots=True)
class ConsumerClosed(ServerMessage):
    """The queue is gone, unknown, or may not be consumed from."""

    consumer: int
    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class BrowseAnswer(ServerMessage):
    request: int
    code: ErrorCode
    message: str
    messages: tuple[DeliveredMessage, ...]
    is_end: bool
    """There was nothing behind the last of them."""


class OutcomeState:
    """What `GetOutcome` can say (DESIGN T5). On the wire."""

    UNKNOWN = 0
    """This set's log has not come as far as the transaction's begin: nobody was ever told that name."""
    OPEN = 1
    PREPARED = 2
    COMMITTED = 3
    ROLLED_BACK = 4
    EXPIRED = 5
    HEURISTICALLY_COMMITTED = 6
    HEURISTICALLY_ROLLED_BACK = 7


@dataclass(frozen=True, slots=True)
class OutcomeAnswer(ServerMessage):
    request: int
    transaction: TransactionKey
    state: int
    """A value of `OutcomeState`."""
    reason: int
    """A value of `RollbackReason`, 0 when unknown or not rolled back."""


@dataclass(frozen=True, slots=True)
class QueueDescription:
    name: str
    queue_id: int
    is_durable: bool
    length: int
    bytes: int
    held: int
    """Messages in somebody's hands: delivered, or locked by a transaction."""
    consumers: int


@dataclass(frozen=True, slots=True)
class Description(ServerMessage):
    request: int
    log_end: LogIndex
    state_hash: str
    """Of the state at `log_end`; "" unless it was asked for."""
    queues: tuple[QueueDescription, ...]
    exchanges: tuple[tuple[str, str, bool], ...]
    """(name, kind, is durable)."""
    open_transactions: int
    prepared_transactions: int
    sessions: int
    tx_queue_bytes: int
    """Content of transactions whose outcome is not yet durable at every in-sync member."""


@dataclass(frozen=True, slots=True)
class CandidatesChanged(ServerMessage):
    """The brokers that may serve the set are now these."""

    candidates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered(ServerMessage):
    """The process that serves this stream lives."""


@dataclass(frozen=True, slots=True)
class SessionEnded(ServerMessage):
    """The session is no more (detached, timed out), or this process stops serving it (NOT_PRIMARY: resume elsewhere)."""

    code: ErrorCode
    message: str


AnyServerMessage = (
    SessionAttached
    | AttachRefused
    | Answers
    | PushedBack
    | Deliveries
    | ConsumerOpened
    | ConsumerClosed
    | BrowseAnswer
    | OutcomeAnswer
    | Description
    | CandidatesChanged
    | HeartbeatAnswered
    | SessionEnded
)
