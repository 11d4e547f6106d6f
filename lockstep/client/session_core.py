"""One client session in one resource set: finds the primary, keeps the session through failovers, and answers every command once.

Law: a command takes effect at most once, and its caller hears exactly one of done, rejected, in doubt. Nothing of an epoch lower
than one that was seen is believed (DESIGN R6, P8).

States: `idle` (before Start) -> `waiting` (for the next round) <-> `attaching` (a stream is open, the session not yet confirmed)
-> `attached` -> `waiting` ... -> `closed`. `handle(input, now) -> effects`; chance and session ids are given from outside.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from typing import assert_never

from lockstep.client import session_events as e
from lockstep.client.candidates import Candidates, Choose
from lockstep.client.command_window import CommandWindow
from lockstep.client.deliveries_held import Consumer, DeliveriesHeld
from lockstep.client.session_settings import SessionSettings
from lockstep.client.session_times import SessionTimes
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, SessionId, SessionKey, SetName


class State(Enum):
    IDLE = "idle"
    WAITING = "waiting"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    CLOSED = "closed"


_ELSEWHERE = {ErrorCode.NOT_PRIMARY, ErrorCode.UNAVAILABLE, ErrorCode.WRONG_EPOCH, ErrorCode.UNKNOWN_SET}
"""Refusals that say nothing about the session: another broker may serve it, or this one later."""


class SessionCore:
    """Lives from `Start` to `Closed`. One per (session, resource set)."""

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
        self.window = CommandWindow()
        self.held = DeliveriesHeld()
        self._new_session_id = new_session_id
        self._choose = choose
        self._candidates = Candidates(
            candidates, choose, self.settings.backoff_ms, self.settings.backoff_max_ms
        )
        self._questions: dict[int, tuple[e.Ticket, rq.Browse | rq.GetOutcome | rq.Describe]] = {}
        self._last_question = 0
        self._requests: deque[rq.AnyRequest] = deque()
        self._stream = 0
        self._address = ""
        self._is_writing = False
        self._is_closing = False
        self._has_detached = False
        self._push_backs = 0
        self._times = SessionTimes()

    def __repr__(self) -> str:
        return (
            f"SessionCore({self.set_name} {self.state.value} epoch={self.epoch} session={self.session}"
            f" heard={self.window.heard} sent={self.window.sent} last={self.window.last})"
        )

    @property
    def is_busy(self) -> bool:
        """Whether a command submitted now waits: for a write under way, a primary, or a pause."""
        return self._is_writing or self.state is not State.ATTACHED or self._times.resend_at is not None

    def abandon(self) -> list[e.Effect]:
        """Ends without the set: what is not answered is in doubt, or did not happen. The session ends by its time-out."""
        effects: list[e.Effect] = []
        if self.state is not State.CLOSED:
            self._finish(
                ErrorCode.UNAVAILABLE, "the client closed the session without having reached its end", effects
            )
        return effects

    def handle(self, event: e.Input, now: int) -> list[e.Effect]:
        """The effects of one input at `now` (milliseconds)."""
        if self.state is State.CLOSED:
            return self._refuse_when_closed(event)
        effects: list[e.Effect] = []
        match event:
            case e.Received(stream, messages):
                if stream == self._stream:
                    self._receive(messages, now, effects)
            case e.Submit(ticket, command):
                self._submit(ticket, command, effects)
            case e.Written(stream):
                if stream == self._stream:
                    self._is_writing = False
            case e.Grant(consumer, credit):
                if (known := self.held.consumers.get(consumer)) is not None:
                    known.credit += credit
                    self._say(rq.GrantCredit(consumer, credit))
            case e.Ask(ticket, question):
                self._ask(ticket, question)
            case e.StartConsuming(consumer, queue, credit, is_exclusive):
                self.held.consumers[consumer] = Consumer(queue, credit, is_exclusive)
                self._say(rq.OpenConsumer(consumer, queue, credit, is_exclusive))
            case e.StopConsuming(consumer):
                if self.held.consumers.pop(consumer, None) is not None:
                    self._say(rq.CloseConsumer(consumer))
            case e.StreamLost(stream, _):
                if stream == self._stream:
                    self._lose_stream(now, effects)
            case e.Tick():
                self._tick(now, effects)
            case e.Learn(epoch, candidates):
                self._candidates.learn(candidates, is_hint=True)
                self._see(epoch, now, effects)
            case e.Start():
                if self.state is State.IDLE:
                    self._await_primary(now)
                    self._connect(now, effects)
            case e.Close():
                self._is_closing = True
            case _:
                assert_never(event)
        self._flush(now, effects)
        if (timer := self._times.arm()) is not None:
            effects.append(timer)
        return effects

    # --- what the caller wants ---

    def _submit(self, ticket: e.Ticket, command: c.AnyCommand, effects: list[e.Effect]) -> None:
        if self._is_closing:
            effects.append(e.CommandRejected(ticket, ErrorCode.ILLEGAL_STATE, "the session is being closed"))
            return
        refused = self.window.submit(ticket, command, self.epoch)
        effects += refused
        if not refused and isinstance(command, c.SettleCommand):
            self.held.settle(command)

    def _ask(self, ticket: e.Ticket, question: rq.Browse | rq.GetOutcome | rq.Describe) -> None:
        self._last_question += 1
        question = replace(question, request=self._last_question)
        self._questions[question.request] = (ticket, question)
        self._say(question)

    def _say(self, request: rq.AnyRequest) -> None:
        """For this stream only: what has to outlive it is said again on attachment."""
        if self.state is State.ATTACHED:
            self._requests.append(request)

    def _refuse_when_closed(self, event: e.Input) -> list[e.Effect]:
        match event:
            case e.Submit(ticket, _) | e.Ask(ticket, _):
                return [e.CommandRejected(ticket, ErrorCode.ILLEGAL_STATE, "the session is closed")]
            case _:
                return []

    # --- finding the primary ---

    def _await_primary(self, now: int) -> None:
        self.state = State.WAITING
        if self._times.give_up_at is None and self.settings.give_up_ms:
            self._times.give_up_at = now + self.settings.give_up_ms

    def _connect(self, now: int, effects: list[e.Effect]) -> None:
        """Tries the next candidate, or waits for the next round."""
        address = self._candidates.next()
        if address is None:
            self._times.round_at = now + self._candidates.pause_ms()
            return
        self._stream += 1
        self._address = address
        self.state = State.ATTACHING
        settings = self.settings
        self._times.silence_at = now + self._candidates.patience_ms(
            address, settings.attach_ms, settings.attach_growth_ms, settings.attach_max_ms
        )
        self._times.heartbeat_at = now + self.settings.heartbeat_ms
        attach = rq.AttachSession(
            self.set_name,
            self.session_id,
            self.session,
            self.session_epoch,
            self.settings.session_timeout_ms,
            self.window.heard,
            self.held.in_hand(self.window.unsettled(self.held.epoch)),
        )
        self._is_writing = True
        effects.append(e.OpenStream(self._stream, address))
        effects.append(e.Send(self._stream, (attach,)))

    def _lose_stream(self, now: int, effects: list[e.Effect]) -> None:
        """The stream is gone; go on with the next candidate."""
        self._stream += 1
        self._requests.clear()
        self._is_writing = False
        self._times.end_stream()
        is_over = self._is_closing and self.session == 0 and not len(self.window)
        if self._has_detached or is_over:
            self._finish(ErrorCode.NONE, "", effects)
            return
        self._await_primary(now)
        self._connect(now, effects)

    def _drop_stream(self, now: int, effects: list[e.Effect]) -> None:
        effects.append(e.CloseStream(self._stream))
        self._lose_stream(now, effects)

    def _see(self, epoch: Epoch, now: int, effects: list[e.Effect]) -> None:
        """A higher epoch exists: whoever serves this stream is deposed."""
        if epoch > self.epoch:
            self.epoch = epoch
            if self.state is State.ATTACHED:
                self._drop_stream(now, effects)

    # --- what the primary says ---

    def _receive(self, messages: tuple[sm.AnyServerMessage, ...], now: int, effects: list[e.Effect]) -> None:
        stream = self._stream
        self._times.silence_at = now + self.settings.silence_ms
        for message in messages:
            if self.state is State.ATTACHED:
                if message.epoch != self.epoch:
                    self.epoch = max(self.epoch, message.epoch)
                    self._drop_stream(now, effects)
                else:
                    self._hear(message, now, effects)
            elif self.state is State.ATTACHING:
                self._hear_attaching(message, now, effects)
            if self._stream != stream:
                return

    def _hear_attaching(self, message: sm.AnyServerMessage, now: int, effects: list[e.Effect]) -> None:
        is_deposed = message.epoch < self.epoch
        match message:
            case sm.SessionAttached():
                self._candidates.learn(message.candidates, is_hint=not is_deposed)
                if is_deposed:
                    self._drop_stream(now, effects)
                else:
                    self._attach(message, now, effects)
            case sm.AttachRefused(_, _, code, text, candidates):
                self.epoch = max(self.epoch, message.epoch)
                self._candidates.learn(candidates, is_hint=not is_deposed)
                if is_deposed or code in _ELSEWHERE:
                    self._drop_stream(now, effects)
                elif code is ErrorCode.UNKNOWN_SESSION and self.session:
                    self._lose_session(code, text, effects)
                    self._drop_stream(now, effects)
                elif code is ErrorCode.UNKNOWN_SESSION:
                    self._drop_stream(now, effects)
                else:
                    effects.append(e.CloseStream(self._stream))
                    effects += self._lost(code, text)
                    self._finish(code, text, effects)
            case sm.SessionEnded():
                self._drop_stream(now, effects)
            case sm.CandidatesChanged(_, _, candidates):
                self._candidates.learn(candidates, is_hint=False)
            case _:
                pass  # A sign of life.

    def _attach(self, message: sm.SessionAttached, now: int, effects: list[e.Effect]) -> None:
        """The session is served here: cut to what the set has, and go on from there."""
        is_new = self.session == 0
        if message.epoch > self.held.epoch:
            effects += self.held.void(message.epoch)
        try:
            effects += self.window.resume(message.next_number, message.epoch)
        except ValueError as error:
            self._lose_session(ErrorCode.ILLEGAL_STATE, str(error), effects)
            self._drop_stream(now, effects)
            return
        self.epoch = message.epoch
        self.session, self.session_epoch = message.session, message.session_epoch
        self.state = State.ATTACHED
        self._times.give_up_at = self._times.round_at = None
        self._requests.extend(self.held.openings())
        self._requests.extend(question for _, question in self._questions.values())
        effects.append(
            e.Attached(self._address, self.session_id, self.session, self.epoch, message.commit_index, is_new)
        )

    def _hear(self, message: sm.AnyServerMessage, now: int, effects: list[e.Effect]) -> None:
        match message:
            case sm.Answers():
                self._answer(message, effects)
            case sm.Deliveries(epoch, _, consumer, queue, messages):
                if self.held.deliver(message):
                    effects.append(e.Delivered(consumer, queue, epoch, messages))
                else:
                    positions = tuple(delivered.position for delivered in messages)
                    release = c.SettleCommand(0, queue, epoch, positions, c.Disposition.RELEASE)
                    effects += self.window.submit(None, release, self.epoch)
            case sm.HeartbeatAnswered():
                self._candidates.succeed()  # Not at attachment: one that ends at once is not to be tried without pause.
            case sm.PushedBack(_, _, number, _, _):
                if self.window.push_back(number):
                    pause = self.settings.push_back_ms << min(self._push_backs, 16)
                    pause = min(pause, self.settings.push_back_max_ms)
                    self._times.resend_at = now + pause - self._choose(pause // 2 + 1)
                    self._push_backs += 1
            case sm.ConsumerOpened(_, _, consumer):
                effects.append(e.ConsumerStarted(consumer))
            case sm.ConsumerClosed(_, _, consumer, code, text):
                if self.held.consumers.pop(consumer, None) is not None:
                    effects.append(e.ConsumerStopped(consumer, code, text))
            case sm.BrowseAnswer() | sm.OutcomeAnswer() | sm.Description():
                if (asked := self._questions.pop(message.request, None)) is not None:
                    effects.append(e.QuestionAnswered(asked[0], message))
            case sm.CandidatesChanged(_, _, candidates):
                self._candidates.learn(candidates, is_hint=False)
            case sm.SessionEnded(_, _, code, text):
                self._end(code, text, now, effects)
            case sm.SessionAttached() | sm.AttachRefused():
                self._drop_stream(now, effects)
            case _:
                assert_never(message)
        if self.state is State.ATTACHED:
            self.window.committed(message.commit_index, message.epoch)

    def _answer(self, message: sm.Answers, effects: list[e.Effect]) -> None:
        heard, answered = self.window.answer(message.answers, self.epoch)
        self._push_backs = 0
        self._candidates.succeed()
        for effect, entry in zip(heard, answered, strict=True):
            if entry.ticket is not None:
                effects.append(effect)
            if isinstance(effect, e.CommandRejected) and isinstance(entry.command, c.SettleCommand):
                self.held.take_back(entry.command)

    def _end(self, code: ErrorCode, text: str, now: int, effects: list[e.Effect]) -> None:
        if self._has_detached:
            effects.append(e.CloseStream(self._stream))
            self._finish(ErrorCode.NONE, "", effects)
            return
        if code not in _ELSEWHERE:
            self._lose_session(code, text, effects)
        self._drop_stream(now, effects)

    # --- the end of a session ---

    def _lose_session(self, code: ErrorCode, text: str, effects: list[e.Effect]) -> None:
        """Everything that the session had is over; the next attachment opens a new one."""
        if code is ErrorCode.NONE:
            code = ErrorCode.UNKNOWN_SESSION
        effects += self._lost(code, text)
        effects.append(e.SessionLost(code, text))
        self.session_id = self._new_session_id()
        self.session, self.session_epoch = SessionKey(0), Epoch(0)
        self.window = CommandWindow()
        self._push_backs = 0

    def _lost(self, code: ErrorCode, text: str) -> list[e.Effect]:
        effects = [
            effect
            for effect in self.window.lose(code, text)
            if not (isinstance(effect, e.CommandRejected | e.CommandInDoubt) and effect.ticket is None)
        ]
        effects += self.held.void(self.epoch)
        effects += [e.CommandRejected(ticket, code, text) for ticket, _ in self._questions.values()]
        self._questions.clear()
        return effects

    def _finish(self, code: ErrorCode, text: str, effects: list[e.Effect]) -> None:
        effects += self._lost(code, text)
        self.state = State.CLOSED
        self._times = SessionTimes()
        self._stream += 1
        effects.append(e.Closed(code, text))

    # --- time and writing ---

    def _tick(self, now: int, effects: list[e.Effect]) -> None:
        times = self._times
        if times.fire(now) > self.settings.heartbeat_ms and times.silence_at is not None:
            # This process was stopped, not the primary: what it said meanwhile is still to be read.
            times.silence_at = max(times.silence_at, now + self.settings.heartbeat_ms)
        if times.give_up_at is not None and now >= times.give_up_at:
            times.give_up_at = now + self.settings.give_up_ms
            text = f"no primary of {self.set_name} was reached for {self.settings.give_up_ms} ms"
            self._lose_session(ErrorCode.UNAVAILABLE, text, effects)
            if self.state is State.ATTACHING:
                self._drop_stream(now, effects)
        if times.silence_at is not None and now >= times.silence_at:
            self._candidates.note_silence(self._address)
            self._drop_stream(now, effects)
        if times.round_at is not None and now >= times.round_at:
            times.round_at = None
            self._candidates.begin_round()
            self._connect(now, effects)
        if times.resend_at is not None and now >= times.resend_at:
            times.resend_at = None
        if times.heartbeat_at is not None and now >= times.heartbeat_at:
            times.heartbeat_at = now + self.settings.heartbeat_ms
            if not self._requests:
                self._requests.append(rq.Heartbeat())

    def _flush(self, now: int, effects: list[e.Effect]) -> None:
        """One write with all that is to be said, when the last one is done."""
        if self._is_closing and not len(self.window) and not self._has_detached:
            if self.state is State.ATTACHED:
                self._has_detached = True
                self._requests.append(rq.DetachSession())
            elif self.session == 0 and self.state is not State.ATTACHING:
                self._finish(ErrorCode.NONE, "", effects)
        if self._is_writing or self.state not in (State.ATTACHED, State.ATTACHING):
            return
        messages: list[rq.ClientMessage] = list(self._requests)
        self._requests.clear()
        if self.state is State.ATTACHED and self._times.resend_at is None and self.window.has_unsent:
            settings = self.settings
            messages += self.window.take(self.epoch, settings.send_commands_max, settings.send_bytes_max)
        if messages:
            self._is_writing = True
            effects.append(e.Send(self._stream, tuple(messages)))
