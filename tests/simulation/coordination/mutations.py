"""Coordinators, logs and participants with one rule switched off each, to prove that the checker notices.

Law: a mutation breaks one rule of DESIGN T3 or T4 and nothing else. One that no seed shows is a checker that sees nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep.core.branch_names import GlobalId
from lockstep.core.clock import Now
from lockstep.core.decision_log import NO_LIST, ListRead, ParticipantsEntry, Verdict
from lockstep.core.ids import Incarnation
from services.coordinator.core.context import Conversation
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.inquiry import Inquiry
from services.coordinator.core.messages import Decide, OutcomeAnswer, State, WriteParticipants
from services.coordinator.core.phases import Phase
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.core.transaction import Transaction
from services.coordinator.core.votes import Completion, Verb, Vote
from tests.simulation.coordination.decision_log import AnyLogEffect, DecisionLog
from tests.simulation.coordination.participant import BranchState, Participant, SimulatedBranch
from tests.simulation.coordination.world import HARSH, World


def coordinator_of(transaction_class: type[Transaction]) -> type[Coordinator]:
    """Coordinators whose transactions are of that class."""

    class WeakCoordinator(Coordinator):
        def _new_transaction(self, *named: Any, **others: Any) -> Transaction:
            transaction = super()._new_transaction(*named, **others)
            transaction.__class__ = transaction_class
            return transaction

    return WeakCoordinator


class ToldBeforeLogged(Transaction):
    """The client hears COMMIT as soon as all have voted."""

    def _decide(self, verdict: Verdict, now: Now) -> None:
        if verdict is Verdict.COMMIT:
            self.waiters.answer(State.COMMITTED)
        super()._decide(verdict, now)


class RollsBackUnasked(Transaction):
    """A recoverer that finds no decision rolls the branches back, and deletes what it found."""

    def _found(self, entry: ParticipantsEntry, listed: ListRead, now: Now) -> None:
        if self._found_list == NO_LIST:
            super()._found(entry, listed, now)
            return
        self.listed, self.verdict = listed, Verdict.ABORT
        self._adopt(entry, is_abort=True)
        self._enter(Phase.COMPLETING)
        self._answer_ms = now.boottime_ms + self._context.limits.answer_ms
        self.branches.tell(Verb.ROLL_BACK, now)


class _NotWrittenAhead(Transaction):
    """Participants are asked to prepare first; the list is written when all have voted."""

    _has_prepared = False

    def begin(self, now: Now, *, looks_first: bool) -> None:
        if self.aim is Verdict.COMMIT and not looks_first:
            self._deadline_ms = now.boottime_ms + self._context.limits.prepare_ms
            self._context.wake_at(self._deadline_ms, self)
            self.phase = Phase.PREPARING
            self.branches.tell(Verb.PREPARE, now)
        else:
            super().begin(now, looks_first=looks_first)

    def _decide(self, verdict: Verdict, now: Now) -> None:
        if self.listed == NO_LIST and self.phase is Phase.PREPARING and verdict is Verdict.COMMIT:
            self.branches.drop_calls()
            self._has_prepared = True
            self.phase = Phase.WRITING
            self._propose(now)
        else:
            super()._decide(verdict, now)

    def _prepare(self, now: Now) -> None:
        if self._has_prepared:
            self._has_prepared = False
            self.phase = Phase.PREPARING
            self._decide(Verdict.COMMIT, now)
        else:
            super()._prepare(now)


class _TakesSilenceForYes(Transaction):
    """A participant that has not voted when the time is over is counted as prepared."""

    def _decide(self, verdict: Verdict, now: Now) -> None:
        is_silent = None in self.branches.votes and Vote.NO not in self.branches.votes
        super()._decide(Verdict.COMMIT if is_silent and self.aim is Verdict.COMMIT else verdict, now)


class _CommittedProvesCommit(Transaction):
    """A participant that answers prepare with "committed" is taken for a decision, and nobody else's vote is waited for."""

    def _count(self, now: Now) -> None:
        if Vote.COMMITTED in self.branches.votes:
            self._decide(Verdict.COMMIT, now)
        else:
            super()._count(now)


class GivesUpCompleting(Transaction):
    """A participant that does not answer the end of its branch is taken for one that has."""

    def completed(self, number: int, completion: Completion, now: Now) -> None:
        silent = completion is Completion.UNREACHABLE
        super().completed(number, Completion.COMMITTED if silent else completion, now)


