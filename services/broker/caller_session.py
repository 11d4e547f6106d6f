"""Caller session: the session that this broker holds, in a set that it leads, for callers who have no stream of their own.

Law: what callers want goes to the replica as numbered commands on a stream like any client's (DESIGN 6), in the order of their
calls, and every command is answered once: done, rejected, or in doubt when the stream ended before its answer.

States: attaching -> attached -> ended. A stream that ends ends the session for its callers; its set may know it a while longer.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from lockstep.core.commands import AnyCommand, Disposition, SettleCommand
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.ids import Epoch, LogIndex, SessionId, SessionKey, SetName
from lockstep.core.requests import AttachSession, DetachSession
from lockstep.core.server_messages import (
    Answers,
    AttachRefused,
    PushedBack,
    SessionAttached,
    SessionEnded,
    Told,
)
from lockstep.runtime.process import spawn
from services.broker.acquisitions import Acquisitions, hear_out
from services.broker.caller_limits import CallerLimits
from services.primary.sessions import LocalStream

SETTLES_KEPT = 100
"""Of a session, those that may be repeated: far more than a caller has under way."""
RETRY_SECONDS = 0.2
"""Before what has to be done, and the set has not taken, is said again."""
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Done:
    """What a command came to, and who says so."""

    value: int
    epoch: Epoch
    commit_index: LogIndex


class NotTaken(Rejected):
    """The set took no number for it: as if it had never been sent."""


Answer = asyncio.Future[Done]


class CallerSession:
    """Lives from the first call that names it until its stream ends; used from one event loop."""

    def __init__(
        self,
        set_name: SetName,
        session_id: SessionId,
        timeout_ms: int,
        stream: LocalStream,
        limits: CallerLimits,
        refused: Callable[[str, str], None],
        is_new: bool = False,
    ) -> None:
        """`refused` is told which limit has refused something, and a text; `is_new`: nobody had heard of its name before."""
        self.set_name = set_name
        self.session_id = session_id
        self.timeout_ms = timeout_ms
        """Without a call, after which its keeper ends it."""
        self.ended: asyncio.Future[LockstepError] = asyncio.get_running_loop().create_future()
        """Why; set when it is over."""
        self._stream = stream
        self._limits = limits
        self._note_refusal = refused
        self._head = Epoch(0), LogIndex(0)
        self._next_number = 0
        """0: not attached yet."""
        self._unsent: deque[tuple[AnyCommand, Answer]] = deque()
        self._sent: dict[int, Answer] = {}
        self._settles: dict[bytes, Answer] = {}
        """By fingerprint, the oldest first: what was accepted or rejected, and nothing that failed."""
        self._knows_all_settles = is_new
        """Whether all that the session ever settled is in there, or failed."""
        self._is_leaving = False
        """Its end was asked for: a set that cannot commit answers late, and keeps every question till then."""
        self.acquisitions = Acquisitions(self, stream.say, limits)
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
        return bool(self._sent or self._unsent or self.acquisitions.is_busy)

    def submit(self, command: AnyCommand) -> Answer:
        """Does this, behind what was submitted before; its number is given here. The answer is a `Done` or an error."""
        answer: Answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(hear_out)
        if self.ended.done():
            answer.set_exception(self.ended.result())
        elif len(self._sent) + len(self._unsent) >= self._limits.unanswered_max:
            text = f"{self._limits.unanswered_max} commands of the session wait for their answers"
            self._note_refusal("caller_unanswered_max", f"set={self.set_name} {text}")
            answer.set_exception(NotTaken(ErrorCode.UNAVAILABLE, text))
        else:
            self._unsent.append((command, answer))
            self._send()
        return answer

    async def settle(self, command: SettleCommand) -> Done:
        """Settles outside any transaction. Who repeats it is answered as the first time, where that is for good: what was given
        back may have been delivered to the session again. Raises `Rejected` or `InDoubt`: the latter, too, where the session does
        not hold the messages any more and nobody knows whether it is by an earlier call.
        """
        try:
            return await self._settle(command)
        except Rejected as error:
            is_given_back = command.disposition not in (Disposition.ACCEPT, Disposition.REJECT)
            if error.code is ErrorCode.STALE_DELIVERY and (is_given_back or not self._knows_all_settles):
                raise InDoubt(error.code, error.message, **error.details) from error
            raise

    async def _settle(self, command: SettleCommand) -> Done:
        if command.disposition not in (Disposition.ACCEPT, Disposition.REJECT):
            return await self.answered(self.submit(command))
        fingerprint = hashlib.sha256(msgspec.msgpack.encode(command)).digest()
        answer = self._settles.get(fingerprint)
        if answer is None:
            answer = self._settles[fingerprint] = self.submit(command)
            answer.add_done_callback(lambda done: self._settled(fingerprint, done))
            if len(self._settles) > SETTLES_KEPT:
                del self._settles[next(iter(self._settles))]
                self._knows_all_settles = False
        return await self.answered(answer)

    def _settled(self, fingerprint: bytes, done: Answer) -> None:
        if done.exception() is not None and self._settles.get(fingerprint) is done:
            del self._settles[fingerprint]

    def submit_until_taken(self, command: AnyCommand) -> None:
        """As `submit`, for what nobody waits for: it is said again as long as the set does not take it."""
        self.submit(command).add_done_callback(lambda done: self._submit_again(command, done))

    def _submit_again(self, command: AnyCommand, done: Answer) -> None:
        if isinstance(done.exception(), NotTaken) and not self.ended.done():
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.submit_until_taken, command)

    def detach(self) -> None:
        """Ends the session: the set rolls its transactions back and takes back what it holds."""
        if not self.ended.done() and not self._is_leaving:
            self._is_leaving = True
            self._stream.say(DetachSession())

    async def answered(self, waited: "asyncio.Future[_Value]") -> _Value:
        """What `waited` comes to, unless it takes too long: then it is in doubt. Others may wait for the same."""
        try:
            async with asyncio.timeout(self._limits.answer_seconds):
                return await asyncio.shield(waited)
        except TimeoutError:
            text = f"set {self.set_name!r} did not answer within {self._limits.answer_seconds:g} s"
            raise InDoubt(ErrorCode.UNAVAILABLE, text, set_name=self.set_name) from None

    def check_right(self) -> None:
        """Right before what was heard last is passed on. Raises `InDoubt`: the right under which it was said has ended (R6)."""
        if not self._stream.may_be_told:
            text = f"the right to serve set {self.set_name!r} ended before its answer could be passed on"
            raise InDoubt(ErrorCode.NOT_PRIMARY, text, set_name=self.set_name)

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

    def _hear(self, message: Told) -> LockstepError | None:
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
            case AttachRefused() | SessionEnded():
                code = message.code or ErrorCode.UNKNOWN_SESSION
                return Rejected(code, message.message, set_name=self.set_name)
            case _:
                self.acquisitions.hear(message)
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
        self.acquisitions.end(reason)
