"""Changes of the decision log as transactions of etcd, and what their results mean to the core: the part without any call.

Law: a change is one transaction with the compares that its effect names. Refused, it says what was there at the same moment.
To an etcd that was set back nothing is written that rests on what it lacks: no list, and no decision (DESIGN R1). A change
leaves within seconds of when the core asked for it, or not at all: behind a sleep another may have decided, in what etcd has
lost. What another coordinator has left undecided, or may have decided before, is aborted only when a roll call was answered
(`lockstep/core/stamps.py`).
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeGuard

from lockstep.core.branch_names import GenerationTag, GlobalId
from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import (
    DecisionKeys,
    ListRead,
    LogView,
    ParticipantsEntry,
    RevisionSeen,
    SetBackWatch,
    Verdict,
)
from lockstep.core.ids import Incarnation
from lockstep.core.roll_call import CALLER_CHARACTERS, RollCall
from lockstep.core.xa import XaStatus
from lockstep.runtime.decision_log import (
    VIEW_KEYS,
    is_believed,
    is_view_believed,
    view_from,
    view_operations,
)
from lockstep.runtime.etcd_values import (
    Absent,
    Compare,
    Delete,
    Entry,
    Get,
    ModRevisionEquals,
    Operation,
    Put,
    TransactionResult,
    ValueEquals,
    as_read,
)
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

_log = logging.getLogger("lockstep.coordinator")

AnyLogChange = WriteParticipants | Decide | KeepCommitted | DeleteTransaction
AnyLogEffect = AnyLogChange | ReadLog | ListLog
AnyLogAnswer = LogWritten | LogRefused | LogRead | LogListed | LogInDoubt
Change = tuple[list[Compare], list[Operation]]

AGE_MS_MAX = 5_000
"""Of a change, when it is sent: longer than a roll is looked at and a lease is granted before, each within a call's time."""


class Registered(Protocol):
    """How a coordinator stands in etcd, as its presence knows it."""

    key: str
    revision: int
    """0: not registered."""
    generation: GenerationTag | None
    generation_value: bytes


