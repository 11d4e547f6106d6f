"""What the command handlers of one epoch share."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from lockstep.core.clock import Now
from lockstep.core.doubt_watch import DoubtWatch
from lockstep.core.effects import AnyEffect, Note
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.ids import Epoch, SessionKey, TransactionKey
from lockstep.core.pieces import Pieces
from lockstep.core.queues import Queue
from lockstep.core.records import CommandRef
from lockstep.core.resident_bodies import ResidentBodies
from lockstep.core.server_messages import CommandAnswered
from lockstep.core.set_state import SetState
from lockstep.core.wire_numbers import error_code
from services.primary.core.alone import Alone
from services.primary.core.decision_questions import DecisionQuestions
from services.primary.core.dispatch import Dispatch
from services.primary.core.expiry import Expiry
from services.primary.core.figures import Figures
from services.primary.core.outcome_askers import OutcomeAskers
from services.primary.core.read_back import ReadBack
from services.primary.core.selecting import Selectors
from services.primary.core.settings import PrimarySettings
from services.primary.core.tx_queue import TxQueues
from services.primary.core.writer import Writer


@dataclass(slots=True)
class TransactionProgress:
    """What the primary knows of an open transaction beyond the log: how its clients number the operations (T1)."""

    session: SessionKey
    """Whose share of open transactions it counts in: the one that began it."""
    ends_ms: int = 0
    """When its time-out ends, on CLOCK_BOOTTIME; 0: never."""
    sequences: dict[SessionKey, int] = field(default_factory=dict)
    """Operations taken so far from each session that works in it (one, but for a branch); the next has this number + 1."""
    ordinal: int = 0
    """Next ordinal."""
    bytes: int = 0
    """Content that its operations carry."""
    is_name: bool = False
    """A TX of which the log has no record yet: all that is of it is its name, which its session was told."""


class OpenTransactions:
    """The open transactions of one resource set, and how many of them each session has. Lives as long as the epoch."""

    def __init__(self) -> None:
        self._by_key: dict[TransactionKey, TransactionProgress] = {}
        self._of_session: dict[SessionKey, dict[TransactionKey, None]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: TransactionKey) -> bool:
        return key in self._by_key

    def __getitem__(self, key: TransactionKey) -> TransactionProgress:
        return self._by_key[key]

    def items(self) -> Iterable[tuple[TransactionKey, TransactionProgress]]:
        return self._by_key.items()

    def is_name(self, key: TransactionKey) -> bool:
        """Whether the log has nothing of this one yet."""
        progress = self._by_key.get(key)
        return progress is not None and progress.is_name

    def names(self) -> list[TransactionKey]:
        """All of which the log has nothing yet, by key."""
        return sorted(key for key, progress in self._by_key.items() if progress.is_name)

    def of(self, session: SessionKey) -> list[TransactionKey]:
        """Those that count for one session."""
        return list(self._of_session.get(session, ()))

    def count(self, session: SessionKey) -> int:
        """How many a session has."""
        return len(self._of_session.get(session, ()))

    def begin(self, key: TransactionKey, progress: TransactionProgress) -> None:
        self._by_key[key] = progress
        self._of_session.setdefault(progress.session, {})[key] = None

    def end(self, key: TransactionKey) -> None:
        """It is not open any more; nothing if it was not."""
        progress = self._by_key.pop(key, None)
        if progress is None:
            return
        keys = self._of_session[progress.session]
        del keys[key]
        if not keys:
            del self._of_session[progress.session]


@dataclass(slots=True)
class Context:
    """Lives as long as the epoch; made by the primary core."""

    epoch: Epoch
    state: SetState
    writer: Writer
    dispatch: Dispatch
    expiry: Expiry
    tx_queues: TxQueues
    bodies: ResidentBodies
    read_back: ReadBack
    settings: PrimarySettings
    now: Now
    """Of the input at hand."""
    doubts: DoubtWatch[TransactionKey]
    """Prepared branches."""
    askers: OutcomeAskers
    questions: DecisionQuestions
    pieces: Pieces
    """What is too much for one step."""
    alone: Alone
    """What is so, and nothing may come between."""
    figures: Figures = field(default_factory=Figures)
    progress: OpenTransactions = field(default_factory=OpenTransactions)
    selectors: Selectors = field(default_factory=Selectors)
    is_store_low: bool = False
    """The own disk's reserve is touched: nothing is published, so that everything else still finds its place."""
    effects: list[AnyEffect] = field(default_factory=list)
    """What the input at hand wants done."""

    def queue(self, name: str, session: SessionKey | None = None) -> Queue:
        """The queue of that name, for use by `session` if given; raises `Rejected` NOT_FOUND, or LOCKED: exclusive to another."""
        queue = self.state.queues.get(name)
        if queue is None:
            raise Rejected(ErrorCode.NOT_FOUND, f"no queue {shown(name)}", queue=name[:SHOWN_MAX])
        owner = queue.definition.exclusive_session
        if session is not None and owner and owner != session:
            raise Rejected(ErrorCode.LOCKED, f"queue {name!r} is exclusive to another session", queue=name)
        return queue

    def note_refusal(self, error: Rejected) -> None:
        """Has it logged that something is refused, if a limit has done that."""
        if isinstance(error, LimitReached):
            self.effects.append(Note(self.state.set_name, "limit_reached", error.message, limit=error.limit))


class Request(NamedTuple):
    """One command on its way: who asks, and under which number."""

    ref: CommandRef | None
    """None: part of a command, which another record answers."""
    session: SessionKey


SHOWN_MAX = 300
"""Characters of a client's text that an error repeats: enough to know it again, and errors are kept with the session."""


def shown(text: str) -> str:
    """A client's text as errors show it."""
    return repr(text[:SHOWN_MAX])


def check_name(kind: str, name: str, bytes_max: int) -> None:
    """Raises `Rejected` INVALID_ARGUMENT for a name that is empty, too long or not printable."""
    if not name or not name.isprintable() or _utf8_bytes(name) > bytes_max:
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT,
            f"a {kind} name has 1 to {bytes_max} bytes of printable text, not {name[:80]!r}",
            kind=kind,
        )


def check_text(what: str, text: str, bytes_max: int) -> None:
    """Raises `Rejected` INVALID_ARGUMENT for a text that no record could carry: too long, or no UTF-8."""
    size = _utf8_bytes(text)
    if size < 0:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"{what} {text[:80]!r} is no UTF-8 text", what=what)
    if size > bytes_max:
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT, f"{what} has at most {bytes_max} bytes, not {size}", what=what
        )


def _utf8_bytes(text: str) -> int:
    """-1: it has no such form (a lone surrogate)."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


def answer_of(context: Context, ref: CommandRef) -> CommandAnswered:
    """The recorded answer of a command that was executed."""
    session = context.state.sessions.get(ref.session)
    assert session is not None, ref
    answer = session.answers[ref.number]
    return CommandAnswered(ref.number, error_code(answer.code), answer.message, answer.value)
