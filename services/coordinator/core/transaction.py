"""A transaction of several participants, from the wish to end it until it has left the log (DESIGN T3, T4). Phases: `phases.py`.

Law: the decision is recorded before anyone hears it, and it is recorded only while the list that its branches were prepared
under is still in the log. A coordinator that was paused with all votes in its hands finds, when it wakes, that list gone, and
decides nothing (history 5). What the log has decided is followed, whatever was wanted. A change in doubt is followed by a read,
never by a guess; it may be made later than the read, so what is written next is the same again. What another coordinator may have
decided before, in what etcd has lost since, is decided only when a roll call was answered (history 26): what is aborted that was
left undecided, or that was begun before this process had the log in sight (`log_sight.py`) and is to be ended, perhaps not for
the first time; and whatever is decided so late that all of that may have happened meanwhile, though the list is its own and the
votes are in its hands. Behind a roll call, too, what all have acknowledged leaves an etcd that has lost that decision: its
outcome is the one that was told.
"""

from dataclasses import replace

from lockstep.core.branch_names import (
    SET_KIND,
    GenerationTag,
    GlobalId,
    ParticipantName,
    begun_ms,
    generation_tag,
)
from lockstep.core.clock import Now
from lockstep.core.decision_log import NO_LIST, ListRead, LogView, OutcomeEntry, ParticipantsEntry, Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.xa import XaStatus
from services.coordinator.core.branches import Branches
from services.coordinator.core.context import Context
from services.coordinator.core.hazards import Hazards
from services.coordinator.core.log_turn import Due, LogTurn
from services.coordinator.core.messages import Note, Reached, RequestId, State
from services.coordinator.core.phases import NEXT, Phase
from services.coordinator.core.steps import Step
from services.coordinator.core.votes import Completion, Verb, Vote, verdict_of
from services.coordinator.core.waiters import Waiters

STATES = {Verdict.COMMIT: State.COMMITTED, Verdict.ABORT: State.ROLLED_BACK, None: State.NOT_KNOWN}
NOTHING_FOUND = ListRead(-1)
"""No entry: a time-out runs until prepare, so it leaves alone what is in the log (T2)."""