class _AbsentIsAbort(Coordinator):
    """Nothing in the log is told as rolled back (history 26)."""

    def _after(self, conversation: Conversation, now: Now) -> None:
        super()._after(conversation, now)
        if isinstance(conversation, Inquiry):
            self._context.effects = [
                OutcomeAnswer(effect.request, State.ROLLED_BACK)
                if isinstance(effect, OutcomeAnswer) and effect.state is State.NOT_KNOWN
                else effect
                for effect in self._context.effects
            ]


class _UncomparedLog(DecisionLog):
    """A decision is put if there is none, whatever became of the participants (history 5)."""

    def _is_at(self, global_id: GlobalId, expected: ListRead) -> bool:
        return True

    def _may_write(self, effect: WriteParticipants, process: object, presence: int) -> bool:
        return super()._may_write(effect, process, presence) and (  # type: ignore[arg-type]
            effect.global_id not in self.participants or effect.replaces != NO_LIST
        )

    def _change(self, effect: AnyLogEffect) -> None:
        if not isinstance(effect, Decide) and not isinstance(effect, WriteParticipants):
            super()._change(effect)  # type: ignore[arg-type]
        else:
            super()._change(effect)


class _OverwritingLog(DecisionLog):
    """The last decision wins, not the first."""

    def perform(self, effect: AnyLogEffect, process: object, presence: int):  # type: ignore[no-untyped-def]
        if isinstance(effect, Decide):
            self.decisions.pop(effect.global_id, None)
        return super().perform(effect, process, presence)  # type: ignore[arg-type]


class _OutcomesNotKept(DecisionLog):
    """Nothing is left behind of what has left the log: a repeated commit begins anew."""

    def _change(self, effect: AnyLogEffect) -> None:
        super()._change(effect)  # type: ignore[arg-type]
        self.outcomes.clear()


class _HoldsForEver(Coordinator):
    """A hold lasts until whoever asked for it lets go."""

    def __init__(self, process: Incarnation, limits: CoordinatorLimits) -> None:
        super().__init__(process, replace(limits, hold_ms_max=10**9))


class _ReadOnlyIsCommitted(Participant):
    """Who had nothing to commit answers a rollback as who has committed something."""

    def _complete(self, branch: SimulatedBranch, verb: Verb) -> Completion:
        if branch.state is BranchState.READ_ONLY:
            return Completion.COMMITTED
        return super()._complete(branch, verb)


def _with_coordinator(weak: type[Coordinator]) -> Callable[[int], World]:
    return lambda seed: World(seed, weak, faults=HARSH)


def _with_log(weak: type[DecisionLog]) -> Callable[[int], World]:
    def build(seed: int) -> World:
        return World(seed, log_class=weak, faults=HARSH)

    return build


def _with_participants(weak: type[Participant]) -> Callable[[int], World]:
    def build(seed: int) -> World:
        world = World(seed, faults=HARSH)
        for participant in world.participants.values():
            participant.__class__ = weak
        return world

    return build


MUTATIONS: dict[str, Callable[[int], World]] = {
    "decision told before it is logged": _with_coordinator(coordinator_of(ToldBeforeLogged)),
    "recoverer rolls back without winning": lambda seed: World(
        seed, coordinator_of(RollsBackUnasked), faults=HARSH, transactions=80
    ),
    "participants not written ahead": _with_coordinator(coordinator_of(_NotWrittenAhead)),
    "silence taken for a yes": _with_coordinator(coordinator_of(_TakesSilenceForYes)),
    "committed taken for a decision": _with_coordinator(coordinator_of(_CommittedProvesCommit)),
    "completion not repeated": lambda seed: World(
        seed, coordinator_of(GivesUpCompleting), long_outages=6, transactions=60
    ),
    "nothing in the log told as rolled back": _with_coordinator(_AbsentIsAbort),
    "decision without its participants": _with_log(_UncomparedLog),
    "decision overwritten": _with_log(_OverwritingLog),
    "outcomes not kept": _with_log(_OutcomesNotKept),
    "holds do not end by themselves": _with_coordinator(_HoldsForEver),
    "read-only told as committed": _with_participants(_ReadOnlyIsCommitted),
}
