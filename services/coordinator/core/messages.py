"""What reaches a coordinator's core, and what it wants done.

Law: an effect with a ticket is answered once, by an input with that ticket; an answer whose ticket is not waited for any more is
ignored. A change of the log is sent once, and an answer that did not come is `LogInDoubt`, never a guess.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NewType

from lockstep.core.branch_names import GenerationTag, GlobalId, ParticipantName
from lockstep.core.decision_log import NO_LIST, ListRead, LogView, OutcomeEntry, ParticipantsEntry, Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Incarnation
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from services.coordinator.core.steps import Step
from services.coordinator.core.votes import Completion, Verb, Vote

RequestId = NewType("RequestId", int)
"""A client's call that waits for its answer."""
Ticket = NewType("Ticket", int)
"""A call of this process to a participant or to the log."""


class State(Enum):
    """What a client is told of a transaction."""

    NOT_KNOWN = "not known"
    """The log has nothing, and this never means that it was rolled back: a participant may know (history 26)."""
    UNDECIDED = "undecided"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


# Inputs: clients


@dataclass(frozen=True, slots=True)
class BeginAsked:
    """`global_id` was made for it; `open_ms` 0: the default."""

    request: RequestId
    global_id: GlobalId
    generation: GenerationTag
    open_ms: int = 0


@dataclass(frozen=True, slots=True)
class EnlistAsked:
    """The client gives the number: it knows how many it has enlisted, with whichever coordinators."""

    request: RequestId
    global_id: GlobalId
    generation: GenerationTag
    number: int
    participant: ParticipantName


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """Write the list ahead; the client prepares branches of its own when it has the answer."""

    request: RequestId
    global_id: GlobalId
    generation: GenerationTag
    participants: tuple[ParticipantName, ...]


@dataclass(frozen=True, slots=True)
class CommitAsked:
    """`is_closed`: a close was answered, so the list is in the log, or somebody has finished the transaction."""

    request: RequestId
    global_id: GlobalId
    generation: GenerationTag
    participants: tuple[ParticipantName, ...]
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class RollbackAsked:
    """The list is as complete as the client knows it."""

    request: RequestId
    global_id: GlobalId
    generation: GenerationTag
    participants: tuple[ParticipantName, ...]
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class OutcomeAsked:
    """`is_fence`: an undecided one is to be aborted first, so that the answer is final (DESIGN T5)."""

    request: RequestId
    global_id: GlobalId
    is_fence: bool


@dataclass(frozen=True, slots=True)
class RecoverAsked:
    """Look at the log now; answered by `RecoverAnswer`."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class HoldAsked:
    """Begin no commit until it is dropped (`commit_hold.py`); answered by `HeldAnswer` when none is under way, or refused."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class RequestDropped:
    """Its client is gone; what it began goes on, but for a hold."""

    request: RequestId


# Inputs: participants, log, time


@dataclass(frozen=True, slots=True)
class Voted:
    ticket: Ticket
    vote: Vote


@dataclass(frozen=True, slots=True)
class Completed:
    ticket: Ticket
    completion: Completion


@dataclass(frozen=True, slots=True)
class LogWritten:
    """The change was made; `revision` is the mod_revision of all that it wrote."""

    ticket: Ticket
    revision: int


@dataclass(frozen=True, slots=True)
class LogRefused:
    """A compare did not hold, nothing was changed; `view` is of the same moment."""

    ticket: Ticket
    view: LogView


@dataclass(frozen=True, slots=True)
class LogInDoubt:
    """It may have been changed, or may be later; or it certainly was not, but nothing is known of the log."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class LogRead:
    """Answer to `ReadLog`; a read that failed is `LogInDoubt`."""

    ticket: Ticket
    view: LogView


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """One entry of a listing."""

    global_id: GlobalId
    entry: ParticipantsEntry
    read: ListRead
    decision: Verdict | None


@dataclass(frozen=True, slots=True)
class LogListed:
    """Answer to `ListLog`, read at one revision; a listing that failed is `LogInDoubt`."""

    ticket: Ticket
    transactions: tuple[LoggedTransaction, ...]
    owners: frozenset[Incarnation]
    """Coordinators whose presence is there."""
    generation: GenerationTag | None
    """Of the cluster; None: it has none."""


@dataclass(frozen=True, slots=True)
class LogSeen:
    """Something else in etcd was read, and compared with what was seen of it before."""

    asked_ms: int
    """CLOCK_BOOTTIME."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Woken:
    """The turn that `WakeSoon` asked for."""


@dataclass(frozen=True, slots=True)
class GiveUpAsked:
    """An operator says that a participant, which is told the end of a transaction and does not answer, is not there."""

    request: RequestId
    global_id: GlobalId
    participant: ParticipantName