class Transaction:
    """Driven by its coordinator's core, from `begin` until `is_ended`."""

    def __init__(
        self,
        context: Context,
        global_id: GlobalId,
        generation: GenerationTag,
        participants: tuple[ParticipantName, ...],
        aim: Verdict,
        found: ListRead = NO_LIST,
        *,
        may_be_decided: bool = False,
        is_unseen: bool = False,
        is_named: bool = False,
    ) -> None:
        """`found`: the undecided entry that a recoverer found, which it leaves alone when it has changed since; or
        `NOTHING_FOUND`, to leave any alone; `NO_LIST`: it is here because somebody asked. `may_be_decided`: by another
        coordinator before, and etcd may have been set back since. `is_unseen`: so it may, and this may be asked for late.
        `is_named`: by whoever asks for its end, with all participants: he has not had the first one end it alone.
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
        self.listed = NO_LIST
        """The participants entry that all this is about."""
        self._entry: ParticipantsEntry | None = None
        """That entry, as far as it is written again with what becomes known of branches."""
        self._is_keeping = False
        """Who has committed is on its way into the log; it is deleted when that is known to be there."""
        self._keep_ms = 0
        """When that is looked at (again)."""
        self._finished_entry: ParticipantsEntry | None = None
        """What the decision that was sent last puts in its place."""
        self._found_list = found
        self._is_decided = False
        """Whether the decision key stood: the verdict is more than our own."""
        self._logged: Verdict | None = None
        """The decision that the log has, as far as is known: etcd may have lost it since."""
        self._may_be_decided = may_be_decided
        """Whether no ABORT is decided before a roll call was answered."""
        self._is_unseen = is_unseen
        """Whether nothing is."""
        self._is_time_out = False
        """Whether the decision is the ABORT of a time-out, where the log had nothing."""
        self._is_named = is_named
        self._replaces = NO_LIST
        self._hazards = Hazards(context, global_id)
        self._log = LogTurn(context, self, global_id)
        self._begun_ms = 0
        """CLOCK_BOOTTIME: when it was taken up here, or before, when this process wrote its list."""
        self._deadline_ms = 0
        self._answer_ms = 0

    @property
    def is_ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def is_being_committed(self) -> bool:
        """Whether a resource set that was told to commit it may still do so for the first time."""
        is_committed = self.phase is Phase.COMPLETING and self.verdict is Verdict.COMMIT
        return is_committed and self.branches.has_set_in_first_call

    @property
    def participants(self) -> tuple[ParticipantName, ...]:
        return self.branches.participants

    # What is asked

    def begin(self, now: Now, *, looks_first: bool) -> None:
        """`looks_first`: the list should be in the log already; where nothing is, somebody has finished."""
        self._begun_ms = now.boottime_ms
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
        if self.is_answered:
            self._answer()

    def is_asked_for(self) -> None:
        """With all participants, by its client."""
        self._is_named = True

    @property
    def is_answered(self) -> bool:
        """Its end was told, with its hazards, and the log does not have these yet."""
        return self.phase is Phase.DELETING and self._is_decided

    def abandon(self, now: Now) -> None:
        """Somebody wants it rolled back: it is, unless the decision is already on its way."""
        if self.phase in (Phase.LOOKING, Phase.WRITING):
            self.aim = Verdict.ABORT
        if self.phase is Phase.PREPARING:
            self._decide(Verdict.ABORT, now)

    def give_up(self, participant: ParticipantName, now: Now) -> bool:
        """An operator says that this one is not there; False: it is not being told an end, or was told only once."""
        if self.phase is not Phase.COMPLETING or not (numbers := self.branches.silent(participant)):
            return False
        assert self.verdict is not None, "told when it is decided"
        details = f"participant={participant} decided={self.verdict.value}"
        self._context.say(Note("given_up", self.global_id, details))
        for number in numbers:
            self.branches.drop_call(number)
            self.completed(number, Completion.GIVEN_UP, now)
        return True

    # What the log says

    def written(self, revision: int, now: Now) -> None:
        self._log.answered()
        match self.phase:
            case Phase.WRITING:
                sent = self._log.written
                assert sent is not None, "something was written"
                self.listed, self._entry = ListRead(revision, sent.entry.encode()), sent.entry
                if sent.decision is not None:
                    self._is_time_out = sent.entry.is_timed_out
                    self._follow(sent.decision, now)
                elif self.aim is Verdict.ABORT:
                    self._decide(Verdict.ABORT, now)
                else:
                    self._reached(Step.PARTICIPANTS_WRITTEN)
                    self._prepare(now)
            case Phase.DECIDING:
                if (finished := self._finished_entry) is not None:
                    self.listed, self._entry = ListRead(revision, finished.encode()), finished
                self._reached(Step.DECISION_WRITTEN)
                self._follow(self.aim, now, is_news=True)
            case Phase.COMPLETING:
                assert self._entry is not None, "it was written"
                self.listed, self._is_keeping = ListRead(revision, self._entry.encode()), False
                self._check_completed(now)
            case Phase.DELETING:
                self._reached(Step.LOG_DELETED)
                is_alone = self._was_committed_alone
                if is_alone:
                    self._context.say(Note("committed_in_one_phase", self.global_id))
                self._hazards.report(self.branches, self.verdict, was_committed_alone=is_alone)
                self._end(self._state)
            case _:
                raise AssertionError(f"nothing is written while {self.phase.value}")

    def read(self, view: LogView, now: Now) -> None:
        self._log.answered()
        if self.phase is Phase.COMPLETING and view.decision is not self.verdict and view.outcome is None:
            # etcd has lost it. What was decided is told all the same.
            self._is_keeping, self._entry = False, None
            self._check_completed(now)
        elif view.participants is None:
            self._gone(view, now)
        elif self._has_been_told(view, view.participants):
            # It could not leave the log, as when etcd is full; or is there once more, as etcd was set back.
            self.listed, self._logged = view.list_read, view.decision
            self._log.again(now)
        elif view.decision is not None:
            self.listed, self._entry = view.list_read, view.participants
            self._adopt(view.participants, view.decision is Verdict.ABORT)
            self._follow(view.decision, now)
        elif self._is_left_by_history(view, view.participants):
            self._leave_to_operators(view)
        elif self._is_in_doubt(view.participants, view.is_unattested):
            self._log.again(now, Due.READ)
        elif self.phase is Phase.DECIDING or self.phase is Phase.DELETING:
            self._still_there(view.list_read, now)
        else:
            self._found(view.participants, view.list_read, now)

    def doubted(self, now: Now) -> None:
        self._log.answered()
        self._log.again(now, Due.READ)

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
        self._hazards.heard(number, completion, self.verdict)
        if is_first:
            self._reached(Step.BRANCH_COMPLETED)
        self._check_completed(now)

    def wake(self, now: Now) -> None:
        if self.is_ended:
            return
        match self._log.take_due(now):
            case Due.READ:
                self._log.read()
            case Due.PROPOSE:
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
        if self.phase is Phase.COMPLETING and now.boottime_ms >= self._keep_ms and not self._is_keeping:
            self._keep_committed(now)
        self.waiters.answer_late(self._state if self._is_decided else State.UNDECIDED, now)

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
        else:
            # Also where nobody knows a branch, as when a restart has undone them all: it is not finished, though. An outcome that
            # was in the log when the list was written would have kept that out (`CoordinatorLimits.outcome_ms`), and what another
            # has finished since took the list along, under which this is decided.
            self._decide(verdict, now)

    def _decide(self, verdict: Verdict, now: Now) -> None:
        self.branches.drop_calls()
        self.aim = verdict
        self._enter(Phase.DECIDING)
        self._propose(now)

    def _follow(self, verdict: Verdict, now: Now, *, is_news: bool = False) -> None:
        """The log has it; `is_news`: by our own hand, so nobody was told yet."""
        self.branches.drop_calls()
        self.verdict, self._logged, self._is_decided = verdict, verdict, True
        self._enter(Phase.COMPLETING)
        self._answer_ms = now.boottime_ms + self._context.limits.answer_ms
        self._context.wake_at(self._answer_ms, self)
        self._is_keeping = False
        self._look_again_who_has_committed(now)
        if not (is_news and verdict is Verdict.COMMIT and self._context.hold.keep(self)):
            self.tell_end(now)
        self._check_completed(now)

    def tell_end(self, now: Now) -> None:
        """The branches hear the decision: at once, or when a hold is over."""
        assert self.phase is Phase.COMPLETING, "it waits for its branches until they are told"
        self.branches.tell(Verb.COMMIT if self.verdict is Verdict.COMMIT else Verb.ROLL_BACK, now)

    def _look_again_who_has_committed(self, now: Now) -> None:
        self._keep_ms = now.boottime_ms + self._context.limits.keep_ms
        if self.verdict is Verdict.COMMIT:
            self._context.wake_at(self._keep_ms, self)

    def _keep_committed(self, now: Now) -> None:
        """To whoever takes it up, those who know nothing any more of a COMMIT that they had are a hazard (T4)."""
        self._look_again_who_has_committed(now)
        committed, entry = self.branches.committed, self._entry
        if self.verdict is Verdict.COMMIT and entry is not None and entry.committed != committed:
            self._is_keeping, self._entry = True, replace(entry, committed=committed)
            self._log.keep(self.listed, self._entry)

    def _check_completed(self, now: Now) -> None:
        if self.branches.pending or self._is_keeping:
            return
        self._reached(Step.ALL_COMPLETED)
        self._answer()
        assert self.verdict is not None, "told when it is decided"
        self._delete(self.verdict, now)

    def _delete(self, verdict: Verdict, now: Now) -> None:
        self.branches.drop_calls()
        self.verdict = verdict
        self._enter(Phase.DELETING)
        self._propose(now)

    def _end(self, state: State, outcome: OutcomeEntry | None = None) -> None:
        """`outcome`: somebody else has recorded it."""
        self._enter(Phase.ENDED)
        self._log.end()
        self.branches.drop_calls()
        if outcome is not None:
            self.waiters.answer(state, outcome.hazards, heuristic=outcome.heuristic)
        else:
            hazards, heuristic = self._told_of_ends()
            self.waiters.answer(state, hazards, heuristic=heuristic)

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            assert phase in NEXT[self.phase], f"{self.phase.value} to {phase.value}"
            self.phase = phase
            self._log.begin_anew()

    # Reading the log

    def _gone(self, view: LogView, now: Now) -> None:
        """No participants are there: not yet, or not any more."""
        if view.outcome is not None:
            self._end(STATES[view.outcome.verdict], view.outcome)
        elif self.phase is Phase.WRITING and self._replaces == NO_LIST and self._may_begin(view, now):
            self._log.again(now)
        else:
            self._end(self._state)

    def _found(self, entry: ParticipantsEntry, listed: ListRead, now: Now) -> None:
        """An undecided list is in the log, ours or another coordinator's."""
        if entry.owner == self._context.process:
            age_ms = now.wall_ms - entry.written_ms
            # Written later than now: the clock was set back since, and nobody knows how long it stands.
            self._begun_ms = min(self._begun_ms, now.boottime_ms - age_ms) if age_ms >= 0 else 0
        if self.aim is Verdict.ABORT:
            if self._found_list not in (NO_LIST, listed) and not self.waiters:
                self._end(State.UNDECIDED)
                return
            self.listed = listed
            self._adopt(entry, is_abort=True)
            self._decide(Verdict.ABORT, now)
            return
        self._may_be_decided |= entry.owner != self._context.process
        if entry.participants != self.participants or entry.generation != self.generation:
            self.waiters.refuse(
                ErrorCode.ILLEGAL_STATE, "it was closed, or is being ended, with other participants"
            )
            self._end(State.UNDECIDED)
        elif entry.is_closed:
            self._replaces = listed
            self._enter(Phase.WRITING)
            self._propose(now)
        else:
            self.listed, self._entry = listed, entry
            self._prepare(now)

    def _is_left_by_history(self, view: LogView, entry: ParticipantsEntry) -> bool:
        """Whether it is undecided in another history than its own, and not as it is because it needed no decision."""
        needs_decision = self.phase is not Phase.DELETING or self._is_decided
        return needs_decision and not _is_of(view, entry.generation)

    def _is_in_doubt(self, entry: ParticipantsEntry, is_unattested: bool) -> bool:
        """Whether another coordinator, which wrote this list, may have decided COMMIT in what etcd has lost (history 26)."""
        is_abort = self.aim is Verdict.ABORT and self.phase is not Phase.DELETING
        return is_abort and is_unattested and entry.owner != self._context.process

    def _has_been_told(self, view: LogView, entry: ParticipantsEntry) -> bool:
        """Whether all have acknowledged the very decision that is in the log, or that etcd has lost: it has this list then,
        undecided, of which everybody has ended.
        """
        if self.phase is not Phase.DELETING or not self._is_decided:
            return False
        if view.decision is not None:
            return (view.list_read, view.decision) == (self.listed, self.verdict)
        told = self.participants[: len(entry.participants)]
        is_told = len(told) == len(entry.participants) and all(
            not name or name == other for name, other in zip(entry.participants, told, strict=True)
        )
        return is_told and entry.generation == self.generation and _is_of(view, self.generation)

    def _still_there(self, listed: ListRead, now: Now) -> None:
        """Undecided, although we wrote a decision, or deleted what needed none."""
        if listed == self.listed:
            self._log.again(now)
        elif self.phase is Phase.DECIDING and self.aim is Verdict.ABORT and self.waiters:
            self.listed, self._entry = listed, None
            self._propose(now)
        else:
            # Signed by the coordinator that is to commit it; or finished, and written again. Our votes are not for it.
            self._end(State.NOT_KNOWN if self.phase is Phase.DECIDING else self._state)

    def _leave_to_operators(self, view: LogView) -> None:
        """Undecided, in a log that may have lost its decision: whatever is decided now could contradict it (history 26). Where
        all have acknowledged that one, nobody else has to hear of it."""
        self._context.say(
            Note("undecided_of_another_history", self.global_id, f"generation={view.generation}")
        )
        self._end(self._state if self._is_decided else State.UNDECIDED)

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
        self.branches.are_ended(entry)
        self._is_time_out = self._is_time_out or entry.is_timed_out

    # Writing the log

    def _propose(self, now: Now) -> None:
        match self.phase:
            case Phase.LOOKING:
                self._log.read()
            case Phase.WRITING:
                if self._replaces != NO_LIST and self.aim is Verdict.ABORT:
                    self.listed = self._replaces
                    self._decide(Verdict.ABORT, now)
                    return
                if self._replaces == NO_LIST and self._is_stale(now):
                    self._end(State.NOT_KNOWN)
                    return
                owner = self._context.process
                is_timed_out = self._found_list == NOTHING_FOUND
                entry = ParticipantsEntry(
                    self.participants, self.generation, owner, now.wall_ms, is_timed_out=is_timed_out
                )
                is_decided = self.aim is Verdict.ABORT and not self._may_be_decided
                decision = Verdict.ABORT if is_decided else None
                needs_roll = is_decided and self._is_late(now)
                self._log.write(entry, self._replaces, decision, needs_roll=needs_roll)
            case Phase.DECIDING:
                is_abort = self.aim is Verdict.ABORT
                needs_roll = self._is_late(now) or (is_abort and self._may_be_decided)
                self._finished_entry = None
                if self._entry is not None and (finished := self.branches.finished):
                    self._finished_entry = replace(self._entry, finished=finished)
                self._log.decide(
                    self.listed,
                    self.aim,
                    self.generation,
                    needs_roll=needs_roll,
                    entry=self._finished_entry,
                )
            case Phase.DELETING:
                assert self.verdict is not None, "it ends in one way"
                is_known = not self._was_committed_alone
                hazards, heuristic = self._told_of_ends()
                outcome = None
                if is_known or hazards:
                    decided_for = self.participants if self.verdict is Verdict.COMMIT else ()
                    outcome = OutcomeEntry(
                        self.verdict, hazards, heuristic, now.wall_ms, decided_for, is_known
                    )
                needs_roll = self._is_decided and self._logged is None
                self._log.delete(self.listed, self._logged, outcome, needs_roll=needs_roll)
            case _:
                raise AssertionError(f"nothing is written while {self.phase.value}")

    def _may_begin(self, view: LogView, now: Now) -> bool:
        """Not when it is so old that the client may have ended it elsewhere and nothing is left of that; and not in another
        history of the cluster than the one in which it was begun: its decision may be lost (history 26).
        """
        return not self._is_stale(now) and _is_of(view, self.generation)

    def _is_late(self, now: Now) -> bool:
        """Whether another one may have decided it since this one has it in hand, or knows of it, in what etcd has lost."""
        if self._is_unseen or self._found_list == NOTHING_FOUND:
            return True
        return now.boottime_ms - self._begun_ms >= self._context.limits.unasked_ms

    def _is_stale(self, now: Now) -> bool:
        return now.wall_ms - begun_ms(self.global_id) > self._context.limits.age_ms_max

    # Telling

    @property
    def _was_committed_alone(self) -> bool:
        """A branch has committed that no log knew of before our time-out, or the first one may have: its client ended it in one
        phase, elsewhere, and its participant's word is the outcome. The log keeps none, which means: ask a participant; but what
        others ended by themselves is told and kept as ever.
        """
        if not self._is_time_out:
            return False
        if Completion.COMMITTED in self.branches.completions:
            return True
        if self._is_named:
            return False
        first = self.branches.all[0]
        if first.completion is None or first.completion is Completion.FORGOTTEN:
            return True
        return first.completion is Completion.UNKNOWN_BRANCH and not first.participant.startswith(SET_KIND)

    @property
    def _state(self) -> State:
        return State.NOT_KNOWN if self._was_committed_alone else STATES[self.verdict]

    def _answer(self) -> None:
        hazards, heuristic = self._told_of_ends()
        self.waiters.answer(self._state, hazards, self.branches.pending, heuristic)

    def _told_of_ends(self) -> tuple[tuple[tuple[ParticipantName, str], ...], XaStatus]:
        """The hazards, and what they make of the whole."""
        hazards = self._hazards.named(self.branches, was_committed_alone=self._was_committed_alone)
        return hazards, self._hazards.status(self.branches, self.verdict) if hazards else XaStatus.OK

    def _reached(self, step: Step) -> None:
        self._context.say(Reached(step, self.global_id))


def _is_of(view: LogView, generation: GenerationTag) -> bool:
    """Whether the cluster's history is still the one of that generation."""
    return bool(view.generation) and generation_tag(view.generation) == generation
