"""What the command handlers of one epoch share, and how an epoch comes to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lockstep.core.clock import Now
from lockstep.core.doubt_watch import DoubtWatch
from lockstep.core.effects import AnyEffect, Note
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.ids import Epoch, SessionKey, TransactionKey
from lockstep.core.log_copy import LogCopy
from lockstep.core.pieces import Pieces
from lockstep.core.queues import Queue
from lockstep.core.records import CommandRef
from lockstep.core.resident_bodies import ResidentBodies
from lockstep.core.server_messages import CommandAnswered
from lockstep.core.set_state import DONE_IN_ONE, SetState
from lockstep.core.wire_numbers import error_code
from services.primary.core.alone import Alone
from services.primary.core.decision_questions import DecisionQuestions
from services.primary.core.dispatch import Dispatch
from services.primary.core.expiry import Expiry
from services.primary.core.figures import Figures
from services.primary.core.observers import TransactionObserverFactory
from services.primary.core.open_transactions import OpenTransactions
from services.primary.core.outcome_askers import OutcomeAskers
from services.primary.core.read_back import ReadBack
from services.primary.core.replication_log import ReplicationLog
from services.primary.core.selecting import Selectors
from services.primary.core.settings import PrimarySettings
from services.primary.core.tx_queue import TxQueues
from services.primary.core.waiting_letters import WaitingLetters
from services.primary.core.writer import Writer


@dataclass(slots=True)
class Context:
    """Lives as long as the epoch; made by `take_over`."""

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
    letters: WaitingLetters = field(default_factory=WaitingLetters)
    is_store_low: bool = False
    """The own disk's reserve is touched: nothing is published, so that everything else still finds its place."""
    effects: list[AnyEffect] = field(default_factory=list)
    """What the input at hand wants done."""
    work: int = 0
    """Messages that commands of the input at hand brought or settled, and the places in many queues that they got."""

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


def take_over(
    copy: LogCopy,
    epoch: Epoch,
    reign: int,
    tx_queues: TxQueues,
    factories: Sequence[TransactionObserverFactory],
    settings: PrimarySettings,
    now: Now,
) -> Context:
    """Of a new epoch, which goes on with a copy of the log: `reign` is what its frames carry (`reign_of`)."""
    state = copy.state
    alone = Alone(2 * settings.piece_cost)
    state.done_in_one, state.leave = min(DONE_IN_ONE, settings.piece_cost), alone.leave
    log = ReplicationLog(
        epoch,
        copy.retained,
        copy.retained_bytes,
        copy.transients_from,
        copy.log_end,
        copy.commit_index,
        state.time_ms,
        reign,
    )
    return Context(
        epoch,
        state,
        Writer(log, state, factories),
        Dispatch(state.queues.by_id, settings),
        Expiry(state),
        tx_queues,
        copy.bodies,
        ReadBack(epoch, state, settings),
        settings,
        now,
        DoubtWatch(settings.in_doubt_ms, settings.in_doubt_warnings_max),
        OutcomeAskers(settings.decisions_asked_max),
        DecisionQuestions(epoch, settings.decision_ask_ms, settings.decisions_asked_max),
        Pieces(settings.piece_cost),
        alone,
    )


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
