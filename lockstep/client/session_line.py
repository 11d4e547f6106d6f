"""Session line: a client's session in one resource set, and the stream that serves it wherever the primary is.

Law: one stream at most serves the session, or is the one that is tried now. Behind it others may be awaited, each at a broker of
its own that has not said anything yet: the first of all that attaches the session closes the others. What is heard of any further
stream is ignored. A stream that is lost is followed by the search for the primary, and what the session had outlives it until the
set says that it does not know the session any more.
"""

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum

from lockstep.client import session_events as e
from lockstep.client.awaited_streams import AwaitedStreams
from lockstep.client.candidates import Candidates, Choose
from lockstep.client.command_window import CommandWindow
from lockstep.client.deliveries_held import DeliveriesHeld
from lockstep.client.questions import Questions
from lockstep.client.session_settings import SessionSettings
from lockstep.client.session_times import SessionTimes
from lockstep.core import requests as rq
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, SessionId, SessionKey, SetName


class State(Enum):
    IDLE = "idle"
    WAITING = "waiting"
    """For the next round of the search."""
    ATTACHING = "attaching"
    """A stream is open, the session is not confirmed on it."""
    ATTACHED = "attached"
    CLOSED = "closed"


class SessionLine:
    """Lives as long as its session core, which drives it together with `session_hearing`."""

    def __init__(
        self,
        set_name: SetName,
        candidates: Iterable[str],
        new_session_id: Callable[[], SessionId],
        choose: Choose,
        settings: SessionSettings | None = None,
    ) -> None:
        self.settings = settings or SessionSettings()
        self.set_name = set_name
        self.state = State.IDLE
        self.session_id = new_session_id()
        self.session = SessionKey(0)
        self.session_epoch = Epoch(0)
        self.epoch = Epoch(0)
        """The highest that was seen."""
        self.kept_from = Epoch(0)
        """Transactions of epochs before it are no more, as far as the set has said."""
        self.takes_last_publish = False
        """A commit may bring its transaction's last publish."""
        self.window = CommandWindow()
        self.held = DeliveriesHeld()
        self._new_session_id = new_session_id
        self.choose = choose
        self.candidates = Candidates(
            candidates, choose, self.settings.backoff_ms, self.settings.backoff_max_ms
        )
        self.questions = Questions()
        self.requests: deque[tuple[int, rq.AnyRequest]] = deque()
        """To be said in this order, with the next write: each behind the command of that number, submitted before it."""
        self.stream = 0
        """Number of the present stream; without one, of none."""
        self.address = ""
        """Of the broker at its other end."""
        self.awaited = AwaitedStreams()
        self._last_stream = 0
        self.is_writing = False
        """The last write was not taken yet."""
        self.is_closing = False
        """The caller wants no more: the session ends when all is answered."""
        self.has_detached = False
        """The set was told so."""
        self.push_backs = 0
        """In a row, without an answer between them."""
        self.has_ended = False
        """The reign that served the session last has said that it is over: nothing that was sent to it ended it."""
        self._marks: deque[int] = deque()
        """Of the heartbeats on this stream that are not answered: the command that each was said behind."""
        self.times = SessionTimes()
        self.heartbeat_ms = self.settings.heartbeat_ms
        """As the primary wants it."""

    @property
    def silence_ms(self) -> int:
        """A stream that says nothing for so long is given up: as many heartbeats as the settings say."""
        return self.settings.silence_ms * self.heartbeat_ms // self.settings.heartbeat_ms

    # --- what is asked of it ---

    def ask(self, ticket: e.Ticket, question: rq.Question) -> None:
        """Asks the set, now or when the session is served."""
        self.questions.add(ticket, question)
        self.say_questions()

    def say_questions(self) -> None:
        """As many as there is room for on this stream."""
        if self.state is State.ATTACHED:
            behind = self.window.last
            self.requests.extend([(behind, question) for question in self.questions.take()])

    def heartbeat(self) -> rq.Heartbeat:
        """One to be said now, behind all commands that were sent."""
        self._marks.append(self.window.sent if self.state is State.ATTACHED else 0)
        return rq.Heartbeat()

    def heartbeat_answered(self, next_number: int) -> None:
        """One was. Some never are, so it may be a later one than the first: what it proves is proved all the same.

        `next_number`: those before it were done; one that waits, for its name or to be done in parts, may be deadly yet. 0: not
        said.
        """
        if self._marks:
            mark = self._marks.popleft()
            self.window.survive(min(mark, next_number - 1) if next_number else mark)

    def say(self, request: rq.AnyRequest) -> None:
        """For this stream only: what has to outlive it is said again on attachment. Behind all commands that were submitted: what
        it does, or shows, may depend on them."""
        if self.state is State.ATTACHED:
            self.requests.append((self.window.last, request))

    def say_soon(self, request: rq.AnyRequest) -> None:
        """The same, behind other requests only."""
        if self.state is State.ATTACHED:
            self.requests.append((0, request))

    @property
    def has_due(self) -> bool:
        """Whether a request may be said now."""
        return bool(self.requests) and self.requests[0][0] <= self.window.sent

    def take_due(self, messages: list[rq.ClientMessage], count_max: int) -> None:
        """Adds those to what is said now, which are so many messages at most."""
        while self.has_due and len(messages) < count_max:
            request = self.requests.popleft()[1]
            if self.questions.given_up and self.questions.is_unwanted(getattr(request, "request", 0)):
                self.say_questions()
            else:
                messages.append(request)

    # --- finding the primary ---

    def await_primary(self, now: int) -> None:
        """The search begins, and with it the time after which the session is given up."""
        self.state = State.WAITING
        if self.times.give_up_at is None and self.settings.give_up_ms:
            self.times.give_up_at = now + self.settings.give_up_ms

    def connect(self, now: int, effects: list[e.Effect]) -> None:
        """Tries the next candidate, or waits for the next round."""
        address = self.candidates.next(self.awaited.addresses)
        if address is None:
            self.times.round_at = now + self.candidates.pause_ms()
            return
        self._last_stream += 1
        self._try(self._last_stream, address, now)
        self.times.silence_at = now + self.settings.attach_ms
        unsettled = self.window.unsettled(self.held.kept_from)
        attach = rq.AttachSession(
            self.set_name,
            self.session_id,
            self.session,
            self.session_epoch,
            self.settings.session_timeout_ms,
            self.window.heard,
            self.held.in_hand(unsettled),
            True,
            self.held.settling(unsettled),
        )
        self.is_writing = True
        effects.append(e.OpenStream(self.stream, address))
        effects.append(e.Send(self.stream, (attach,)))

    def _try(self, stream: int, address: str, now: int) -> None:
        """This stream is the one that is tried now."""
        self.stream, self.address = stream, address
        self.state = State.ATTACHING
        self.times.round_at = None
        self.heartbeat_ms = self.settings.heartbeat_ms
        # Before it is awaited only: a primary that is in doubt about its log answers this, and the session later.
        self.times.heartbeat_at = now + min(self.heartbeat_ms, self.settings.attach_ms // 2)

    def await_stream(self, now: int, effects: list[e.Effect]) -> None:
        """The stream that is tried has been silent for a while: it may still be answered, and the next candidate is tried."""
        self.awaited.add(
            self.stream, self.address, now + self.settings.attach_max_ms - self.settings.attach_ms
        )
        self.lose_stream(now, effects)

    def turn_to(self, stream: int, now: int) -> None:
        """A stream that was awaited has said something: it is tried now, and the one that was tried until now is awaited."""
        address = self.awaited.remove(stream)
        if self.state is State.ATTACHING:
            self.awaited.add(self.stream, self.address, now + self.settings.attach_max_ms)
        self._leave_stream()
        self._try(stream, address, now)

    def _leave_stream(self) -> None:
        self.stream = 0
        self.requests.clear()
        self._marks.clear()
        self.is_writing = False
        self.times.end_stream()

    def lose_stream(self, now: int, effects: list[e.Effect]) -> None:
        """The stream is gone; go on with the next candidate."""
        self._leave_stream()
        is_over = self.is_closing and self.session == 0 and not len(self.window)
        if self.has_detached or is_over:
            self.finish(ErrorCode.NONE, "", effects)
            return
        self.await_primary(now)
        self.connect(now, effects)

    def drop_stream(self, now: int, effects: list[e.Effect]) -> None:
        """Close the stream and go on with the next candidate."""
        effects.append(e.CloseStream(self.stream))
        self.lose_stream(now, effects)

    def see(self, epoch: Epoch, now: int, effects: list[e.Effect]) -> None:
        """A higher epoch exists: whoever serves this stream is deposed."""
        if epoch > self.epoch:
            self.epoch = epoch
            if self.state is State.ATTACHED:
                self.drop_stream(now, effects)

    # --- the end of a session ---

    def lose_session(
        self, code: ErrorCode, text: str, effects: list[e.Effect], *, keeps_questions: bool = False
    ) -> None:
        """Everything that the session had is over; the next attachment opens a new one.

        `keeps_questions`: nobody has heard them yet, and the new session asks them.
        """
        if code is ErrorCode.NONE:
            code = ErrorCode.UNKNOWN_SESSION
        effects += self._lost(code, text)
        if not keeps_questions:
            self._reject_questions(code, text, effects)
        effects.append(e.SessionLost(code, text))
        self.awaited.close(effects)
        self.session_id = self._new_session_id()
        self.session, self.session_epoch = SessionKey(0), Epoch(0)
        self.kept_from = self.epoch
        self.window = CommandWindow()
        self.push_backs = 0

    def _lost(self, code: ErrorCode, text: str) -> list[e.Effect]:
        """What callers hear when the session is over."""
        effects = [
            effect
            for effect in self.window.lose(code, text)
            if not (isinstance(effect, e.CommandRejected | e.CommandInDoubt) and effect.ticket is None)
        ]
        return effects + self.held.void(self.epoch)

    def _reject_questions(self, code: ErrorCode, text: str, effects: list[e.Effect]) -> None:
        effects += [e.CommandRejected(ticket, code, text) for ticket in self.questions.lose()]

    def finish(self, code: ErrorCode, text: str, effects: list[e.Effect]) -> None:
        """The end: no stream and no session any more."""
        effects += self._lost(code, text)
        self._reject_questions(code, text, effects)
        self.awaited.close(effects)
        self.state = State.CLOSED
        self.times = SessionTimes()
        self.stream = 0
        effects.append(e.Closed(code, text))
