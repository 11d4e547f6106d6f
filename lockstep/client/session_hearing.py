"""What a primary says on a session's stream, and what it means for the session (DESIGN 6, P8).

Law: nothing of an epoch lower than one that was seen is believed, and what comes behind a message that ended the stream is
ignored.
"""

from typing import assert_never

from msgspec.structs import replace

from lockstep.client import session_events as e
from lockstep.client.session_line import SessionLine, State
from lockstep.core import commands as c
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode

_ELSEWHERE = {ErrorCode.NOT_PRIMARY, ErrorCode.UNAVAILABLE, ErrorCode.WRONG_EPOCH, ErrorCode.UNKNOWN_SET}
"""Refusals that say nothing about the session: another broker may serve it, or this one later."""


def receive(
    line: SessionLine, messages: tuple[sm.AnyServerMessage, ...], now: int, effects: list[e.Effect]
) -> None:
    """Takes in what the present stream carried at `now`; appends what comes of it to `effects`."""
    stream = line.stream
    line.times.heard(now, line.silence_ms)
    for message in messages:
        if line.state is State.ATTACHED:
            if message.epoch != line.epoch:
                line.epoch = max(line.epoch, message.epoch)
                line.drop_stream(now, effects)
            else:
                _hear(line, message, now, effects)
        elif line.state is State.ATTACHING:
            _hear_attaching(line, message, now, effects)
        if line.stream != stream:
            return


def _hear_attaching(
    line: SessionLine, message: sm.AnyServerMessage, now: int, effects: list[e.Effect]
) -> None:
    is_deposed = message.epoch < line.epoch
    match message:
        case sm.SessionAttached():
            line.candidates.learn(message.candidates, is_hint=not is_deposed)
            if is_deposed:
                line.drop_stream(now, effects)
            else:
                _attach(line, message, now, effects)
        case sm.AttachRefused(_, _, code, text, candidates):
            line.epoch = max(line.epoch, message.epoch)
            line.candidates.learn(candidates, is_hint=not is_deposed)
            if is_deposed or code in _ELSEWHERE:
                line.drop_stream(now, effects)
            elif code is ErrorCode.UNKNOWN_SESSION and line.session:
                line.lose_session(code, text, effects, keeps_questions=True)
                line.drop_stream(now, effects)
            elif code is ErrorCode.UNKNOWN_SESSION:
                line.drop_stream(now, effects)
            else:
                effects.append(e.CloseStream(line.stream))
                line.finish(code, text, effects)
        case sm.SessionEnded():
            line.drop_stream(now, effects)
        case sm.CandidatesChanged(_, _, candidates):
            line.candidates.learn(candidates, is_hint=False)
        case _:
            pass  # A sign of life.


def _attach(line: SessionLine, message: sm.SessionAttached, now: int, effects: list[e.Effect]) -> None:
    """The session is served here: cut to what the set has, and go on from there."""
    is_new = line.session == 0
    kept_from = message.kept_from or message.epoch
    if message.epoch > line.held.epoch:
        effects += line.held.enter(message.epoch, kept_from)
    poison = 0
    if not line.has_ended:
        poison = line.window.fallen(message.next_number, message.epoch)
    try:
        effects += line.window.resume(message.next_number, kept_from)
    except ValueError as error:
        line.lose_session(ErrorCode.ILLEGAL_STATE, str(error), effects)
        line.drop_stream(now, effects)
        return
    line.epoch, line.kept_from = message.epoch, kept_from
    line.takes_last_publish = message.takes_last_publish
    line.session, line.session_epoch = message.session, message.session_epoch
    line.state = State.ATTACHED
    line.has_ended = False
    line.awaited.close(effects)
    if poison:
        _refuse(line, poison, effects)
    if line.window.is_suspicious:
        # Others have lost the same primary: what each of them sends first is not to be there when one of them ends the next.
        line.times.resend_at = now + line.choose(line.settings.suspected_ms + 1)
    line.times.give_up_at = None
    line.times.heartbeat_at = now + line.heartbeat_ms
    line.requests.extend([(0, opening) for opening in line.held.openings()])
    for drain in line.held.drains():
        line.say(drain)
    line.questions.begin_stream()
    line.say_questions()
    effects.append(
        e.Attached(line.address, line.session_id, line.session, line.epoch, message.commit_index, is_new)
    )


