"""What a session core is told (inputs) and what it asks for (effects).

Law: effects are performed in order. A stream is named by a number of the core's choice; whatever is said about one that the core
has closed or that was lost is ignored. Times are milliseconds of any clock that does not go back.
"""

from dataclasses import dataclass

from lockstep.core.commands import AnyCommand
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SessionId, SessionKey, TransactionKey
from lockstep.core.requests import ClientMessage, Question
from lockstep.core.server_messages import Answer, AnyServerMessage, DeliveredMessage

Ticket = object
"""The caller's name for a command or question: it comes back with the answer, once."""

# --- inputs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Find the primary and open the session. The first input."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Do this, once. The core gives it its number, and to an operation or commit of a transaction its sequence or count.

    Answered by one of `CommandDone`, `CommandRejected`, `CommandInDoubt`.
    """

    ticket: Ticket
    command: AnyCommand


@dataclass(frozen=True, slots=True)
class Ask:
    """A question that changes nothing (or, as a fence, no more by being asked twice); it is asked again after a resumption.

    Its request number is given by the core. Answered by `QuestionAnswered` or `CommandRejected`.
    """

    ticket: Ticket
    question: Question


@dataclass(frozen=True, slots=True)
class StartConsuming:
    """Open a consumer; it is opened again after every resumption until `StopConsuming` or `ConsumerStopped`."""

    consumer: int
    queue: str
    credit: int
    is_exclusive: bool = False
    selector: str = ""
    """Only messages that match it; "": all."""
    is_browser: bool = False
    """It is shown copies of what is in the queue, each once over all resumptions; none is held or can be settled."""


@dataclass(frozen=True, slots=True)
class Grant:
    """More credit for a consumer; ignored when it has stopped."""

    consumer: int
    credit: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Deliver what its credit allows and can be delivered, then take back the rest of it. Answered by `ConsumerDrained` once,
    over any number of resumptions, unless the consumer stops before."""

    consumer: int


@dataclass(frozen=True, slots=True)
class StopConsuming:
    """No more deliveries for it: what arrives later is released. What was delivered stays held until it is settled."""

    consumer: int


@dataclass(frozen=True, slots=True)
class Received:
    """The stream carried these."""

    stream: int
    messages: tuple[AnyServerMessage, ...]


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The stream ended, or could not be opened."""

    stream: int
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """The last `Send` on this stream was taken: the next may follow."""

    stream: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The time asked for by `ArmTimer` has come."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What came together has come: it may be written."""


@dataclass(frozen=True, slots=True)
class Learn:
    """From elsewhere: an epoch that is served or was, and addresses (none: nothing new), the primary's first."""

    epoch: Epoch
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Close:
    """No more commands. Ends the session once all are answered, then `Closed`."""


Input = (
    Start
    | Submit
    | Ask
    | StartConsuming
    | Grant
    | Drain
    | StopConsuming
    | Received
    | StreamLost
    | Written
    | Tick
    | Learn
    | Close
    | Turn
)

# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Open a session stream to a broker. Answered by `Received` or `StreamLost`; it may be written to at once."""

    stream: int
    address: str


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Drop it; what it still carries is of no interest."""

    stream: int


@dataclass(frozen=True, slots=True)
class Send:
    """One write. Answered by `Written` when the stream has taken it; there is at most one under way."""

    stream: int
    messages: tuple[ClientMessage, ...]


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """One timer: this time replaces the one before."""

    at: int


@dataclass(frozen=True, slots=True)
class CommandDone:
    """It happened. `value` as the command says. `transaction`: the one that a begin opened."""

    ticket: Ticket
    value: int
    transaction: TransactionKey | None = None


@dataclass(frozen=True, slots=True)
class CommandRejected:
    """It did not happen. `value`: of a branch's verb, the `BranchState` that it met."""

    ticket: Ticket
    code: ErrorCode
    message: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class CommandInDoubt:
    """It may have happened: the session that it belonged to is gone. `transaction` of a commit: ask for its outcome."""

    ticket: Ticket
    code: ErrorCode
    message: str
    transaction: TransactionKey | None = None


@dataclass(frozen=True, slots=True)
class QuestionAnswered:
    ticket: Ticket
    answer: Answer


@dataclass(frozen=True, slots=True)
class TransactionAborted:
    """An open transaction that was not told to commit is rolled back: its epoch ended, or its session is gone (DESIGN T8)."""

    transaction: TransactionKey


@dataclass(frozen=True, slots=True)
class Delivered:
    """The session holds these now, named by (queue, epoch, position), until a settle names them or they are voided.

    What is delivered to a browser is not held.
    """

    consumer: int
    queue: str
    epoch: Epoch
    messages: tuple[DeliveredMessage, ...]


@dataclass(frozen=True, slots=True)
class DeliveriesVoided:
    """No longer held: the epoch or the session that they were delivered in is over. Their credit is with the consumer again."""

    consumer: int
    queue: str
    epoch: Epoch
    positions: tuple[QueuePosition, ...]


@dataclass(frozen=True, slots=True)
class ConsumerStarted:
    """The primary knows it (again)."""

    consumer: int


@dataclass(frozen=True, slots=True)
class ConsumerDrained:
    """Everything that could be delivered was; it has no credit but what was granted behind its `Drain`."""

    consumer: int


@dataclass(frozen=True, slots=True)
class ConsumerStopped:
    """The queue is gone, unknown, or may not be consumed from; the consumer is forgotten."""

    consumer: int
    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class Attached:
    """The session is served. `is_new`: it was opened, not resumed."""

    address: str
    session_id: SessionId
    session: SessionKey
    epoch: Epoch
    commit_index: LogIndex
    is_new: bool


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The set knows the session no longer, or nobody could be reached for too long. All it had is answered before this;
    a new session is opened by itself, and the consumers again in it."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class Closed:
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
    | QuestionAnswered
    | TransactionAborted
    | Delivered
    | DeliveriesVoided
    | ConsumerStarted
    | ConsumerDrained
    | ConsumerStopped
    | Attached
    | SessionLost
    | Closed
)
