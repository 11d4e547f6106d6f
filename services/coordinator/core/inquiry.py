"""What became of a transaction: the answer is what the log says (DESIGN T5).

Law: nothing in the log is no outcome. Undecided stays undecided, unless the asker wants it fenced: then ABORT has to win in the
log.
"""

from lockstep.core.branch_names import GlobalId
from lockstep.core.clock import Now
from lockstep.core.decision_log import LogView
from services.coordinator.core.context import Context
from services.coordinator.core.messages import LoggedTransaction, OutcomeAnswer, OutcomeAsked, ReadLog, State
from services.coordinator.core.transaction import STATES
from services.coordinator.core.votes import Completion, Vote


class Inquiry:
    """Driven by its coordinator's core, from `begin` until `is_ended`."""

    def __init__(self, context: Context, asked: OutcomeAsked) -> None:
        self._context = context
        self.asked = asked
        self.to_be_fenced: LoggedTransaction | None = None
        """Undecided, found in the log: somebody has to win ABORT, and answers the asker."""
        self.is_ended = False
        self._tries = 0
        self._end_ms = 0
        self._again_ms: int | None = None

    @property
    def global_id(self) -> GlobalId:
        return self.asked.global_id

    def begin(self, now: Now) -> None:
        self._end_ms = now.boottime_ms + self._context.limits.doubt_ms
        self._context.wake_at(self._end_ms, self)
        self._read()

    def read(self, view: LogView, now: Now) -> None:
        if self.is_ended:
            return
        self.is_ended = True
        if view.outcome is not None:
            self._answer(STATES[view.outcome.verdict], view)
        elif view.decision is not None:
            is_timed_out = view.participants is not None and view.participants.is_timed_out
            # Its first participant may have committed alone: whoever ends it hears that from there.
            self._answer(State.UNDECIDED if is_timed_out else STATES[view.decision], view)
        elif view.participants is None:
            self._answer(State.NOT_KNOWN, view)
        elif self.asked.is_fence:
            self.to_be_fenced = LoggedTransaction(self.global_id, view.participants, view.list_read, None)
        else:
            self._answer(State.UNDECIDED, view)

    def doubted(self, now: Now) -> None:
        self._tries += 1
        self._again_ms = now.boottime_ms + self._context.pause_ms(self._tries)
        self._context.wake_at(self._again_ms, self)

    def wake(self, now: Now) -> None:
        if self.is_ended:
            return
        if now.boottime_ms >= self._end_ms:
            # The log is silent, and what it would say is in doubt.
            self._context.say(OutcomeAnswer(self.asked.request, State.UNDECIDED))
            self.is_ended = True
        elif self._again_ms is not None and self._again_ms <= now.boottime_ms:
            self._again_ms = None
            self._read()

    def written(self, revision: int, now: Now) -> None:
        raise AssertionError("nothing is written")

    def voted(self, number: int, vote: Vote, now: Now) -> None:
        raise AssertionError("nobody is asked to prepare")

    def completed(self, number: int, completion: Completion, now: Now) -> None:
        raise AssertionError("nobody is told an end")

    def _read(self) -> None:
        self._context.say(ReadLog(self._context.ticket(self), self.global_id))

    def _answer(self, state: State, view: LogView) -> None:
        if view.outcome is None:
            self._context.say(OutcomeAnswer(self.asked.request, state))
            return
        hazards, heuristic = view.outcome.hazards, view.outcome.heuristic
        self._context.say(OutcomeAnswer(self.asked.request, state, hazards, heuristic=heuristic))
