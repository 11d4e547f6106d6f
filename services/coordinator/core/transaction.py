"""A transaction of several participants, from the wish to end it until it has left the log (DESIGN T3, T4). Phases: `phases.py`.

Law: the decision is recorded before anyone hears it, and it is recorded only while the list that its branches were prepared
under is still in the log. A coordinator that was paused with all votes in its hands finds, when it wakes, that list gone, and
decides nothing (history 5). What the log has decided is followed, whatever was wanted. A change in doubt is followed by a read,
never by a guess; it may be made later than the read, so what is written next is the same again.
"""

from lockstep.core.branch_names import GenerationTag, GlobalId, ParticipantName, begun_ms, generation_tag
from lockstep.core.clock import Now
from lockstep.core.decision_log import LogView, OutcomeEntry, ParticipantsEntry, Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.xa import XaStatus
from services.coordinator.core.branches import Branches
from services.coordinator.core.context import Context
from services.coordinator.core.messages import (
    Decide,
    DeleteTransaction,
    Note,
    Reached,
    ReadLog,
    RequestId,
    State,
    Ticket,
    WriteParticipants,
)
from services.coordinator.core.phases import NEXT, Phase
from services.coordinator.core.steps import Step
from services.coordinator.core.votes import (
    Completion,
    Verb,
    Vote,
    heuristic_status,
    is_hazard,
    verdict_of,
)
from services.coordinator.core.waiters import Waiters

STATES = {Verdict.COMMIT: State.COMMITTED, Verdict.ABORT: State.ROLLED_BACK, None: State.NOT_KNOWN}
NOTHING_FOUND = -1
"""No entry's revision: a time-out runs until prepare, so it leaves alone what is in the log (T2)."""


