"""Forgetting outcomes: when the retention floor rises, and which outcomes stay although they lie below it (DESIGN T4, T5).

Law: a branch that has committed is not forgotten while the decision log has its transaction and does not say itself that this
branch has committed: whoever takes the transaction up asks for it again, and would report a hazard. So before the floor rises
above branches of our coordinator, it is asked what the log has. An answer stays true: a name that the log has no more, does not
come back. Where it does not answer for long, memory is worth more than a report that is wrong.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.core.branch_names import SET_KIND, GlobalId, branch_xid
from lockstep.core.clock import Now
from lockstep.core.decision_log import LoggedParticipants, ParticipantsEntry
from lockstep.core.effects import ListParticipants
from lockstep.core.ids import LogIndex, TransactionKey
from lockstep.core.inputs import ParticipantsListed
from lockstep.core.records import ForgetOutcomes
from lockstep.core.transaction_states import TransactionState
from services.primary.core import used_names
from services.primary.core.context import Context

KEPT_MAX = 1_000
"""Of a set: each record that raises the floor names them."""
_BRANCH_COST = 3
ANSWERED_MS = 5_000
"""After which a question is asked again: its answer came while this primary did not serve."""
WAITED_MS = 30_000
"""How long the floor waits for the decision log: a busy set has some hundred thousand more outcomes then."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What the log is asked for: some outcomes at or below `floor` are of our coordinator's branches."""

    request: int
    floor: LogIndex
    name_horizon_ms: int
    """Behind it."""
    asked_ms: int


class Forgetting:
    """Lives as long as the epoch; driven by housekeeping."""

    def __init__(self, context: Context, now: Now) -> None:
        self._context = context
        self._sweeps: deque[tuple[int, LogIndex]] = deque()
        """(time, log's end then) of past sweeps, younger than the retention."""
        self._is_due_up_to = LogIndex(0)
        """The retention of what lies up to here is over."""
        self._forgot_at = LogIndex(0)
        """Where the last sweep was put into the log."""
        self._swept_ms = now.boottime_ms
        self._last_request = context.epoch << 32
        """What was asked in an earlier reign of this process may still be answered."""
        self._question: _Question | None = None
        """Under way, or its answer is looked through."""
        self._waits_since_ms: int | None = None
        """For an answer of the log; None: it has answered."""

    def tick(self, now: Now) -> None:
        """Raise the floor: outcomes are kept for `outcome_retention_ms`, unless there are too many (T5)."""
        context, settings = self._context, self._context.settings
        if now.boottime_ms - self._swept_ms < settings.outcome_sweep_ms:
            return
        self._swept_ms = now.boottime_ms
        if (end := context.writer.log.end) != self._forgot_at:
            # Else nothing happened: a set at rest leaves the disk alone.
            self._sweeps.append((now.boottime_ms, end))
        while self._sweeps and self._sweeps[0][0] <= now.boottime_ms - settings.outcome_retention_ms:
            self._is_due_up_to = self._sweeps.popleft()[1]
        if self._question is not None and now.boottime_ms - self._question.asked_ms < ANSWERED_MS:
            return
        outcomes = context.state.outcomes
        floor = outcomes.next_floor(self._is_due_up_to, settings.outcomes_max, settings.outcome_sweep_max)
        if floor <= outcomes.floor:
            return
        youngest_ms = used_names.youngest_up_to(context, floor)
        horizon_ms = max(used_names.horizon_ms(context), youngest_ms)
        if not youngest_ms or self._has_waited(now):
            self._forget(floor, horizon_ms)
        else:
            self._last_request += 1
            self._question = _Question(self._last_request, floor, horizon_ms, now.boottime_ms)
            context.effects.append(ListParticipants(context.state.set_name, self._last_request))

    def heard(self, given: ParticipantsListed) -> None:
        """What the log has; without an answer it is asked again."""
        question = self._question
        if question is None or question.request != given.request:
            return
        if given.found is None:
            self._question = None
            return
        self._context.pieces.begin_in_turn(self._answer(question, given.found))
        self._context.pieces.go_on()

    def _has_waited(self, now: Now) -> bool:
        if self._waits_since_ms is None:
            self._waits_since_ms = now.boottime_ms
        return now.boottime_ms - self._waits_since_ms >= WAITED_MS

    def _answer(self, question: _Question, found: LoggedParticipants) -> Iterator[int]:
        """In steps that say what they cost (`Pieces`): a thousand transactions may have 64 branches each."""
        kept: list[TransactionKey] = []
        for global_id, entry in found:
            kept += self._awaited(question.floor, global_id, entry)
            yield _BRANCH_COST * len(entry.participants)
        if self._question is question:
            self._forget(question.floor, question.name_horizon_ms, tuple(sorted(kept)[:KEPT_MAX]))

    def _awaited(
        self, floor: LogIndex, global_id: GlobalId, entry: ParticipantsEntry
    ) -> Iterator[TransactionKey]:
        """Branches here that have committed, and of which somebody may still want to hear that."""
        own = f"{SET_KIND}{self._context.state.set_name}"
        for number, participant in enumerate(entry.participants):
            if participant != own or number in entry.committed:
                continue
            ended = self._context.state.outcomes.find_xid(
                branch_xid(global_id, number, entry.generation).encode()
            )
            if ended is not None:
                key, outcome = ended
                if outcome.state is TransactionState.COMMITTED and outcome.index <= floor:
                    yield key

    def _forget(self, floor: LogIndex, horizon_ms: int, kept: tuple[TransactionKey, ...] = ()) -> None:
        self._question = self._waits_since_ms = None
        self._forgot_at = self._context.writer.append(ForgetOutcomes(None, floor, horizon_ms, kept), True)