class LogChanges:
    """Lives as long as the process."""

    def __init__(self, cluster: str, presence: Registered, watch: SetBackWatch | None = None) -> None:
        """`watch`: what this process has seen of etcd elsewhere too."""
        self._cluster = cluster
        self._presence = presence
        self._generation_key = Keys(cluster).generation
        self._set_back_key = Keys(cluster).set_back
        self._watch = SetBackWatch() if watch is None else watch
        self._process = Incarnation(presence.key.rpartition("/")[2])
        self.roll_call = RollCall(self._process[:CALLER_CHARACTERS])
        self.keys = DecisionKeys(cluster)

    @property
    def revision_seen(self) -> RevisionSeen:
        """To be noted when a call is sent, and given with its answer."""
        return self._watch.seen

    def view_operations(self, global_id: GlobalId) -> list[Get]:
        """What a read reads, and a refused change."""
        return view_operations(self._cluster, global_id)

    def change(self, effect: AnyLogChange, outcome_lease: int, age_ms: int) -> Change | None:
        """What is compared and done; None: nothing may be sent. `outcome_lease`: under which an ordinary outcome stays. `age_ms`:
        since the core asked for it.
        """
        if age_ms > AGE_MS_MAX:
            return None
        match effect:
            case WriteParticipants() | Decide() if self._watch.is_set_back:
                return None
            case WriteParticipants():
                if self._presence.revision == 0 or self._presence.generation != effect.entry.generation:
                    # Not registered; or begun in another history, which a read will tell.
                    return None
                return self._writing(effect)
            case Decide():
                if self._presence.generation != effect.generation:
                    return None
                return self._deciding(effect)
            case KeepCommitted():
                return self._keeping(effect)
            case DeleteTransaction():
                return self._deleting(effect, outcome_lease)

    def changed(
        self, effect: AnyLogChange, result: TransactionResult, seen: RevisionSeen, sent_ms: int
    ) -> LogWritten | LogRefused | LogInDoubt:
        """What became of a change; `seen`: `revision_seen` when it was sent, at `sent_ms` by CLOCK_BOOTTIME. Raises `ValueError`
        where somebody else wrote.
        """
        if result.succeeded:
            self._note(effect, result.revision, seen)
            return LogWritten(effect.ticket, result.revision)
        assert len(result.responses) == VIEW_KEYS, "a refused change has read instead"
        view = self._view(result, seen, sent_ms)
        return LogInDoubt(effect.ticket) if view is None else LogRefused(effect.ticket, view)

    def read(
        self, effect: ReadLog, result: TransactionResult, seen: RevisionSeen, sent_ms: int
    ) -> LogRead | LogInDoubt:
        """What a read has read; `seen` and `sent_ms` as for `changed`. Raises `ValueError` where somebody else wrote."""
        view = self._view(result, seen, sent_ms)
        return LogInDoubt(effect.ticket) if view is None else LogRead(effect.ticket, view)

    def is_roll_to_be_called(
        self, answer: LogRead | LogInDoubt, *, is_own: bool = False
    ) -> TypeGuard[LogRead]:
        """Whether it shows what another coordinator has left undecided, as far as an etcd knows that may have been set back.
        `is_own`: or this one, or that there is nothing, for another may have decided it before.
        """
        view = answer.view if isinstance(answer, LogRead) else None
        if view is None or not view.is_unattested or view.decision is not None or view.outcome is not None:
            return False
        if view.participants is None:
            return is_own
        return is_own or view.participants.owner != self._process

    def listing(self) -> "LogListing":
        """For all below the log's prefix, read at one revision."""
        return LogListing(self.keys)

    def listed(self, effect: ListLog, listing: "LogListing") -> LogListed:
        """When it has taken everything."""
        return LogListed(
            effect.ticket, tuple(listing.found), frozenset(listing.owners), self._presence.generation
        )

    # Inside

    def _view(self, result: TransactionResult, seen: RevisionSeen, sent_ms: int) -> LogView | None:
        """None: etcd was set back; what it lacks proves nothing (DESIGN R1)."""
        view = view_from(result)
        if not is_view_believed(self._watch, view, seen):
            return None
        return replace(view, is_unattested=not self.roll_call.is_answered(view.stamps, sent_ms))

    def _note(self, effect: AnyLogChange, revision: int, seen: RevisionSeen) -> None:
        """The revision of a change that was made, where a compare has shown the generation."""
        match effect:
            case WriteParticipants():
                is_believed(self._watch, revision, effect.entry.generation, seen)
            case Decide():
                is_believed(self._watch, revision, effect.generation, seen)
            case KeepCommitted() | DeleteTransaction():
                pass

    def _writing(self, effect: WriteParticipants) -> Change:
        keys, global_id = self.keys, effect.global_id
        compares: list[Compare] = [
            *_is_as_read(keys.participants(global_id), effect.replaces),
            Absent(keys.decision(global_id)),
            Absent(keys.outcome(global_id)),
            ModRevisionEquals(self._presence.key, self._presence.revision),
            Absent(self._set_back_key),
            ValueEquals(self._generation_key, self._presence.generation_value),
        ]
        operations: list[Operation] = [Put(keys.participants(global_id), effect.entry.encode())]
        if effect.decision is not None:
            operations.append(Put(keys.decision(global_id), effect.decision.encode()))
        return compares, operations

    def _deciding(self, effect: Decide) -> Change:
        keys, global_id = self.keys, effect.global_id
        operations: list[Operation] = [Put(keys.decision(global_id), effect.verdict.encode())]
        if effect.entry is not None:
            operations.append(Put(keys.participants(global_id), effect.entry.encode()))
        return [
            *_is_as_read(keys.participants(global_id), effect.expected),
            Absent(keys.decision(global_id)),
            Absent(self._set_back_key),
            ValueEquals(self._generation_key, self._presence.generation_value),
        ], operations

    def _keeping(self, effect: KeepCommitted) -> Change:
        key = self.keys.participants(effect.global_id)
        return [
            *_is_as_read(key, effect.expected),
            ValueEquals(self.keys.decision(effect.global_id), Verdict.COMMIT.encode()),
        ], [Put(key, effect.entry.encode())]

    def _deleting(self, effect: DeleteTransaction, outcome_lease: int) -> Change:
        keys, global_id = self.keys, effect.global_id
        decision: Compare = Absent(keys.decision(global_id))
        if effect.decision is not None:
            decision = ValueEquals(keys.decision(global_id), effect.decision.encode())
        operations: list[Operation] = [Delete(keys.participants(global_id)), Delete(keys.decision(global_id))]
        if effect.outcome is not None:
            encoded, is_kept = effect.outcome.encode(), effect.outcome.heuristic is not XaStatus.OK
            if effect.outcome.is_known:
                operations.append(Put(keys.outcome(global_id), encoded, 0 if is_kept else outcome_lease))
            if is_kept:
                operations.append(Put(keys.heuristic(global_id), encoded))
        return [*_is_as_read(keys.participants(global_id), effect.expected), decision], operations


def _is_as_read(key: str, expected: ListRead) -> tuple[Compare, ...]:
    return as_read(key, expected.value, expected.revision)


@contextlib.contextmanager
def understood(key: str) -> Iterator[None]:
    """What somebody else wrote there is passed by, with a line in the log."""
    try:
        yield
    except ValueError as error:
        _log.error("event=entry_not_understood key=%s %s", key, error)


class LogListing:
    """What a list of the log's entries says. Lives as long as its driver reads it: in parts, for there may be ten thousands."""

    def __init__(self, keys: DecisionKeys) -> None:
        self.found: list[LoggedTransaction] = []
        self.owners: set[Incarnation] = set()
        self._keys = keys
        self._decisions: dict[GlobalId, Verdict] = {}

    def take(self, entries: Sequence[Entry]) -> None:
        """The next ones, by key."""
        for entry in entries:
            with understood(entry.key):
                self._take(entry)

    def _take(self, entry: Entry) -> None:
        keys = self._keys
        # Decisions come before participants, as their keys do.
        if entry.key.startswith(keys.all_decisions):
            self._decisions[keys.global_id(entry.key)] = Verdict(entry.value.decode())
        elif entry.key.startswith(keys.all_participants):
            global_id = keys.global_id(entry.key)
            listed = ParticipantsEntry.decode(entry.value)
            decision = self._decisions.get(global_id)
            self.found.append(
                LoggedTransaction(global_id, listed, ListRead(entry.mod_revision, entry.value), decision)
            )
        elif entry.key.startswith(keys.all_coordinators):
            self.owners.add(Incarnation(entry.key.removeprefix(keys.all_coordinators)))
