"""Server messages: what a client hears on a session stream (DESIGN 6).

Law: every message of a primary carries its epoch and commit index; a client drops what comes with a lower epoch than it has seen
(R6).

What exists once per message (`DeliveredMessage`) or once per command (`CommandAnswered`) is a msgspec struct: it is made in a
fifth of the time of a frozen dataclass.
"""

import msgspec

from lockstep.core.asides import PLAIN, Aside
from lockstep.core.deaths import Deaths
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SessionKey, TransactionKey
from lockstep.core.subscriptions import Group


class ServerMessage(msgspec.Struct, frozen=True):
    """Base: who says it, and how far the log was committed then."""

    epoch: Epoch
    commit_index: LogIndex


class SessionAttached(ServerMessage, frozen=True):
    session: SessionKey
    session_epoch: Epoch
    """Epoch in which the session was opened: part of its name."""
    next_number: int
    """The command that the set expects next; the client sends again from here."""
    candidates: tuple[str, ...]
    """Addresses of brokers that may serve this set (known hosts); the one believed to be primary is the first, here and below."""
    kept_from: Epoch = Epoch(0)
    """What the session had open or in hand in epochs from this one on is still there; 0: in the present one alone (T6, T8)."""
    takes_last_publish: bool = False
    """A commit may bring its transaction's last publish; older primaries do not know of it."""


class AttachRefused(ServerMessage, frozen=True):
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


class Answers(ServerMessage, frozen=True):
    """Answers, in the order of their numbers but for begin's, which comes early."""

    answers: tuple[CommandAnswered, ...]


class PushedBack(ServerMessage, frozen=True):
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
    aside: Aside | None = None

    @property
    def deaths(self) -> Deaths:
        return (self.aside or PLAIN).deaths

    @property
    def annotations(self) -> bytes:
        return (self.aside or PLAIN).annotations

    @property
    def priority(self) -> int:
        return (self.aside or PLAIN).priority


class Deliveries(ServerMessage, frozen=True):
    """Messages that the session now holds, for one consumer. They are named by (queue, epoch of this message, position)."""

    consumer: int
    queue: str
    messages: tuple[DeliveredMessage, ...]
    are_copies: bool = False
    """A browser's: the session holds none of them."""


class ConsumerOpened(ServerMessage, frozen=True):
    consumer: int


class ConsumerDrained(ServerMessage, frozen=True):
    """Whatever could be delivered was; the consumer has no credit any more."""

    consumer: int
    credit: int
    """What was left of it and is taken back."""


class ConsumerClosed(ServerMessage, frozen=True):
    """The queue is gone, unknown, or may not be consumed from so."""

    consumer: int
    code: ErrorCode
    message: str


class BrowseAnswer(ServerMessage, frozen=True):
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


class OutcomeAnswer(ServerMessage, frozen=True):
    request: int
    transaction: TransactionKey
    state: int
    """A value of `OutcomeState`."""
    reason: int
    """A value of `RollbackReason`, 0 when unknown or not rolled back."""


class QueueDescription(msgspec.Struct, frozen=True):
    name: str
    queue_id: int
    is_durable: bool
    length: int
    bytes: int
    held: int
    """Messages in somebody's hands: delivered, or locked by a transaction."""
    consumers: int


class Description(ServerMessage, frozen=True):
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
    next_page_token: int = 0
    """What asks for the queues and exchanges behind these; 0: there are none."""


class QueueDetails(ServerMessage, frozen=True):
    """What was declared of a queue, at the log's end."""

    request: int
    code: ErrorCode
    """NOT_FOUND: there is no such queue."""
    is_durable: bool = False
    is_exclusive: bool = False
    """Only the session that declared it uses it."""
    is_auto_delete: bool = False
    length: int = 0
    """Messages in it, whoever has them."""
    consumers: int = 0
    """Without browsers."""
    bindings: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = ()
    """(exchange, key, arguments) of each; of very many the first, in the order of their exchanges' ids."""


