"""Hazards of one transaction: branches that did not end as decided, that ended heuristically, or that cannot say how (DESIGN T4).

Law: what a participant has answered counts and is recorded, whatever it is; nothing is done about it but to tell somebody.
"""

from lockstep.core.branch_names import GlobalId, ParticipantName
from lockstep.core.decision_log import Verdict
from lockstep.core.xa import XaStatus
from services.coordinator.core.branches import Branches
from services.coordinator.core.context import Context
from services.coordinator.core.messages import Note
from services.coordinator.core.votes import Completion, heuristic_status, is_hazard


class Hazards:
    """As long as its transaction, which is its driver."""

    def __init__(self, context: Context, global_id: GlobalId) -> None:
        self._context = context
        self._global_id = global_id
        self._ends: dict[int, Completion] = {}
        """By the number of the branch."""

    def heard(self, number: int, completion: Completion, verdict: Verdict) -> None:
        if is_hazard(verdict, completion):
            self._ends[number] = completion

    def named(
        self, branches: Branches, *, was_committed_alone: bool
    ) -> tuple[tuple[ParticipantName, str], ...]:
        """Each participant with its answer. `was_committed_alone`: before, by its client; to have committed is no hazard then."""
        names = branches.participants
        return tuple(
            (names[number], completion.value)
            for number, completion in sorted(self._ends.items())
            if not (was_committed_alone and completion is Completion.COMMITTED)
        )

    def status(self, branches: Branches, verdict: Verdict | None) -> XaStatus:
        """What the ends make of the whole, of those branches that have acknowledged."""
        return heuristic_status(verdict, branches.completions) if verdict is not None else XaStatus.OK

    def report(self, branches: Branches, verdict: Verdict | None, *, was_committed_alone: bool) -> None:
        """By whoever deletes it, once: another coordinator may have had the acknowledgement that was lost to this one."""
        for name, answer in self.named(branches, was_committed_alone=was_committed_alone):
            decided = "nothing" if verdict is None else verdict.value
            self._context.say(
                Note("hazard", self._global_id, f"participant={name} decided={decided} ended={answer}")
            )