def _refuse(line: SessionLine, number: int, effects: list[e.Effect]) -> None:
    """The primaries died over this command, and the set does not have it."""
    command, count = line.window.command(number), line.window.falls(number)
    text = f"{count} primaries of {line.set_name} in a row ended when they had this command, the last with it alone"
    for effect in line.window.refuse(number, ErrorCode.POISON, f"{text}: it is not sent again")[1]:
        if isinstance(effect, e.CommandRejected) and effect.ticket is not None:
            effects.append(effect)
    if isinstance(command, c.SettleCommand):
        line.held.take_back(command)
    effects.append(e.PoisonFound(number, type(command).__name__, text))


def _hear(line: SessionLine, message: sm.AnyServerMessage, now: int, effects: list[e.Effect]) -> None:
    match message:
        case sm.Answers():
            _answer(line, message, effects)
        case sm.Deliveries(epoch, _, consumer, queue, messages):
            if line.held.deliver(message):
                effects.append(e.Delivered(consumer, queue, epoch, messages))
            elif not message.are_copies:
                positions = tuple(delivered.position for delivered in messages)
                release = c.SettleCommand(0, queue, epoch, positions, c.Disposition.RELEASE)
                effects += line.window.submit(None, release, line.kept_from)
        case sm.HeartbeatAnswered(_, _, pause_ms, next_number):
            line.heartbeat_answered(next_number)
            line.candidates.succeed()  # Not at attachment: one that ends at once is not to be tried without pause.
            line.heartbeat_ms = max(line.settings.heartbeat_ms, pause_ms)
        case sm.PushedBack(_, _, number, _, _):
            if line.window.push_back(number):
                pause = line.settings.push_back_ms << min(line.push_backs, 16)
                pause = min(pause, line.settings.push_back_max_ms)
                line.times.resend_at = now + pause - line.choose(pause // 2 + 1)
                line.push_backs += 1
        case sm.ConsumerOpened(_, _, consumer):
            effects.append(e.ConsumerStarted(consumer))
        case sm.ConsumerDrained(_, _, consumer, credit):
            if line.held.drained(consumer, credit):
                effects.append(e.ConsumerDrained(consumer))
        case sm.ConsumerClosed(_, _, consumer, code, text):
            if line.held.consumers.pop(consumer, None) is not None:
                effects.append(e.ConsumerStopped(consumer, code, text))
        case (
            sm.BrowseAnswer()
            | sm.OutcomeAnswer()
            | sm.Description()
            | sm.QueueDetails()
            | sm.ExchangeDetails()
            | sm.Recovered()
            | sm.TimeoutAnswer()
        ):
            if (asked := line.questions.answered(message.request)) is not None:
                effects.append(e.QuestionAnswered(asked, message))
            line.say_questions()
        case sm.CandidatesChanged(_, _, candidates):
            line.candidates.learn(candidates, is_hint=False)
        case sm.SessionEnded(_, _, code, text):
            _end(line, code, text, now, effects)
        case sm.SessionAttached() | sm.AttachRefused():
            line.drop_stream(now, effects)
        case _:
            assert_never(message)
    if line.state is State.ATTACHED:
        line.window.committed(message.commit_index, message.epoch)


def _answer(line: SessionLine, message: sm.Answers, effects: list[e.Effect]) -> None:
    heard, answered = line.window.answer(message.answers, line.kept_from)
    line.push_backs = 0
    line.candidates.succeed()
    for effect, entry in zip(heard, answered, strict=True):
        if entry.ticket is not None:
            effects.append(effect)
        command = entry.command
        if type(command) is c.SettleCommand:
            if type(effect) is e.CommandRejected:
                line.held.take_back(command)
            elif command.may_be_partial and type(effect) is e.CommandDone:
                line.held.take_back(replace(command, positions=command.positions[effect.value :]))


def _end(line: SessionLine, code: ErrorCode, text: str, now: int, effects: list[e.Effect]) -> None:
    if line.has_detached:
        effects.append(e.CloseStream(line.stream))
        line.finish(ErrorCode.NONE, "", effects)
        return
    line.has_ended = True
    if code not in _ELSEWHERE:
        line.lose_session(code, text, effects)
    line.drop_stream(now, effects)
