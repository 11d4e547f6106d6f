"""One client session in one resource set: finds the primary, keeps the session through failovers, and answers every command once.

Law: a command takes effect at most once, and its caller hears exactly one of done, rejected, in doubt. Nothing of an epoch lower
than one that was seen is believed (DESIGN R6, P8).

States: `idle` (before Start) -> `waiting` (for the next round) <-> `attaching` (a stream is open, the session not yet confirmed)
-> `attached` -> `waiting` ... -> `closed`. `handle(input, now) -> effects`, and beside it `submit`, `grant`, `give_up`
and `written`, for what is written with an input behind it; chance and session ids are given from outside.
"""

from collections.abc import Callable, Iterable
from typing import assert_never

from lockstep.client import session_events as e
from lockstep.client.candidates import Choose
from lockstep.client.command_window import CommandWindow
from lockstep.client.deliveries_held import Consumer
from lockstep.client.session_hearing import receive
from lockstep.client.session_line import SessionLine, State
from lockstep.client.session_settings import SessionSettings
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, SessionId, SessionKey, SetName
from lockstep.core.server_messages import DeliveredMessage


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
        self.line = SessionLine(set_name, candidates, new_session_id, choose, settings)

    def __repr__(self) -> str:
        line = self.line
        return (
            f"SessionCore({line.set_name} {line.state.value} epoch={line.epoch} session={line.session}"
            f" heard={line.window.heard} sent={line.window.sent} last={line.window.last})"
        )

    @property
    def state(self) -> State:
        """Whether the session is served."""
        return self.line.state

    @property
    def session_id(self) -> SessionId:
        """The one in use, or to be opened next."""
        return self.line.session_id

    @property
    def session(self) -> SessionKey:
        """0: none is open."""
        return self.line.session

    @property
    def epoch(self) -> Epoch:
        """The highest that was seen."""
        return self.line.epoch

    @property
    def window(self) -> CommandWindow:
        """Commands of the session in use."""
        return self.line.window

    @property
    def is_busy(self) -> bool:
        """Whether a command submitted now waits: for a write under way, a primary, or a pause."""
        line = self.line
        if line.state is State.CLOSED:
            return False
        return line.is_writing or line.state is not State.ATTACHED or line.times.resend_at is not None

    @property
    def has_unsaid(self) -> bool:
        """Whether there is anything that a turn might write."""
        line = self.line
        return bool(line.requests) or line.window.has_unsent or line.is_closing

    def abandon(self) -> list[e.Effect]:
        """Ends without the set: what is not answered is in doubt, or did not happen. The session ends by its time-out."""
        line = self.line
        effects: list[e.Effect] = []
        if line.state is not State.CLOSED:
            line.finish(
                ErrorCode.UNAVAILABLE, "the client closed the session without having reached its end", effects
            )
        return effects

    def submit(self, ticket: e.Ticket, command: c.AnyCommand) -> list[e.Effect]:
        """Do this, once. The core gives it its number, and to an operation or commit of a transaction its sequence or count.

        It is written by the next input. Answered by one of `CommandDone`, `CommandRejected`, `CommandInDoubt`; returns the
        answer where that is known.
        """
        line = self.line
        if line.state is State.CLOSED:
            return [e.CommandRejected(ticket, ErrorCode.ILLEGAL_STATE, "the session is closed")]
        if line.is_closing:
            return [e.CommandRejected(ticket, ErrorCode.ILLEGAL_STATE, "the session is being closed")]
        refused = line.window.submit(ticket, command, line.kept_from)
        if not refused and type(command) is c.SettleCommand:
            line.held.settle(command)
        return refused

    def grant(self, consumer: int, credit: int) -> None:
        """More credit for a consumer, said with the next input, behind requests that wait; ignored when it has stopped."""
        line = self.line
        if (known := line.held.consumers.get(consumer)) is not None:
            known.credit += credit
            line.say_soon(rq.GrantCredit(consumer, credit))

    def give_back(
        self, consumer: int, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]
    ) -> None:
        """What came for a consumer that has stopped before it was told: its queue has it again, unless it is void already."""
        positions = self.line.held.of_consumer(consumer, queue, epoch, messages)
        if positions:
            self.submit(None, c.SettleCommand(0, queue, epoch, positions, c.Disposition.RELEASE))

    def give_up(self, ticket: e.Ticket) -> None:
        """Nobody waits for the answer to this question any more."""
        self.line.questions.give_up(ticket)

    def written(self, stream: int) -> bool:
        """The last `Send` on this stream was taken: the next may follow. Returns whether one would, with the next input."""
        line = self.line
        if stream != line.stream or line.state is State.CLOSED:
            return False
        line.is_writing = False
        return self.has_unsaid

    def handle(self, event: e.Input, now: int) -> list[e.Effect]:
        """The effects of one input at `now` (milliseconds)."""
        line = self.line
        if line.state is State.CLOSED:
            return self._refuse_when_closed(event)
        effects: list[e.Effect] = []
        match event:
            case e.Received(stream, messages):
                if stream != line.stream and stream in line.awaited:
                    line.turn_to(stream, now)
                if stream == line.stream:
                    receive(line, messages, now, effects)
            case e.Turn():
                pass
            case e.Ask(ticket, question):
                line.ask(ticket, question)
            case e.Drain(consumer):
                if (known := line.held.consumers.get(consumer)) is not None:
                    known.drains += 1
                    line.say(rq.DrainConsumer(consumer))
            case e.StartConsuming(consumer, queue, credit, is_exclusive, selector, is_browser, after):
                known = Consumer(queue, credit, is_exclusive, selector, is_browser, after)
                line.held.consumers[consumer] = known
                line.say(known.opening(consumer))
            case e.StopConsuming(consumer):
                if line.held.consumers.pop(consumer, None) is not None:
                    line.say(rq.CloseConsumer(consumer))
            case e.StreamLost(stream, _):
                if stream == line.stream:
                    line.lose_stream(now, effects)
                elif stream in line.awaited:
                    line.awaited.remove(stream)
            case e.Tick(has_moved):
                if has_moved:
                    line.times.moved(now, line.silence_ms)
                self._tick(now, effects)
            case e.Learn(epoch, candidates):
                line.candidates.learn(candidates, is_hint=True)
                line.see(epoch, now, effects)
            case e.Start():
                if line.state is State.IDLE:
                    line.await_primary(now)
                    line.connect(now, effects)
            case e.Close():
                line.is_closing = True
            case _:
                assert_never(event)
        self._flush(now, effects)
        if (timer := line.times.arm(line.awaited.next_at)) is not None:
            effects.append(timer)
        return effects

    def _refuse_when_closed(self, event: e.Input) -> list[e.Effect]:
        match event:
            case e.Ask(ticket, _):
                return [e.CommandRejected(ticket, ErrorCode.ILLEGAL_STATE, "the session is closed")]
            case _:
                return []

    # --- time and writing ---

    def _tick(self, now: int, effects: list[e.Effect]) -> None:
        line = self.line
        times = line.times
        if times.fire(now) > line.settings.heartbeat_ms:
            # This process was stopped, not the primary: what it said meanwhile is still to be read.
            until = now + line.settings.heartbeat_ms
            line.awaited.postpone(until)
            if times.silence_at is not None:
                times.silence_at = max(times.silence_at, until)
        if times.give_up_at is not None and now >= times.give_up_at:
            times.give_up_at = now + line.settings.give_up_ms
            text = f"no primary of {line.set_name} answered for {line.settings.give_up_ms / 1000:g} s"
            line.lose_session(ErrorCode.UNAVAILABLE, text, effects)
            if line.state is State.ATTACHING:
                line.drop_stream(now, effects)
        if times.silence_at is not None and now >= times.silence_at:
            if line.state is State.ATTACHING:
                line.await_stream(now, effects)
            else:
                line.drop_stream(now, effects)
        line.awaited.give_up(now, effects)
        if times.round_at is not None and now >= times.round_at:
            line.candidates.begin_round()
            line.connect(now, effects)
        if times.resend_at is not None and now >= times.resend_at:
            times.resend_at = None
        if times.heartbeat_at is not None and now >= times.heartbeat_at:
            times.heartbeat_at = now + line.heartbeat_ms
            if not line.has_due:
                line.requests.appendleft((0, line.heartbeat()))

    def _flush(self, now: int, effects: list[e.Effect]) -> None:
        """One write with all that is to be said, when the last one is done."""
        line = self.line
        if line.is_closing and not len(line.window) and not line.has_detached:
            if line.state is State.ATTACHED:
                line.has_detached = True
                line.say(rq.DetachSession())
            elif line.session == 0 and line.state not in (State.ATTACHING, State.CLOSED):
                line.finish(ErrorCode.NONE, "", effects)
        state = line.state
        if line.is_writing or (state is not State.ATTACHED and state is not State.ATTACHING):
            return
        requests, window, settings = line.requests, line.window, line.settings
        may_command = state is State.ATTACHED and window.has_unsent and line.times.resend_at is None
        if not (may_command or requests):
            return
        messages: list[rq.ClientMessage] = []
        if requests:
            line.take_due(messages, settings.send_requests_max)
        if may_command and not (requests and line.has_due):
            is_alone = window.is_suspicious
            count_max = settings.send_commands_max
            if requests:
                # What was submitted behind it does not overtake it.
                count_max = min(count_max, requests[0][0] - window.sent)
            messages += window.take(line.epoch, count_max, settings.send_bytes_max)
            if is_alone and messages:
                # Not with it: what is answered in the same turn says nothing of what the turn ends by.
                line.times.heartbeat_at = now + settings.suspected_heartbeat_ms
            if requests:
                line.take_due(messages, settings.send_requests_max)
        if messages:
            line.is_writing = True
            effects.append(e.Send(line.stream, tuple(messages)))