class ExchangeDetails(ServerMessage, frozen=True):
    """What was declared of an exchange, at the log's end."""

    request: int
    code: ErrorCode
    """NOT_FOUND: there is no such exchange."""
    kind: str = ""
    is_durable: bool = False


class BranchDescription(msgspec.Struct, frozen=True, gc=False):
    """One branch of a distributed transaction."""

    xid: bytes
    transaction: TransactionKey
    state: int
    """A `BranchState`."""
    since_ms: int
    """When it was prepared, or else begun (TimeMs)."""
    operations: int
    sessions: tuple[str, ...]
    """Tags of the sessions that work in it, or of the one that began it (`session_tag`)."""


class Recovered(ServerMessage, frozen=True):
    request: int
    branches: tuple[BranchDescription, ...]
    is_end: bool


class TimeoutAnswer(ServerMessage, frozen=True):
    request: int
    code: ErrorCode
    """NOT_FOUND: there is no such branch."""
    timeout_ms: int
    """0: none."""


class CandidatesChanged(ServerMessage, frozen=True):
    """The brokers that may serve the set are now these."""

    candidates: tuple[str, ...]


class HeartbeatAnswered(ServerMessage, frozen=True):
    """The process that serves this stream lives."""

    pause_ms: int = 0
    """So long the client should wait before its next heartbeat, at least: many clients together must not drown the set."""
    next_number: int = 0
    """Of the command that the session is to have next: those before it are in the log, those from it on may wait still, for it is
    answered in front of them; 0: not said.
    """


class SessionEnded(ServerMessage, frozen=True):
    """The session is no more (detached, timed out), or this process stops serving it (NOT_PRIMARY: resume elsewhere)."""

    code: ErrorCode
    message: str


Answer = (
    BrowseAnswer | OutcomeAnswer | Description | QueueDetails | ExchangeDetails | Recovered | TimeoutAnswer
)
"""To a `Question`."""
AnyServerMessage = (
    SessionAttached
    | AttachRefused
    | Answers
    | PushedBack
    | Deliveries
    | ConsumerOpened
    | ConsumerDrained
    | ConsumerClosed
    | BrowseAnswer
    | OutcomeAnswer
    | Description
    | QueueDetails
    | ExchangeDetails
    | Recovered
    | TimeoutAnswer
    | CandidatesChanged
    | HeartbeatAnswered
    | SessionEnded
)


# --- told to a broker by its own replica, never on the wire ---------------------------------------------------------------


class SubscriptionsAnswer(ServerMessage, frozen=True):
    request: int
    code: ErrorCode
    message: str
    groups: tuple[Group, ...]
    """All of the set, by name."""


class BranchEnd(msgspec.Struct, frozen=True):
    """How a transaction's branches in one set stand together. Nothing at all: there are none, or their outcomes are forgotten."""

    is_prepared: bool = False
    index: LogIndex = LogIndex(0)
    """Of the record that ended the last of them that has ended; 0: none has."""
    is_committed: bool = False
    forgotten_up_to: LogIndex = LogIndex(0)
    """Where there is nothing: outcomes of records up to here are not known any more."""
    first_index: LogIndex = LogIndex(0)
    """Of the record that ended the first of them, where that is before `index`; 0: it is not."""
    may_be_forgotten: bool = False
    """There may have been one (more) of which the outcome is forgotten: those of transactions that were begun later are."""


class BranchesFound(ServerMessage, frozen=True):
    request: int
    ends: tuple[BranchEnd, ...]
    """In the order asked for."""
    prepared: tuple[bytes, ...]
    """Xids of all prepared branches of our own coordinator, where that was asked."""


BrokerAnswer = SubscriptionsAnswer | BranchesFound
"""Answers to a `BrokerRequest`."""
Told = AnyServerMessage | BrokerAnswer
"""What a replica tells on a client's stream."""
