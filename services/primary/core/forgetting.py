"""Forgetting outcomes: when the retention floor rises, and which outcomes stay although they lie below it (DESIGN T4, T5).

Law: a branch that has committed is not forgotten while the decision log has its transaction and does not say itself that this
branch has committed: whoever takes the transaction up asks for it again, and would report a hazard. So before the floor rises
above branches of our coordinator, it is asked what the log has. An answer stays true: a name that the log has no more, does not
come back. What it has not looked at, it may have. Where it does not answer for long, or more would have to stay than there is
room for, memory is worth more than a report that is wrong.

A branch that was begun later than now, by its name, was named by a clock that is ahead of this broker's. No horizon may cover it,
for that would refuse all others; so it stays until that time has come, while there is room. A name that is further ahead than
outcomes are kept is none of a clock that was meant to be right.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lockstep.core.branch_names import GlobalId, begun_ms_of, branch_xid, set_participant
from lockstep.core.clock import Now
from lockstep.core.decision_log import LoggedParticipants, ParticipantsEntry
from lockstep.core.effects import ListParticipants
from lockstep.core.ids import LogIndex, TransactionKey
from lockstep.core.inputs import ParticipantsListed
from lockstep.core.records import ForgetOutcomes
from lockstep.core.transaction_states import TransactionState
from services.primary.core import used_names
from services.primary.core.context import Context

_BRANCH_COST = 3
_LOOKED_AT_IN_ONE = 500
"""Outcomes, of which nobody has looked whether the log has their transactions."""
ANSWERED_MS = 5_000
"""After which a question is asked again: its answer came while this primary did not serve."""
WAITED_MS = 30_000
"""How long the floor waits for the decision log, or for room: a busy set has some hundred thousand more outcomes then."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What the log is asked for: some outcomes at or below `floor` are of our coordinator's branches."""

    request: int
    floor: LogIndex
    youngest_ms: int
    """When the youngest of their transactions was begun."""
    ahead: dict[TransactionKey, LogIndex]
    """As `BegunUpTo` has it."""
    late_count: int
    """As the outcomes had it: where that is another, more go with this floor than those that the log was asked of."""
    asked_ms: int
    """Or answered."""


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
        self._unanswered_since_ms: int | None = None
        """The log was asked, and has not answered since; None: it has."""
        self._full_since_ms: int | None = None
        """More would have to stay than there is room for; None: there is room."""

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
        sweep_max = max(1, settings.outcome_sweep_max - outcomes.late_count)
        floor = outcomes.next_floor(self._is_due_up_to, settings.outcomes_max, sweep_max)
        if floor <= outcomes.floor:
            return
        youngest_ms, ahead = used_names.begun_up_to(context, floor)
        if not youngest_ms:
            self._forget(floor, youngest_ms, {}, ahead)
            return
        if self._unanswered_since_ms is None:
            self._unanswered_since_ms = now.boottime_ms
        elif now.boottime_ms - self._unanswered_since_ms >= WAITED_MS:
            # And again, until it answers: it is asked all the same.
            self._forget(floor, youngest_ms, {}, ahead)
        self._last_request += 1
        late_count = outcomes.late_count
        self._question = _Question(self._last_request, floor, youngest_ms, ahead, late_count, now.boottime_ms)
        context.effects.append(ListParticipants(context.state.set_name, self._last_request, youngest_ms))

    def heard(self, given: ParticipantsListed) -> None:
        """What the log has; without an answer it is asked again."""
        question = self._question
        if question is None or question.request != given.request:
            return
        if given.found is None:
            self._question = None
            return
        self._unanswered_since_ms = None
        self._question = question = replace(question, asked_ms=self._context.now.boottime_ms)
        self._context.pieces.begin_in_turn(self._answer(question, given.found))
        self._context.pieces.go_on()

    def _answer(self, question: _Question, found: LoggedParticipants) -> Iterator[int]:
        """In steps that say what they cost (`Pieces`): thousands of transactions may have 64 branches each."""
        awaited: dict[TransactionKey, LogIndex] = {}
        for global_id, entry in found.lists:
            awaited.update(self._awaited(question.floor, global_id, entry))
            yield _BRANCH_COST * len(entry.participants)
        if found.seen_up_to_ms is not None:
            yield from self._take_unseen(question, found.seen_up_to_ms, awaited)
        if self._question is question:
            self._question = None
            self._raise_floor(question, awaited)

    def _awaited(
        self, floor: LogIndex, global_id: GlobalId, entry: ParticipantsEntry
    ) -> Iterator[tuple[TransactionKey, LogIndex]]:
        """Branches here that have committed, and of which somebody may still want to hear that; each with where it ended."""
        for number in entry.awaited(set_participant(self._context.state.set_name)):
            xid = branch_xid(global_id, number, entry.generation).encode()
            yield from self._committed(xid, floor)

    def _take_unseen(
        self, question: _Question, seen_up_to_ms: int, awaited: dict[TransactionKey, LogIndex]
    ) -> Iterator[int]:
        """The log may have the transactions of all that were begun later."""
        xids = self._context.state.outcomes.xids_up_to(question.floor)
        for begin in range(0, len(xids), _LOOKED_AT_IN_ONE):
            some = xids[begin : begin + _LOOKED_AT_IN_ONE]
            for xid in some:
                if seen_up_to_ms < begun_ms_of(xid) <= question.youngest_ms:
                    awaited.update(self._committed(xid, question.floor))
            yield _BRANCH_COST * len(some)

    def _committed(self, xid: bytes, floor: LogIndex) -> Iterator[tuple[TransactionKey, LogIndex]]:
        """That branch, if it has committed, and would be forgotten with this floor."""
        ended = self._context.state.outcomes.find_xid(xid)
        if ended is not None:
            key, outcome = ended
            if outcome.state is TransactionState.COMMITTED and outcome.index <= floor:
                yield key, outcome.index

    def _raise_floor(self, question: _Question, awaited: dict[TransactionKey, LogIndex]) -> None:
        """As far as there is room for what has to stay; what ended first has the room."""
        context, room = self._context, self._context.settings.outcomes_kept_max
        outcomes, now_ms = context.state.outcomes, context.now.boottime_ms
        floor, youngest_ms = question.floor, question.youngest_ms
        if outcomes.late_count != question.late_count:
            return  # An operator has forgotten one meanwhile, and no horizon would tell of it: it is asked of that, too.
        kept = sorted(awaited, key=lambda key: (awaited[key], key))
        if len(kept) <= room:
            self._full_since_ms = None
        else:
            if self._full_since_ms is None:
                self._full_since_ms = now_ms
            if now_ms - self._full_since_ms < WAITED_MS:
                floor = LogIndex(awaited[kept[room]] - 1)
                youngest_ms = used_names.begun_up_to(context, floor).youngest_ms
        if floor > outcomes.floor:
            self._forget(floor, youngest_ms, {key: awaited[key] for key in kept[:room]}, question.ahead)

    def _forget(
        self,
        floor: LogIndex,
        youngest_ms: int,
        awaited: dict[TransactionKey, LogIndex],
        ahead: dict[TransactionKey, LogIndex],
    ) -> None:
        """But for these, as far as they lie below the floor; those that are `ahead` stay while there is room."""
        stays = {key for key, index in awaited.items() if index <= floor}
        if ahead:
            room = self._context.settings.outcomes_kept_max - len(stays)
            more = sorted((index, key) for key, index in ahead.items() if index <= floor and key not in stays)
            stays.update(key for _, key in more[: max(0, room)])
        # What an operator has forgotten while the log was asked, has moved the horizon, too: it does not fall again.
        horizon_ms = max(used_names.horizon_ms(self._context), youngest_ms)
        record = ForgetOutcomes(None, floor, horizon_ms, tuple(sorted(stays)))
        self._forgot_at = self._context.writer.append(record, True)
