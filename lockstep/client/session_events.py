"""What a session core is told (inputs) and what it asks for (effects).

Law: effects are performed in order. A stream is named by a number of the core's choice; whatever is said about one that the core
has closed or that was lost is ignored. Times are milliseconds of any clock that does not go back.
"""

import msgspec

from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SessionId, SessionKey, TransactionKey
from lockstep.core.requests import ClientMessage, Question
from lockstep.core.server_messages import Answer, AnyServerMessage, DeliveredMessage

Ticket = object
"""The caller's name for a command or question: it comes back with the answer, once."""

# --- inputs -----------------------------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True):
    """Find the primary and open the session. The first input."""


class Ask(msgspec.Struct, frozen=True):
    """A question that changes nothing (or, as a fence, no more by being asked twice); it is asked again after a resumption.

    Its request number is given by the core. Answered by `QuestionAnswered` or `CommandRejected`.
    """

    ticket: Ticket
    question: Question


class StartConsuming(msgspec.Struct, frozen=True):
    """Open a consumer; it is opened again after every resumption until `StopConsuming` or `ConsumerStopped`."""

    consumer: int
    queue: str
    credit: int
    is_exclusive: bool = False
    selector: str = ""
    """Only messages that match it; "": all."""
    is_browser: bool = False
    """It is shown copies of what is in the queue, each once over all resumptions; none is held or can be settled."""
    after: QueuePosition | None = None
    """Of a browser: only what is behind this position; None: all."""


class Drain(msgspec.Struct, frozen=True):
    """Deliver what its credit allows and can be delivered, then take back the rest of it. Answered by `ConsumerDrained` once,
    over any number of resumptions, unless the consumer stops before."""

    consumer: int


class StopConsuming(msgspec.Struct, frozen=True):
    """No more deliveries for it: what arrives later is released. What was delivered stays held until it is settled."""

    consumer: int


class Received(msgspec.Struct, frozen=True):
    """The stream carried these."""

    stream: int
    messages: tuple[AnyServerMessage, ...]


class StreamLost(msgspec.Struct, frozen=True):
    """The stream ended, or could not be opened."""

    stream: int
    reason: str


class Tick(msgspec.Struct, frozen=True):
    """The time asked for by `ArmTimer` has come. `has_moved`: much has got through since the last time, of messages that are not
    whole yet."""

    has_moved: bool = False


class Turn(msgspec.Struct, frozen=True):
    """What came together has come: it may be written."""


class Learn(msgspec.Struct, frozen=True):
    """From elsewhere: an epoch that is served or was, and addresses (none: nothing new), the primary's first."""

    epoch: Epoch
    candidates: tuple[str, ...] = ()


class Close(msgspec.Struct, frozen=True):
    """No more commands. Ends the session once all are answered, then `Closed`."""


Input = (
    Start | Ask | StartConsuming | Drain | StopConsuming | Received | StreamLost | Tick | Learn | Close | Turn
)

# --- effects ----------------------------------------------------------------------------------------------------------


class OpenStream(msgspec.Struct, frozen=True):
    """Open a session stream to a broker. Answered by `Received` or `StreamLost`; it may be written to at once."""

    stream: int
    address: str


class CloseStream(msgspec.Struct, frozen=True):
    """Drop it; what it still carries is of no interest."""

    stream: int


class Send(msgspec.Struct, frozen=True):
    """One write. Followed by `SessionCore.written` when the stream has taken it; there is at most one under way."""

    stream: int
    messages: tuple[ClientMessage, ...]


class ArmTimer(msgspec.Struct, frozen=True):
    """One timer: this time replaces the one before."""

    at: int


class CommandDone(msgspec.Struct, frozen=True):
    """It happened. `value` as the command says. `transaction`: the one that a begin opened; `begun`: those that a commit did."""

    ticket: Ticket
    value: int
    transaction: TransactionKey | None = None
    begun: tuple[TransactionKey, ...] = ()


