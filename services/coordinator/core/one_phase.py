"""A transaction with a single participant: that one ends it, and the log never hears of it (DESIGN T3).

Law: the participant's word is the outcome. What it does not say is in doubt, and the client asks it later. That it knows nothing
of the branch says that it has not committed only where it would remember that: as a set does, for as long as anybody may ask, or
it says that it would not. A participant service may have forgotten how the branch ended, which another coordinator had it commit,
unheard.
"""

from lockstep.core.branch_names import SET_KIND, GenerationTag, GlobalId, ParticipantName, begun_ms
from lockstep.core.clock import Now
from lockstep.core.decision_log import LogView
from lockstep.core.xa import XaStatus
from services.coordinator.core.branches import Branches
from services.coordinator.core.context import Context
from services.coordinator.core.messages import Reached, RequestId, State
from services.coordinator.core.steps import Step
from services.coordinator.core.votes import Completion, Verb, Vote
from services.coordinator.core.waiters import Waiters

_COMMIT_STATES = {
    Completion.COMMITTED: State.COMMITTED,
    Completion.ROLLED_BACK: State.ROLLED_BACK,
    Completion.HEURISTICALLY_COMMITTED: State.COMMITTED,
    Completion.HEURISTICALLY_ROLLED_BACK: State.ROLLED_BACK,
    Completion.HEURISTICALLY_MIXED: State.COMMITTED,
    # A repeated commit whose first answer was lost, perhaps.
    Completion.UNKNOWN_BRANCH: State.NOT_KNOWN,
    Completion.FORGOTTEN: State.NOT_KNOWN,
}
_HEURISTIC = {
    Completion.HEURISTICALLY_COMMITTED: XaStatus.HEURCOM,
    Completion.HEURISTICALLY_ROLLED_BACK: XaStatus.HEURRB,
    Completion.HEURISTICALLY_MIXED: XaStatus.HEURMIX,
}
"""Recorded by that participant, which keeps it until it is forgotten there."""


class OnePhase:
    """Driven by its coordinator's core, from `begin` until `is_ended`."""

    def __init__(
        self,
        context: Context,
        global_id: GlobalId,
        generation: GenerationTag,
        participant: ParticipantName,
        verb: Verb,
    ) -> None:
        """`verb`: to commit in one phase, or to roll back."""
        self._context = context
        self._verb = verb
        self.global_id = global_id
        self.generation = generation
        self.branches = Branches(context, self, global_id, generation, (participant,))
        self.waiters = Waiters(context, self)
        self.is_ended = False
        self._end_ms = 0

    @property
    def participants(self) -> tuple[ParticipantName, ...]:
        return self.branches.participants

    def begin(self, now: Now) -> None:
        self._end_ms = now.boottime_ms + self._context.limits.doubt_ms
        self._context.wake_at(self._end_ms, self)
        self.branches.tell(self._verb, now)

    def join(self, request: RequestId, now: Now) -> None:
        self.waiters.add(request, now)

    def completed(self, number: int, completion: Completion, now: Now) -> None:
        if not self.branches.completed(number, completion, now):
            return
        self._context.say(Reached(Step.ONE_PHASE_COMPLETED, self.global_id))
        state = _COMMIT_STATES[completion]
        is_unknown = completion is Completion.UNKNOWN_BRANCH
        if self._verb is Verb.ROLL_BACK and is_unknown and self._would_remember(now):
            state = State.ROLLED_BACK
        heuristics = ((self.participants[0], completion.value),) if completion in _HEURISTIC else ()
        status = _HEURISTIC.get(completion, XaStatus.OK)
        self.waiters.answer(state, heuristics, heuristic=status)
        self.is_ended = True

    def _would_remember(self, now: Now) -> bool:
        """Whether the participant would know that the branch has committed."""
        age_ms = now.wall_ms - begun_ms(self.global_id)
        return self.participants[0].startswith(SET_KIND) and age_ms <= self._context.limits.age_ms_max

    def wake(self, now: Now) -> None:
        if self.is_ended:
            return
        if now.boottime_ms < self._end_ms:
            self.branches.tell_again(now)
            return
        # An unprepared branch ends by its own time-out, whatever it was told.
        self.branches.drop_calls()
        self.waiters.answer(State.UNDECIDED)
        self.is_ended = True

    def written(self, revision: int, now: Now) -> None:
        raise AssertionError("the log is not used")

    def read(self, view: LogView, now: Now) -> None:
        raise AssertionError("the log is not used")

    def doubted(self, now: Now) -> None:
        raise AssertionError("the log is not used")

    def voted(self, number: int, vote: Vote, now: Now) -> None:
        raise AssertionError("nobody is asked to prepare")
