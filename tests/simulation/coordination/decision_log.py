"""The decision log as etcd keeps it, in memory: transactions with compares, presences that end.

Law: a change is made whole or not at all, at the moment in which it arrives. What the answer's fate is, the network decides.
"""

from dataclasses import dataclass, field

from lockstep.core.branch_names import GlobalId, generation_tag
from lockstep.core.decision_log import NO_LIST, ListRead, LogView, OutcomeEntry, ParticipantsEntry, Verdict
from lockstep.core.ids import Incarnation
from lockstep.core.xa import XaStatus
from services.coordinator.core.messages import (
    Decide,
    DeleteTransaction,
    KeepCommitted,
    ListLog,
    LoggedTransaction,
    LogInDoubt,
    LogListed,
    LogRead,
    LogRefused,
    LogWritten,
    ReadLog,
    WriteParticipants,
)

GENERATION = "a1b2c3d4-0000"
AnyLogEffect = WriteParticipants | Decide | KeepCommitted | DeleteTransaction | ReadLog | ListLog


@dataclass
class DecisionLog:
    """Lives as long as its world."""

    generation: str = GENERATION
    revision: int = 1
    participants: dict[GlobalId, tuple[ParticipantsEntry, int]] = field(default_factory=dict)
    decisions: dict[GlobalId, Verdict] = field(default_factory=dict)
    outcomes: dict[GlobalId, OutcomeEntry] = field(default_factory=dict)
    heuristics: dict[GlobalId, OutcomeEntry] = field(default_factory=dict)
    """What operators have to see, also where no outcome stands."""
    presences: dict[Incarnation, int] = field(default_factory=dict)
    is_unattested: bool = False
    """A roll call is not answered."""

    def register(self, process: Incarnation) -> int:
        """The revision of its presence."""
        if process not in self.presences:
            self.revision += 1
            self.presences[process] = self.revision
        return self.presences[process]

    def view(self, global_id: GlobalId) -> LogView:
        entry, revision = self.participants.get(global_id, (None, 0))
        return LogView(
            self.generation,
            entry,
            revision,
            self.decisions.get(global_id),
            self.outcomes.get(global_id),
            self.revision,
            is_unattested=self.is_unattested,
            participants_value=entry.encode() if entry is not None else b"",
        )

    def perform(
        self, effect: AnyLogEffect, process: Incarnation, presence: int
    ) -> LogWritten | LogRefused | LogRead | LogListed | LogInDoubt:
        """`presence`: the revision of the sender's presence, as it knew it when it sent this."""
        match effect:
            case ReadLog():
                return LogRead(effect.ticket, self.view(effect.global_id))
            case ListLog():
                return self._listed(effect)
            case WriteParticipants():
                if effect.needs_roll and self.is_unattested:
                    return LogInDoubt(effect.ticket)
                holds = self._may_write(effect, process, presence)
            case Decide():
                if effect.needs_roll and self.is_unattested:
                    return LogInDoubt(effect.ticket)
                holds = (
                    self._is_at(effect.global_id, effect.expected)
                    and effect.global_id not in self.decisions
                    and generation_tag(self.generation) == effect.generation
                )
            case KeepCommitted():
                is_committed = self.decisions.get(effect.global_id) is Verdict.COMMIT
                holds = self._is_at(effect.global_id, effect.expected) and is_committed
            case DeleteTransaction():
                if effect.needs_roll and self.is_unattested:
                    return LogInDoubt(effect.ticket)
                holds = (
                    self._is_at(effect.global_id, effect.expected)
                    and self.decisions.get(effect.global_id) is effect.decision
                )
        if not holds:
            return LogRefused(effect.ticket, self.view(effect.global_id))
        self.revision += 1
        self._change(effect)
        return LogWritten(effect.ticket, self.revision)

    def _listed(self, effect: ListLog) -> LogListed:
        found = tuple(
            LoggedTransaction(global_id, entry, self.list_read(global_id), self.decisions.get(global_id))
            for global_id, (entry, _) in self.participants.items()
        )
        return LogListed(effect.ticket, found, frozenset(self.presences), generation_tag(self.generation))

    def list_read(self, global_id: GlobalId) -> ListRead:
        """What names the participants entry that is there."""
        if (found := self.participants.get(global_id)) is None:
            return NO_LIST
        entry, revision = found
        return ListRead(revision, entry.encode())

    def _is_at(self, global_id: GlobalId, expected: ListRead) -> bool:
        return self.list_read(global_id) == expected

    def _may_write(self, effect: WriteParticipants, process: Incarnation, presence: int) -> bool:
        return (
            self._is_at(effect.global_id, effect.replaces)
            and effect.global_id not in self.decisions
            and effect.global_id not in self.outcomes
            and self.presences.get(process) == presence
            and generation_tag(self.generation) == effect.entry.generation
        )

    def _change(self, effect: WriteParticipants | Decide | KeepCommitted | DeleteTransaction) -> None:
        match effect:
            case WriteParticipants():
                self.participants[effect.global_id] = (effect.entry, self.revision)
                if effect.decision is not None:
                    self.decisions[effect.global_id] = effect.decision
            case Decide():
                self.decisions[effect.global_id] = effect.verdict
                if effect.entry is not None:
                    self.participants[effect.global_id] = (effect.entry, self.revision)
            case KeepCommitted():
                self.participants[effect.global_id] = (effect.entry, self.revision)
            case DeleteTransaction():
                self.participants.pop(effect.global_id, None)
                self.decisions.pop(effect.global_id, None)
                if effect.outcome is not None and effect.outcome.is_known:
                    self.outcomes[effect.global_id] = effect.outcome
                if effect.outcome is not None and effect.outcome.heuristic is not XaStatus.OK:
                    self.heuristics[effect.global_id] = effect.outcome
