"""Driver of a coordinator: feeds the core and performs its effects, each call in a task of its own (DESIGN T9).

Law: effects are performed in order, and an effect that waits for an answer waits beside all others. What the core says to a
client leaves only after the effects before it; a client that is gone hears nothing, and what it began goes on.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, assert_never

from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.runtime.clock import read_now
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.process import spawn
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.messages import (
    BegunAnswer,
    Completed,
    Decide,
    DeleteTransaction,
    Effect,
    EnlistedAnswer,
    GivenUpAnswer,
    HeldAnswer,
    Input,
    KeepCommitted,
    ListLog,
    Note,
    OutcomeAnswer,
    Reached,
    ReadLog,
    RecoverAnswer,
    Refusal,
    RequestDropped,
    RequestId,
    TellBranch,
    Tick,
    Voted,
    WakeSoon,
    Woken,
    WriteParticipants,
)
from services.coordinator.core.steps import Step
from services.coordinator.core.votes import Completion, Verb, Vote
from services.coordinator.log_changes import AnyLogEffect
from services.coordinator.log_port import LogPort
from services.coordinator.participant_ports import ParticipantPorts

_log = logging.getLogger("lockstep.coordinator")

PAUSE_SECONDS = 0.001
"""Between two pieces of what is too much for one step."""

Answer = BegunAnswer | EnlistedAnswer | OutcomeAnswer | RecoverAnswer | HeldAnswer | GivenUpAnswer


class CoordinatorDriver:
    """Lives as long as the process, on one event loop."""

    def __init__(
        self,
        core: Coordinator,
        log: LogPort,
        ports: ParticipantPorts,
        tick_seconds: float,
        exit_at: str = "",
    ) -> None:
        """`exit_at`: for tests only, see `settings.EXIT_AT`."""
        self.core = core
        self._log = log
        self._ports = ports
        self._tick_seconds = tick_seconds
        self._exit_at = exit_at
        self._last_request = 0
        self._waiting: dict[RequestId, asyncio.Future[Answer]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self.steps_total = dict.fromkeys(Step, 0)
        self.hazards_total = 0
        self._refusals = LimitLog(_log)

    async def ask(self, make: Callable[[RequestId], Input]) -> Answer:
        """A client's request, made with its id; returns the answer. Raises `Rejected`, or `InDoubt` when the process stops."""
        self._last_request += 1
        request = RequestId(self._last_request)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request] = answer
        try:
            self.feed(make(request))
            return await answer
        except asyncio.CancelledError:
            # Also of one that was answered in the same turn: nobody has heard the answer.
            self.feed(RequestDropped(request))
            raise
        finally:
            self._waiting.pop(request, None)

    def feed(self, given: Input) -> None:
        """Handles it to its end, and performs what comes of it."""
        now = read_now()
        for effect in self.core.handle(given, now):
            self._perform(effect, now.boottime_ms)

    async def run_ticks(self) -> None:
        """For ever; a task of the process."""
        while True:
            self.feed(Tick())
            await asyncio.sleep(self._tick_seconds)

    async def close(self) -> None:
        """Nothing is performed any more; who waits is left in doubt."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(InDoubt(ErrorCode.UNAVAILABLE, "the coordinator stops: ask another one"))

    # Inside

    def _perform(self, effect: Effect, asked_ms: int) -> None:
        match effect:
            case (
                WriteParticipants() | Decide() | KeepCommitted() | DeleteTransaction() | ReadLog() | ListLog()
            ):
                self._call(self._call_log(effect, asked_ms), "decision log")
            case TellBranch():
                self._call(self._call_participant(effect), "participant")
            case (
                BegunAnswer()
                | EnlistedAnswer()
                | OutcomeAnswer()
                | RecoverAnswer()
                | HeldAnswer()
                | GivenUpAnswer()
            ):
                answer = self._waiting.pop(effect.request, None)
                if answer is not None and not answer.done():
                    answer.set_result(effect)
            case Refusal():
                if effect.limit:
                    self._refusals.refused(effect.limit, effect.message)
                answer = self._waiting.pop(effect.request, None)
                if answer is not None and not answer.done():
                    answer.set_exception(Rejected(effect.code, effect.message))
            case Reached():
                self._reach(effect)
            case Note():
                self._note(effect)
            case WakeSoon():
                asyncio.get_running_loop().call_later(PAUSE_SECONDS, self.feed, Woken())
            case _:
                assert_never(effect)

    async def _call_log(self, effect: AnyLogEffect, asked_ms: int) -> None:
        self.feed(await self._log.perform(effect, asked_ms))

    async def _call_participant(self, effect: TellBranch) -> None:
        participant, xid = effect.participant, effect.xid
        try:
            port = self._ports.of(participant)
        except Rejected as error:
            # Found in the log: written by a coordinator that can call it. That one, or another, will.
            self._refusals.seldom("no_such_port", error.message)
            is_prepare = effect.verb is Verb.PREPARE
            self.feed(
                Voted(effect.ticket, Vote.UNREACHABLE)
                if is_prepare
                else Completed(effect.ticket, Completion.UNREACHABLE)
            )
            return
        match effect.verb:
            case Verb.PREPARE:
                self.feed(Voted(effect.ticket, await port.prepare(participant, xid, effect.together)))
            case Verb.COMMIT | Verb.COMMIT_ONE_PHASE:
                one_phase = effect.verb is Verb.COMMIT_ONE_PHASE
                completion = await port.commit(participant, xid, one_phase=one_phase)
                self.feed(Completed(effect.ticket, completion))
            case Verb.ROLL_BACK:
                self.feed(Completed(effect.ticket, await port.rollback(participant, xid)))

    def _call(self, call: Coroutine[Any, Any, None], name: str) -> None:
        task = spawn(call, name)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _reach(self, effect: Reached) -> None:
        self.steps_total[effect.step] += 1
        if effect.step.value == self._exit_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, effect: Note) -> None:
        level = logging.WARNING
        if effect.event == "hazard":
            self.hazards_total += 1
            level = logging.ERROR
        elif not effect.is_warning:
            # What becomes of a transaction in the ordinary course: whoever leaves thousands has one line.
            text = f"transaction={effect.global_id.hex()} {effect.details}"
            self._refusals.seldom(effect.event, text, level=logging.INFO)
            return
        _log.log(level, "transaction=%s event=%s %s", effect.global_id.hex(), effect.event, effect.details)
