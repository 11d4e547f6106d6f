"""Closing a transaction: the list of participants goes into the log before the client prepares branches of its own (DESIGN T3).

Law: the client hears of it only when the list is there. A close in doubt may still be written later; then nobody commits it,
and a recoverer aborts it when its time is over.
"""

from lockstep.core.branch_names import GlobalId, begun_ms, generation_tag
from lockstep.core.clock import Now
from lockstep.core.decision_log import LogView, ParticipantsEntry, Verdict
from lockstep.core.errors import ErrorCode
from services.coordinator.core.context import Context
from services.coordinator.core.log_turn import Due, LogTurn
from services.coordinator.core.messages import (
    BegunAnswer,
    CloseAsked,
    OutcomeAnswer,
    Reached,
    Refusal,
    State,
)
from services.coordinator.core.steps import Step
from services.coordinator.core.votes import Completion, Vote


class Closing:
    """Driven by its coordinator's core, from `begin` until `is_ended`."""

    def __init__(self, context: Context, asked: CloseAsked) -> None:
        self._context = context
        self._asked = asked
        self.is_ended = False
        self._log = LogTurn(context, self, asked.global_id)
        self._end_ms = 0

    @property
    def global_id(self) -> GlobalId:
        return self._asked.global_id

    def begin(self, now: Now) -> None:
        self._context.say(Reached(Step.CLOSE_ASKED, self.global_id))
        self._end_ms = now.boottime_ms + self._context.limits.prepare_ms
        self._context.wake_at(self._end_ms, self)
        self._write(now)

    def written(self, revision: int, now: Now) -> None:
        if not self.is_ended:
            self._context.say(Reached(Step.CLOSE_WRITTEN, self.global_id))
            self._close()

    def read(self, view: LogView, now: Now) -> None:
        if self.is_ended:
            return
        entry, asked = view.participants, self._asked
        is_aborted = view.decision is Verdict.ABORT or (
            view.outcome is not None and view.outcome.verdict is Verdict.ABORT
        )
        if is_aborted:
            self._refuse(ErrorCode.ROLLED_BACK, "it was rolled back: its time was over, or somebody asked")
        elif view.decision is not None or view.outcome is not None:
            self._refuse(ErrorCode.TRANSACTION_FINISHED, "it is committed")
        elif entry is not None:
            is_same = entry.participants == asked.participants and entry.generation == asked.generation
            if is_same and entry.is_closed:
                self._close()
            else:
                self._refuse(
                    ErrorCode.ILLEGAL_STATE, "it is being committed, or closed with other participants"
                )
        elif not view.generation or generation_tag(view.generation) != asked.generation:
            self._refuse(ErrorCode.EXPIRED, "it was begun before the cluster's history was changed")
        else:
            self._log.again(now)

    def doubted(self, now: Now) -> None:
        self._log.again(now, Due.READ)

    def wake(self, now: Now) -> None:
        if self.is_ended:
            return
        if now.boottime_ms >= self._end_ms:
            self._context.say(OutcomeAnswer(self._asked.request, State.UNDECIDED))
            self.is_ended = True
            return
        match self._log.take_due(now):
            case Due.READ:
                self._log.read()
            case Due.PROPOSE:
                self._write(now)

    def voted(self, number: int, vote: Vote, now: Now) -> None:
        raise AssertionError("nobody is asked to prepare")

    def completed(self, number: int, completion: Completion, now: Now) -> None:
        raise AssertionError("nobody is told an end")

    def _write(self, now: Now) -> None:
        asked = self._asked
        if now.wall_ms - begun_ms(asked.global_id) > self._context.limits.age_ms_max:
            self._refuse(ErrorCode.EXPIRED, "it was begun too long ago")
            return
        entry = ParticipantsEntry(
            asked.participants, asked.generation, self._context.process, now.wall_ms, is_closed=True
        )
        self._log.write(entry)

    def _close(self) -> None:
        self._context.say(BegunAnswer(self._asked.request))
        self.is_ended = True

    def _refuse(self, code: ErrorCode, message: str) -> None:
        self._context.say(Refusal(self._asked.request, code, message))
        self.is_ended = True
