"""Caller session: the session that this broker holds, in a set that it leads, for callers who have no stream of their own.

Law: what callers want goes to the replica as numbered commands on a stream like any client's (DESIGN 6), in the order of their
calls, and every command is answered once: done, rejected, or in doubt when the stream ended before its answer.

States: attaching -> attached -> ended. A stream that ends ends the session for its callers; its set may know it a while longer.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lockstep.core.commands import AnyCommand, Disposition, SettleCommand
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SessionId, SessionKey, SetName
from lockstep.core.requests import AttachSession, CloseConsumer, DetachSession, Heartbeat, OpenConsumer
from lockstep.core.server_messages import (
    Answers,
    AnyServerMessage,
    AttachRefused,
    ConsumerClosed,
    ConsumerOpened,
    DeliveredMessage,
    Deliveries,
    HeartbeatAnswered,
    PushedBack,
    SessionAttached,
    SessionEnded,
)
from lockstep.runtime.process import spawn
from services.broker.caller_limits import CallerLimits
from services.primary.sessions import LocalStream

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Done:
    """What a command came to, and who says so."""

    value: int
    epoch: Epoch
    commit_index: LogIndex


@dataclass(frozen=True, slots=True)
class Acquired:
    """Messages that the session holds now."""

    messages: tuple[DeliveredMessage, ...]
    epoch: Epoch
    commit_index: LogIndex


class NotTaken(Rejected):
    """The set took no number for it: as if it had never been sent."""


Answer = asyncio.Future[Done]


@dataclass(slots=True)
class _Acquiring:
    """A consumer, while its Acquire lasts."""

    opened: "asyncio.Future[None]"
    first: "asyncio.Future[None]"
    messages: list[DeliveredMessage] = field(default_factory=list)


class CallerSession:
    """Lives from the first call that names it until its stream ends; used from one event loop."""

    def __init__(
        self,
        set_name: SetName,
        session_id: SessionId,
        timeout_ms: int,
        stream: LocalStream,
        limits: CallerLimits,
    ) -> None:
        self.set_name = set_name
        self.session_id = session_id
        self.timeout_ms = timeout_ms
        """Without a call, after which its keeper ends it."""
        self.ended: asyncio.Future[LockstepError] = asyncio.get_running_loop().create_future()
        """Why; set when it is over."""
        self._stream = stream
        self._limits = limits
        self._head = Epoch(0), LogIndex(0)
        self._next_number = 0
        """0: not attached yet."""
        self._unsent: deque[tuple[AnyCommand, Answer]] = deque()
        self._sent: dict[int, Answer] = {}
        self._acquiring: dict[int, _Acquiring] = {}
        self._last_consumer = 0
        self._barriers: deque[asyncio.Future[None]] = deque()
        """Heartbeats that will be answered behind what was said before them."""
        attach = AttachSession(set_name, session_id, SessionKey(0), Epoch(0), timeout_ms=timeout_ms, heard=0)
        stream.say(attach)
        self._task = spawn(self._listen(), f"caller session of {set_name}")

    @property
    def head(self) -> tuple[Epoch, LogIndex]:
        """(epoch, commit index) of what was heard last."""
        return self._head

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._sent or self._unsent or self._acquiring)

    def submit(self, command: AnyCommand) -> Answer:
        """Does this, behind what was submitted before; its number is given here. The answer is a `Done` or an error."""
        answer: Answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_hear_out)
        if self.ended.done():
            answer.set_exception(self.ended.result())
        elif len(self._sent) + len(self._unsent) >= self._limits.unanswered_max:
            text = f"{self._limits.unanswered_max} commands of the session wait for their answers"
            answer.set_exception(NotTaken(ErrorCode.UNAVAILABLE, text))
        else:
            self._unsent.append((command, answer))
            self._send()
        return answer

    async def acquire(self, queue: str, messages_max: int, wait_seconds: float) -> Acquired:
        """Messages of a queue, none if none came in time. Raises `Rejected`, or `InDoubt` when the session ended meanwhile."""
        acquiring = asyncio.ensure_future(self._acquire(queue, messages_max, wait_seconds))
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            # The caller has gone: nobody will settle what still comes.
            acquiring.add_done_callback(lambda done: self._release_unheard(queue, done))
            raise

    def detach(self) -> None:
        """Ends the session: the set rolls its transactions back and takes back what it holds."""
        if not self.ended.done():
            self._stream.say(DetachSession())

    async def answered(self, waited: "asyncio.Future[_Value]") -> _Value:
        """What `waited` comes to, unless it takes too long: then it is in doubt. Others may wait for the same."""
        try:
            async with asyncio.timeout(self._limits.answer_seconds):
                return await asyncio.shield(waited)
        except TimeoutError:
            text = f"set {self.set_name!r} did not answer within {self._limits.answer_seconds:g} s"
            raise InDoubt(ErrorCode.UNAVAILABLE, text, set_name=self.set_name) from None

    # --- saying -------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        if not self._next_number:
            return
        commands: list[AnyCommand] = []
        while self._unsent:
            command, answer = self._unsent.popleft()
            commands.append(replace(command, number=self._next_number))
            self._sent[self._next_number] = answer
            self._next_number += 1
        if commands:
            self._stream.say(*commands)

    async def _acquire(self, queue: str, messages_max: int, wait_seconds: float) -> Acquired:
        loop = asyncio.get_running_loop()
        self._last_consumer += 1
        number = self._last_consumer
        acquiring = self._acquiring[number] = _Acquiring(loop.create_future(), loop.create_future())
        acquiring.opened.add_done_callback(_hear_out)
        try:
            await self.answered(self._open_consumer(number, queue, messages_max, acquiring))
            if wait_seconds > 0:
                await asyncio.wait({acquiring.first}, timeout=wait_seconds)
            barrier: asyncio.Future[None] = loop.create_future()
            self._barriers.append(barrier)
            self._stream.say(CloseConsumer(number), Heartbeat())
            # Behind its answer nothing comes for this consumer.
            await self.answered(barrier)
        finally:
            del self._acquiring[number]
        if self.ended.done():
            raise self.ended.result()
        return Acquired(self._cut(queue, acquiring.messages), *self._head)

    def _open_consumer(
        self, number: int, queue: str, messages_max: int, acquiring: _Acquiring
    ) -> "asyncio.Future[None]":
        if self.ended.done():
            acquiring.opened.set_exception(self.ended.result())
        else:
            # Said before the session is attached it waits at the replica, like everything behind an attachment.
            self._stream.say(OpenConsumer(number, queue, messages_max))
        return acquiring.opened

    def _cut(self, queue: str, messages: Sequence[DeliveredMessage]) -> tuple[DeliveredMessage, ...]:
        """As many as an answer may have, at least one; the others are released."""
        size = count = 0
        for message in messages:
            size += len(message.body) + len(message.properties)
            if count and size > self._limits.acquired_bytes_max:
                break
            count += 1
        self._release(queue, messages[count:])
        return tuple(messages[:count])

    def _release(self, queue: str, messages: Sequence[DeliveredMessage]) -> None:
        if messages:
            positions = tuple(QueuePosition(message.position) for message in messages)
            self.submit(SettleCommand(0, queue, self._head[0], positions, Disposition.RELEASE))

    def _release_unheard(self, queue: str, acquiring: "asyncio.Task[Acquired]") -> None:
        if not acquiring.cancelled() and acquiring.exception() is None:
            self._release(queue, acquiring.result().messages)

    # --- hearing ------------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        reason: LockstepError | None = None
        while reason is None and (messages := await self._stream.hear()):
            for message in messages:
                self._head = message.epoch, message.commit_index
                reason = self._hear(message) or reason
        self._stream.close()
        text = f"set {self.set_name!r} is not served here any more"
        self._end(reason or Rejected(ErrorCode.NOT_PRIMARY, text, set_name=self.set_name))

    def _hear(self, message: AnyServerMessage) -> LockstepError | None:
        """Takes a message in; answers why the session is over, if it is."""
        match message:
            case SessionAttached():
                self._next_number = message.next_number
                self._send()
            case Answers():
                for answered in message.answers:
                    answer = self._sent.pop(answered.number, None)
                    if answer is None:
                        continue
                    if answered.code is ErrorCode.NONE:
                        answer.set_result(Done(answered.value, message.epoch, message.commit_index))
                    else:
                        answer.set_exception(
                            Rejected(answered.code, answered.message, set_name=self.set_name)
                        )
            case PushedBack():
                for number in [number for number in self._sent if number >= message.number]:
                    self._sent.pop(number).set_exception(NotTaken(message.code, message.message))
                self._next_number = message.number
            case Deliveries():
                acquiring = self._acquiring.get(message.consumer)
                if acquiring is None:
                    self._release(message.queue, message.messages)
                else:
                    acquiring.messages += message.messages
                    _resolve(acquiring.first)
            case ConsumerOpened():
                if (acquiring := self._acquiring.get(message.consumer)) is not None:
                    _resolve(acquiring.opened)
            case ConsumerClosed():
                if (acquiring := self._acquiring.get(message.consumer)) is not None:
                    error = Rejected(message.code, message.message, set_name=self.set_name)
                    _resolve(acquiring.opened, error)
                    _resolve(acquiring.first)
            case HeartbeatAnswered():
                if self._barriers:
                    _resolve(self._barriers.popleft())
            case AttachRefused() | SessionEnded():
                code = message.code or ErrorCode.UNKNOWN_SESSION
                return Rejected(code, message.message, set_name=self.set_name)
            case _:
                pass
        return None

    def _end(self, reason: LockstepError) -> None:
        self.ended.set_result(reason)
        text = f"the session ended before the answer came: {reason.message}"
        for answer in self._sent.values():
            answer.set_exception(InDoubt(reason.code, text, set_name=self.set_name))
        for _, answer in self._unsent:
            answer.set_exception(NotTaken(reason.code, reason.message, set_name=self.set_name))
        self._sent.clear()
        self._unsent.clear()
        for acquiring in self._acquiring.values():
            _resolve(acquiring.opened, reason)
            _resolve(acquiring.first)
        for barrier in self._barriers:
            _resolve(barrier)
        self._barriers.clear()


def _hear_out(done: "asyncio.Future[_Value]") -> None:
    """Its caller may have gone."""
    if not done.cancelled():
        done.exception()


def _resolve(waited: "asyncio.Future[None]", error: LockstepError | None = None) -> None:
    if waited.done():
        return
    if error is None:
        waited.set_result(None)
    else:
        waited.set_exception(error)
