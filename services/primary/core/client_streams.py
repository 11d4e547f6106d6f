"""What the primary says to its clients: the streams that are open, and what is on its way out on each.

Law: what depends on the log is said when the commit index covers it and not before (R3, R11); answers of one turn gather into one
message. A stream that is closed hears nothing, and nobody waits for it.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial

from lockstep.core.effects import CloseClientStream, TellClient
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, SessionKey
from lockstep.core.requests import CloseConsumer, Heard
from lockstep.core.server_messages import (
    Answers,
    AttachRefused,
    CommandAnswered,
    SessionEnded,
    Told,
)
from lockstep.core.taking_apart import emptied
from services.primary.core.context import Context
from services.primary.core.gate import CommitGate
from services.primary.core.gathering import Gathering
from services.primary.core.queue_dispatch import Consumer

_STREAM_COST = 4
"""Of letting one go."""


class CloseHeldBack(CloseConsumer, frozen=True):
    """The end of a consumer, in a backlog. Some of what it finds pushed back when its turn comes was said behind it."""

    behind: int
    """`ClientStream.not_taken_to` when it was said."""


@dataclass(slots=True)
class ClientStream:
    """One stream of a client; ends with its connection."""

    number: int
    session: SessionKey = SessionKey(0)
    """0: not attached."""
    consumers: dict[int, Consumer] = field(default_factory=dict)
    blocked_by: int = 0
    """The claim that the next command waits for; 0: none; below 0: it waits for bodies, or is done in parts."""
    backlog: deque[Heard] = field(default_factory=deque)
    """What came behind a blocked command."""
    backlog_bytes: int = 0
    """Of the messages in it."""
    pushed_back_from: int = 0
    """Commands from this number on were pushed back: what the client had sent behind them is dropped, until it comes again."""
    dropped_to: int = 0
    """The highest number of those that were pushed back, or dropped, when their turn came; 0: none. All of them come again."""
    not_taken_to: int = 0
    """The same of those that the backlog did not take: what waits in it was said before them."""
    answers: list[CommandAnswered] = field(default_factory=list)
    """On their way out with the next flush."""
    answers_waiting: int = 0
    """At the gate."""
    heard_ms: int = 0
    """When the client said something last, on CLOCK_BOOTTIME."""
    questions_waiting: int = 0
    """Requests whose answers wait at the gate."""
    browses_waiting: int = 0
    """Those of them that ask for messages."""
    is_full: bool = False
    """Much waits to be written to it."""


class ClientStreams:
    """All client streams of one epoch; driven by the primary core."""

    def __init__(self, context: Context, gate: CommitGate, gathering: Gathering) -> None:
        self._context = context
        self._gate = gate
        self._gathering = gathering
        self.by_number: dict[int, ClientStream] = {}
        self.serve_until_ms = 0
        """End of the right to serve, on CLOCK_BOOTTIME (R6)."""
        self.candidates: tuple[str, ...] = ()
        """Addresses of brokers that may serve the set; the driver fills them in where they are empty."""
        self.when_removed: Callable[[ClientStream], None] = lambda _: None
        """Called for each stream that is gone."""
        self._touched: dict[int, None] = {}
        self._left: dict[int, ClientStream] = {}
        """Those that were there at the end."""

    def head(self) -> tuple[Epoch, LogIndex]:
        """What every message begins with."""
        return self._context.epoch, self._context.writer.log.commit_index

    def tell(self, number: int, make: Callable[[], Told]) -> None:
        """Send what `make` builds when everything appended so far is committed."""
        self._gate.wait(self._context.writer.log.end, lambda: self.tell_now(number, make()))

    def when_committed(self, act: Callable[[], None]) -> None:
        """Call `act` when everything appended so far is committed: at once, if it is."""
        log = self._context.writer.log
        if log.end <= log.commit_index and not self._gate:
            act()
        else:
            self._gate.wait(log.end, act)

    def tell_answer(self, stream: ClientStream, make: Callable[[], Told], is_browse: bool = False) -> None:
        """As `tell`, for the answer to a request, which is counted while it waits."""
        stream.questions_waiting += 1
        stream.browses_waiting += is_browse

        def release() -> None:
            stream.questions_waiting -= 1
            stream.browses_waiting -= is_browse
            self.tell_now(stream.number, make())

        self._gate.wait(self._context.writer.log.end, release)

    def answer_in_turn(self, stream: ClientStream, work: Generator[int, None, Callable[[], Told]]) -> None:
        """As `tell_answer`, for an answer that is found in pieces: `work` yields what they cost, and returns what makes it.
        Nobody looks for it when the stream is gone before its turn.
        """
        stream.questions_waiting += 1
        self._context.pieces.begin_in_turn(self._find_answer(stream, work))
        self._context.pieces.go_on()

    def _find_answer(
        self, stream: ClientStream, work: Generator[int, None, Callable[[], Told]]
    ) -> Iterator[int]:
        if self.by_number.get(stream.number) is stream:
            make = yield from work
            stream.questions_waiting -= 1
            self.tell_answer(stream, make)

    @property
    def may_speak(self) -> bool:
        """Whether this process has the right to serve now (R6)."""
        return self._context.now.boottime_ms < self.serve_until_ms

    def tell_now(self, number: int, message: Told) -> None:
        """Send at once, or as soon as this process may speak again; nothing to a stream that is closed."""
        if not self.may_speak:
            self.tell(number, lambda: message)
        elif number in self.by_number:
            self.flush_answers(number)
            self._context.effects.append(
                TellClient(self._context.state.set_name, number, message, self.serve_until_ms)
            )

    def answer(self, number: int, answered: CommandAnswered, is_commit: bool = False) -> None:
        """Answer a command when everything appended so far is committed; answers gather into one message."""
        stream = self.by_number.get(number)
        if stream is not None:
            stream.answers_waiting += 1
            self._gathering.came(number, self._context.now.boottime_ms, is_commit)
            release = partial(self._release_answer, stream, answered, is_commit)
            self._gate.wait(self._context.writer.log.end, release)

    def _release_answer(self, stream: ClientStream, answered: CommandAnswered, is_commit: bool) -> None:
        stream.answers_waiting -= 1
        if stream.number in self.by_number:
            if is_commit:
                self._gathering.commit_answered(stream.number, self._context.now.boottime_ms)
            if not stream.answers_waiting:
                self._gathering.answered(stream.number, self._context.now.boottime_ms)
        self.answer_now(stream.number, answered)

    def answer_now(self, number: int, answered: CommandAnswered) -> None:
        stream = self.by_number.get(number)
        if stream is not None:
            stream.answers.append(answered)
            self._touched[number] = None

    @property
    def has_answers(self) -> bool:
        """Whether answers are gathered that may be said."""
        return bool(self._touched)

    def flush_answers(self, number: int | None = None) -> None:
        """Send the answers gathered, of one stream or of all."""
        numbers = [number] if number is not None else list(self._touched)
        for touched in numbers:
            self._touched.pop(touched, None)
            stream = self.by_number.get(touched)
            if stream is not None and stream.answers:
                message = Answers(*self.head(), tuple(stream.answers))
                stream.answers = []
                self._context.effects.append(
                    TellClient(self._context.state.set_name, touched, message, self.serve_until_ms)
                )

    def remove(self, number: int) -> ClientStream | None:
        """A stream is gone; None: it is no more known."""
        self._gathering.closed(number)
        stream = self.by_number.pop(number, None)
        if stream is not None:
            self.when_removed(stream)
        return stream

    def close(self, number: int) -> None:
        """Close a stream from this side, behind what was sent before."""
        self._context.effects.append(CloseClientStream(self._context.state.set_name, number))

    def close_when_committed(self, number: int) -> None:
        """Close a stream behind everything that it still has to hear."""
        self._gate.wait(self._context.writer.log.end, lambda: self.close(number))

    def turn_away(self, number: int, code: ErrorCode, text: str) -> None:
        """Refuse a stream that is not attached, and close it."""
        refused = AttachRefused(*self.head(), code, text, self.candidates)
        self._context.effects.append(TellClient(self._context.state.set_name, number, refused, 0))
        self.close(number)

    def tell_no_session(self, number: int) -> None:
        """To whatever needs a session on a stream that has none (any more)."""
        ended = self.ended(ErrorCode.UNKNOWN_SESSION, "no session is attached")
        self._context.effects.append(TellClient(self._context.state.set_name, number, ended, 0))

    def end_all(self, code: ErrorCode, text: str) -> None:
        """This process stops serving: clients resume elsewhere."""
        set_name, ended, effects = self._context.state.set_name, self.ended(code, text), self._context.effects
        for number in sorted(self.by_number):
            effects.append(TellClient(set_name, number, ended, 0))
            effects.append(CloseClientStream(set_name, number))
        self._left, self.by_number = self.by_number, {}

    def take_apart(self) -> Iterator[int]:
        """The epoch is over: leave nothing that is big, in steps that say what they cost (`taking_apart`)."""
        for streams in (self._left, self.by_number):
            yield from emptied(
                streams, lambda pair: _STREAM_COST + len(pair[1].consumers) + len(pair[1].backlog)
            )

    def end(self, number: int, code: ErrorCode, text: str) -> None:
        """Say why, and close a stream; its client resumes on another one."""
        ended = self.ended(code, text)
        self._context.effects.append(TellClient(self._context.state.set_name, number, ended, 0))
        self.close(number)

    def ended(self, code: ErrorCode, text: str) -> SessionEnded:
        return SessionEnded(*self.head(), code, text)