Input = (
    BeginAsked
    | EnlistAsked
    | CloseAsked
    | CommitAsked
    | RollbackAsked
    | OutcomeAsked
    | RecoverAsked
    | HoldAsked
    | GiveUpAsked
    | RequestDropped
    | Voted
    | Completed
    | LogWritten
    | LogRefused
    | LogInDoubt
    | LogRead
    | LogListed
    | LogSeen
    | Tick
    | Woken
)


# Effects


@dataclass(frozen=True, slots=True)
class WriteParticipants:
    """Put `entry`, if no participants, decision or outcome is there, this coordinator's presence is, and the cluster's
    generation is the entry's. With `replaces`: if that very entry stands without a decision, instead of "no participants". With
    `decision`: that too, in the same transaction; `needs_roll`: and if a roll call was answered before.
    """

    ticket: Ticket
    global_id: GlobalId
    entry: ParticipantsEntry
    replaces: ListRead = NO_LIST
    decision: Verdict | None = None
    needs_roll: bool = False


@dataclass(frozen=True, slots=True)
class Decide:
    """Put the decision, if there is none, the participants entry is `expected` (T3), and the cluster's generation is the one in
    which it was begun: the commit point. `needs_roll`: and if a roll call was answered before. With `entry`: that in
    the place of the participants entry, in the same transaction.
    """

    ticket: Ticket
    global_id: GlobalId
    expected: ListRead
    verdict: Verdict
    generation: GenerationTag
    needs_roll: bool = False
    entry: ParticipantsEntry | None = None


@dataclass(frozen=True, slots=True)
class KeepCommitted:
    """Put `entry`, which says who has committed, if the participants entry is `expected` and COMMIT is decided."""

    ticket: Ticket
    global_id: GlobalId
    expected: ListRead
    entry: ParticipantsEntry


@dataclass(frozen=True, slots=True)
class DeleteTransaction:
    """Delete participants and decision and put the outcome (None: none), if the participants entry is `expected` and the
    decision is `decision` (None: absent). `needs_roll`: and if a roll call was answered before.
    """

    ticket: Ticket
    global_id: GlobalId
    expected: ListRead
    decision: Verdict | None
    outcome: OutcomeEntry | None
    needs_roll: bool = False


@dataclass(frozen=True, slots=True)
class ReadLog:
    ticket: Ticket
    global_id: GlobalId


@dataclass(frozen=True, slots=True)
class ListLog:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class TellBranch:
    """Answered by `Voted` to prepare, by `Completed` to all else."""

    ticket: Ticket
    participant: ParticipantName
    xid: Xid
    verb: Verb
    together: tuple[ParticipantName, ...] = ()
    """Of prepare: all participants, for those who tell readers of events which resource sets to read up to one cut."""


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    """To begin and to close."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class EnlistedAnswer:
    """The branch's name, under which the client works at that participant."""

    request: RequestId
    xid: Xid


@dataclass(frozen=True, slots=True)
class OutcomeAnswer:
    """To commit, rollback and outcome. COMMITTED and ROLLED_BACK are final; the others leave it in doubt."""

    request: RequestId
    state: State
    hazards: tuple[tuple[ParticipantName, str], ...] = ()
    pending: tuple[ParticipantName, ...] = ()
    """Those that have not acknowledged yet, and will be told until they do."""
    heuristic: XaStatus = XaStatus.OK
    """What the hazards make of the whole."""


@dataclass(frozen=True, slots=True)
class RecoverAnswer:
    request: RequestId
    taken_up: tuple[GlobalId, ...]


@dataclass(frozen=True, slots=True)
class GivenUpAnswer:
    """The participant is not told any more. `state`: what was decided."""

    request: RequestId
    state: State


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """Nothing is being committed, and nothing will be: until the request is dropped, or for `left_ms`."""

    request: RequestId
    left_ms: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """It did not happen."""

    request: RequestId
    code: ErrorCode
    message: str
    limit: str = ""
    """Which limit has refused it."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A named step; nothing has to be done."""

    step: Step
    global_id: GlobalId


@dataclass(frozen=True, slots=True)
class Note:
    """For the log of the process."""

    event: str
    global_id: GlobalId
    details: str = ""
    is_warning: bool = False
    """Somebody has to do something."""


@dataclass(frozen=True, slots=True)
class WakeSoon:
    """Feed `Woken` when others have had their turn: there is more to do than one step takes."""


Effect = (
    WriteParticipants
    | Decide
    | KeepCommitted
    | DeleteTransaction
    | ReadLog
    | ListLog
    | TellBranch
    | BegunAnswer
    | EnlistedAnswer
    | OutcomeAnswer
    | RecoverAnswer
    | HeldAnswer
    | GivenUpAnswer
    | Refusal
    | Reached
    | Note
    | WakeSoon
)