class Done(msgspec.Struct, frozen=True):
    """What whoever waits for a command is told of `CommandDone`. It has no ticket: a future that had itself in its result would
    stay until garbage is collected, and with it all that was said."""

    value: int
    transaction: TransactionKey | None = None
    begun: tuple[TransactionKey, ...] = ()


CommandAnswer = Done | Rejected | InDoubt
"""What whoever waits for a command is told."""


class CommandRejected(msgspec.Struct, frozen=True):
    """It did not happen. `value`: of a branch's verb, the `BranchState` that it met."""

    ticket: Ticket
    code: ErrorCode
    message: str
    value: int = 0


class CommandInDoubt(msgspec.Struct, frozen=True):
    """It may have happened: the session that it belonged to is gone. `transaction` of a commit: ask for its outcome."""

    ticket: Ticket
    code: ErrorCode
    message: str
    transaction: TransactionKey | None = None


class PoisonFound(msgspec.Struct, frozen=True):
    """Primaries ended over the command of that number, which is refused: somebody should hear of it besides its caller."""

    number: int
    kind: str
    """Name of its type."""
    text: str


class QuestionAnswered(msgspec.Struct, frozen=True):
    ticket: Ticket
    answer: Answer


class TransactionAborted(msgspec.Struct, frozen=True):
    """An open transaction that was not told to commit is rolled back: its epoch ended, or its session is gone (DESIGN T8)."""

    transaction: TransactionKey


class Delivered(msgspec.Struct, frozen=True):
    """The session holds these now, named by (queue, epoch, position), until a settle names them or they are voided.

    What is delivered to a browser is not held.
    """

    consumer: int
    queue: str
    epoch: Epoch
    messages: tuple[DeliveredMessage, ...]


HeldByQueue = dict[str, dict[QueuePosition, int]]
"""Deliveries that a session holds: queue -> position -> consumer; no queue without any."""


class DeliveriesVoided(msgspec.Struct, frozen=True):
    """No longer held: the epoch or the session that they were delivered in is over. Of what a core says as `AllVoided`."""

    consumer: int
    queue: str
    epoch: Epoch
    positions: tuple[QueuePosition, ...]


class AllVoided(msgspec.Struct, frozen=True):
    """All that was held is no longer, for there may be very much: `told_apart` makes `DeliveriesVoided` of it. Their credit is
    with the consumers again."""

    held: dict[Epoch, HeldByQueue]
    """By the epoch in which it arrived."""


class ConsumerStarted(msgspec.Struct, frozen=True):
    """The primary knows it (again)."""

    consumer: int


class ConsumerDrained(msgspec.Struct, frozen=True):
    """Everything that could be delivered was; it has no credit but what was granted behind its `Drain`."""

    consumer: int


class ConsumerStopped(msgspec.Struct, frozen=True):
    """The queue is gone, unknown, or may not be consumed from; the consumer is forgotten."""

    consumer: int
    code: ErrorCode
    message: str


class Attached(msgspec.Struct, frozen=True):
    """The session is served. `is_new`: it was opened, not resumed."""

    address: str
    session_id: SessionId
    session: SessionKey
    epoch: Epoch
    commit_index: LogIndex
    is_new: bool


class SessionLost(msgspec.Struct, frozen=True):
    """The set knows the session no longer, or nobody could be reached for too long. All it had is answered before this;
    a new session is opened by itself, and the consumers again in it."""

    code: ErrorCode
    message: str


class Closed(msgspec.Struct, frozen=True):
    """The core is done. code NONE: as asked; otherwise why no session is possible."""

    code: ErrorCode
    message: str


Effect = (
    OpenStream
    | CloseStream
    | Send
    | ArmTimer
    | CommandDone
    | CommandRejected
    | CommandInDoubt
    | PoisonFound
    | QuestionAnswered
    | TransactionAborted
    | Delivered
    | AllVoided
    | DeliveriesVoided
    | ConsumerStarted
    | ConsumerDrained
    | ConsumerStopped
    | Attached
    | SessionLost
    | Closed
)