class Transaction:
    """Driven by its coordinator's core, from `begin` until `is_ended`."""

    def __init__(
        self,
        context: Context,
        global_id: GlobalId,
        generation: GenerationTag,
        participants: tuple[ParticipantName, ...],
        aim: Verdict,
        found_revision: int = 0,
    ) -> None:
        """`found_revision`: the undecided entry that a recoverer found, which it leaves alone when it has changed since; or
        `NOTHING_FOUND`, to leave any alone; 0: it is here because somebody asked.
        """
        self._context = context
        self.global_id = global_id
        self.generation = generation
        self.branches = Branches(context, self, global_id, generation, participants)
        self.waiters = Waiters(context, self)
        self.phase = Phase.LOOKING
        self.aim = aim
        """What is wanted; ABORT from the moment that anything speaks against COMMIT."""
        self.verdict: Verdict | None = None
        """What the log has decided; None: not known here, or nothing needs a decision."""
        self.revision = 0
        """Of the participants entry that all this is about."""
        self._found_revision = found_revision
        self._is_decided = False
        """Whether the decision key stands: the verdict is more than our own."""
        self._replaces = 0
        self._hazards: dict[int, Completion] = {}
        self._deadline_ms = 0
        self._answer_ms = 0
        self._ticket: Ticket | None = None
        self._sent: WriteParticipants | None = None
        self._tries = 0
        self._again_ms: int | None = None
        self._reads_again = False

    @property
    def is_ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def participants(self) -> tuple[ParticipantName, ...]:
        return self.branches.participants

    # What is asked

    def begin(self, now: Now, *, looks_first: bool) -> None:
        """`looks_first`: the list should be in the log already; where nothing is, somebody has finished."""
        self._deadline_ms = now.boottime_ms + self._context.limits.prepare_ms
        self._context.wake_at(self._deadline_ms, self)
        if self.aim is Verdict.COMMIT:
            self._reached(Step.COMMIT_ASKED)
        if not looks_first:
            self.phase = Phase.WRITING
        self._propose(now)

    def join(self, request: RequestId, now: Now) -> None:
        """Somebody else wants to know how it ends."""
        self.waiters.add(request, now)
        if self.phase is Phase.COMPLETING and now.boottime_ms >= self._answer_ms:
            self._answer()
        if self.phase is Phase.DELETING and self._is_decided:
            self._answer()

    def abandon(self, now: Now) -> None:
        """Somebody wants it rolled back: it is, unless the decision is already on its way."""
        if self.phase in (Phase.LOOKING, Phase.WRITING):
            self.aim = Verdict.ABORT
        if self.phase is Phase.PREPARING:
            self._decide(Verdict.ABORT, now)

    # What the log says

    def written(self, revision: int, now: Now) -> None:
        self._ticket = None
        match self.phase:
            case Phase.WRITING:
                assert self._sent is not None, "something was written"
                self.revision = revision
                if self._sent.decision is not None:
                    self._follow(self._sent.decision, now)
                elif self.aim is Verdict.ABORT:
                    self._decide(Verdict.ABORT, now)
                else:
                    self._reached(Step.PARTICIPANTS_WRITTEN)
                    self._prepare(now)
            case Phase.DECIDING:
                self._reached(Step.DECISION_WRITTEN)
                self._follow(self.aim, now)
            case Phase.DELETING:
                self._reached(Step.LOG_DELETED)
                self._report_hazards()
                self._end(STATES[self.verdict])
            case _:
                raise AssertionError(f"nothing is written while {self.phase.value}")

    def read(self, view: LogView, now: Now) -> None:
        self._ticket = None
        if view.participants is None:
            self._gone(view, now)
        elif view.decision is not None:
            self.revision = view.participants_revision
            self._adopt(view.participants, view.decision is Verdict.ABORT)
            self._follow(view.decision, now)
        elif self.phase is not Phase.DELETING and not _is_of(view, view.participants.generation):
            self._leave_to_operators(view)
        elif self.phase is Phase.DECIDING or self.phase is Phase.DELETING:
            self._still_there(view.participants_revision, now)
        else:
            self._found(view.participants, view.participants_revision, now)

    def doubted(self, now: Now) -> None:
        self._ticket = None
        self._again(now, reads=True)

    # What participants say

    def voted(self, number: int, vote: Vote, now: Now) -> None:
        assert self.phase is Phase.PREPARING, "calls of a phase are forgotten with it"
        is_first = not any(self.branches.votes)
        if self.branches.voted(number, vote, now):
            if is_first:
                self._reached(Step.VOTE_RECEIVED)
            self._count(now)

    def completed(self, number: int, completion: Completion, now: Now) -> None:
        assert self.phase is Phase.COMPLETING and self.verdict is not None, "told when it is decided"
        is_first = all(branch.completion is None for branch in self.branches.all)
        if not self.branches.completed(number, completion, now):
            return
        if is_hazard(self.verdict, completion):
            self._hazards[number] = completion
        if is_first:
            self._reached(Step.BRANCH_COMPLETED)
        self._check_completed(now)

    def wake(self, now: Now) -> None:
        if self.is_ended:
            return
        if self._again_ms is not None and self._again_ms <= now.boottime_ms:
            self._again_ms = None
            if self._reads_again:
                self._read(now)
            else:
                self._propose(now)
        self._watch_the_clock(now)

    # From phase to phase

    def _watch_the_clock(self, now: Now) -> None:
        self.branches.tell_again(now)
        if self.phase in (Phase.LOOKING, Phase.WRITING) and now.boottime_ms >= self._deadline_ms:
            self.aim = Verdict.ABORT
        if self.phase is Phase.PREPARING:
            self._count(now)
        if self.phase is Phase.COMPLETING and now.boottime_ms >= self._answer_ms:
            self._answer()
        self.waiters.answer_late(STATES[self.verdict] if self._is_decided else State.UNDECIDED, now)

    def _prepare(self, now: Now) -> None:
        self._enter(Phase.PREPARING)
        self.branches.tell(Verb.PREPARE, now)

    def _count(self, now: Now) -> None:
        votes = self.branches.votes
        verdict = verdict_of(votes, is_late=now.boottime_ms >= self._deadline_ms)
        if verdict is None:
            return
        self._reached(Step.VOTES_COMPLETE)
        if all(vote is Vote.READ_ONLY for vote in votes):
            self._delete(Verdict.COMMIT, now)
        elif all(vote is Vote.UNKNOWN_BRANCH for vote in votes):
            # Never begun, or finished so long ago that everybody has forgotten: who knows how?
            self._delete(None, now)
        else:
            self._decide(verdict, now)

    def _decide(self, verdict: Verdict, now: Now) -> None:
        self.branches.drop_calls()
        self.aim = verdict
        self._enter(Phase.DECIDING)
        self._propose(now)

    def _follow(self, verdict: Verdict, now: Now) -> None:
        """The log has it."""
        self.branches.drop_calls()
        self.verdict, self._is_decided = verdict, True
        self._enter(Phase.COMPLETING)
        self._answer_ms = now.boottime_ms + self._context.limits.answer_ms
        self._context.wake_at(self._answer_ms, self)
        self.branches.tell(Verb.COMMIT if verdict is Verdict.COMMIT else Verb.ROLL_BACK, now)
        self._check_completed(now)

    def _check_completed(self, now: Now) -> None:
        if self.branches.pending:
            return
        self._reached(Step.ALL_COMPLETED)
        self._answer()
        self._delete(self.verdict, now)

    def _delete(self, verdict: Verdict | None, now: Now) -> None:
        self.branches.drop_calls()
        self.verdict = verdict
        self._enter(Phase.DELETING)
        self._propose(now)

    def _end(self, state: State, outcome: OutcomeEntry | None = None) -> None:
        """`outcome`: somebody else has recorded it."""
        self._enter(Phase.ENDED)
        self._context.forget(self._ticket)
        self._again_ms = None
        self.branches.drop_calls()
        if outcome is not None:
            self.waiters.answer(state, outcome.hazards, heuristic=outcome.heuristic)
        else:
            self.waiters.answer(state, self._hazards_named(), heuristic=self._heuristic)

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            assert phase in NEXT[self.phase], f"{self.phase.value} to {phase.value}"
            self.phase, self._tries = phase, 0

    # Reading the log

    def _gone(self, view: LogView, now: Now) -> None:
        """No participants are there: not yet, or not any more."""
        if view.outcome is not None:
            self._end(STATES[view.outcome.verdict], view.outcome)
        elif self.phase is Phase.WRITING and self._replaces == 0 and self._may_begin(view, now):
            self._again(now)
        else:
            self._end(STATES[self.verdict])

    def _found(self, entry: ParticipantsEntry, revision: int, now: Now) -> None:
        """An undecided list is in the log, ours or another coordinator's."""
        if self.aim is Verdict.ABORT:
            if self._found_revision not in (0, revision) and not self.waiters:
                self._end(State.UNDECIDED)
                return
            self.revision = revision
            self._adopt(entry, is_abort=True)
            self._decide(Verdict.ABORT, now)
        elif entry.participants != self.participants or entry.generation != self.generation:
            self.waiters.refuse(
                ErrorCode.ILLEGAL_STATE, "it was closed, or is being ended, with other participants"
            )
            self._end(State.UNDECIDED)
        elif entry.is_closed:
            self._replaces = revision
            self._enter(Phase.WRITING)
            self._propose(now)
        else:
            self.revision = revision
            self._prepare(now)

    def _still_there(self, revision: int, now: Now) -> None:
        """Undecided, although we wrote a decision, or deleted what needed none."""
        if revision == self.revision:
            self._again(now)
        elif self.phase is Phase.DECIDING and self.aim is Verdict.ABORT and self.waiters:
            self.revision = revision
            self._propose(now)
        else:
            # Signed by the coordinator that is to commit it; or finished, and written again. Our votes are not for it.
            self._end(State.NOT_KNOWN if self.phase is Phase.DECIDING else STATES[self.verdict])

    def _leave_to_operators(self, view: LogView) -> None:
        """Undecided, in a log that may have lost its decision: whatever is decided now could contradict it (history 26)."""
        self._context.say(
            Note("undecided_of_another_history", self.global_id, f"generation={view.generation}")
        )
        self._end(State.UNDECIDED)

    def _adopt(self, entry: ParticipantsEntry, is_abort: bool) -> None:
        """The log's list is the transaction's; of an aborted one, whoever else is known is told too."""
        merged = list(entry.participants)
        if is_abort:
            for number, name in enumerate(self.participants):
                if number >= len(merged):
                    merged.append(name)
                elif not merged[number]:
                    merged[number] = name
        if tuple(merged) != self.participants or entry.generation != self.generation:
            self.branches.drop_calls()
            self.generation = entry.generation
            self.branches = Branches(self._context, self, self.global_id, entry.generation, tuple(merged))

    # Writing the log

    def _propose(self, now: Now) -> None:
        match self.phase:
            case Phase.LOOKING:
                self._read(now)
            case Phase.WRITING:
                if self._replaces and self.aim is Verdict.ABORT:
                    self.revision = self._replaces
                    self._decide(Verdict.ABORT, now)
                    return
                if self._replaces == 0 and self._is_stale(now):
                    self._end(State.NOT_KNOWN)
                    return
                owner = self._context.process
                entry = ParticipantsEntry(self.participants, self.generation, owner, now.wall_ms)
                decision = Verdict.ABORT if self.aim is Verdict.ABORT else None
                self._ticket = self._context.ticket(self)
                self._sent = WriteParticipants(self._ticket, self.global_id, entry, self._replaces, decision)
                self._context.say(self._sent)
            case Phase.DECIDING:
                self._ticket = self._context.ticket(self)
                self._context.say(
                    Decide(self._ticket, self.global_id, self.revision, self.aim, self.generation)
                )
            case Phase.DELETING:
                self._ticket = self._context.ticket(self)
                decision = self.verdict if self._is_decided else None
                hazards, heuristic = self._hazards_named(), self._heuristic
                outcome = OutcomeEntry(self.verdict, hazards, heuristic) if self.verdict else None
                self._context.say(
                    DeleteTransaction(self._ticket, self.global_id, self.revision, decision, outcome)
                )
            case _:
                raise AssertionError(f"nothing is written while {self.phase.value}")

    def _read(self, now: Now) -> None:
        self._ticket = self._context.ticket(self)
        self._context.say(ReadLog(self._ticket, self.global_id))

    def _again(self, now: Now, *, reads: bool = False) -> None:
        """After a pause: proposes the same again, or reads first what became of it."""
        self._tries += 1
        self._reads_again = reads
        self._again_ms = now.boottime_ms + self._context.pause_ms(self._tries)
        self._context.wake_at(self._again_ms, self)

    def _may_begin(self, view: LogView, now: Now) -> bool:
        """Not when it is so old that the client may have ended it elsewhere and nothing is left of that; and not in another
        history of the cluster than the one in which it was begun: its decision may be lost (history 26).
        """
        return not self._is_stale(now) and _is_of(view, self.generation)

    def _is_stale(self, now: Now) -> bool:
        return now.wall_ms - begun_ms(self.global_id) > self._context.limits.age_ms_max

    # Telling

    def _answer(self) -> None:
        pending = self.branches.pending
        self.waiters.answer(STATES[self.verdict], self._hazards_named(), pending, self._heuristic)

    @property
    def _heuristic(self) -> XaStatus:
        """Of those that have acknowledged."""
        if self.verdict is None:
            return XaStatus.OK
        return heuristic_status(self.verdict, self.branches.completions)

    def _hazards_named(self) -> tuple[tuple[ParticipantName, str], ...]:
        return tuple(
            (self.participants[number], completion.value)
            for number, completion in sorted(self._hazards.items())
        )

    def _report_hazards(self) -> None:
        """By whoever deletes it, once: another coordinator may have had the acknowledgement that was lost to this one."""
        for name, answer in self._hazards_named():
            verdict = "nothing" if self.verdict is None else self.verdict.value
            self._context.say(
                Note("hazard", self.global_id, f"participant={name} decided={verdict} ended={answer}")
            )

    def _reached(self, step: Step) -> None:
        self._context.say(Reached(step, self.global_id))


def _is_of(view: LogView, generation: GenerationTag) -> bool:
    """Whether the cluster's history is still the one of that generation."""
    return bool(view.generation) and generation_tag(view.generation) == generation
