"""The decision log in etcd, as the core wants it written and read.

Law: a change is one etcd transaction with the compares that its effect names, sent once. Refused, it says what was there at the
same moment; without an answer it is in doubt, and the core reads.
"""

import logging
import time
from dataclasses import replace

from lockstep.core.branch_names import GlobalId
from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import DecisionKeys, LogView, OutcomeEntry, ParticipantsEntry, Verdict
from lockstep.core.ids import Incarnation
from lockstep.core.xa import XaStatus
from lockstep.runtime.decision_log import VIEW_KEYS, view_from, view_operations
from lockstep.runtime.etcd import (
    Absent,
    Compare,
    Delete,
    EtcdClient,
    EtcdInDoubt,
    EtcdRejected,
    LeaseGone,
    ModRevisionEquals,
    Operation,
    Put,
    TransactionResult,
    ValueEquals,
)
from services.coordinator.core.messages import (
    Decide,
    DeleteTransaction,
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
from services.coordinator.presence import Presence

_log = logging.getLogger("lockstep.coordinator")

AnyLogEffect = WriteParticipants | Decide | DeleteTransaction | ReadLog | ListLog
AnyLogAnswer = LogWritten | LogRefused | LogRead | LogListed | LogInDoubt

ROTATIONS_PER_RETENTION = 4
"""Leases of outcomes: each takes those of a quarter of the retention, and lives for that much longer."""


class LogPort:
    """Lives as long as the process."""

    def __init__(self, etcd: EtcdClient, cluster: str, presence: Presence, outcome_ms: int) -> None:
        self._etcd = etcd
        self._cluster = cluster
        self._presence = presence
        self._keys = DecisionKeys(cluster)
        self._generation_key = Keys(cluster).generation
        self._outcome_seconds = outcome_ms / 1000
        self._revision_seen = 0
        self._outcome_lease_id = 0
        self._outcome_lease_until = 0.0

    async def perform(self, effect: AnyLogEffect) -> AnyLogAnswer:
        """Never raises for what etcd does."""
        try:
            match effect:
                case ReadLog():
                    result = await self._etcd.transact([], view_operations(self._cluster, effect.global_id))
                    view = self._view(result)
                    return LogInDoubt(effect.ticket) if view is None else LogRead(effect.ticket, view)
                case ListLog():
                    return await self._list(effect)
                case _:
                    return await self._change(effect)
        except LeaseGone:
            self._outcome_lease_until = 0.0
            return LogInDoubt(effect.ticket)
        except (EtcdRejected, EtcdInDoubt) as error:
            _log.debug("event=log_in_doubt %s", error.message)
            return LogInDoubt(effect.ticket)
        except ValueError as error:
            # Somebody else wrote there. It stays in doubt until somebody has looked at it.
            _log.error("event=log_not_understood effect=%s %s", type(effect).__name__, error)
            return LogInDoubt(effect.ticket)

    async def _change(
        self, effect: WriteParticipants | Decide | DeleteTransaction
    ) -> LogWritten | LogRefused | LogInDoubt:
        compares: list[Compare]
        operations: list[Operation]
        match effect:
            case WriteParticipants():
                if self._presence.revision == 0 or self._presence.generation != effect.entry.generation:
                    # Not registered; or begun in another history, which a read will tell.
                    return LogInDoubt(effect.ticket)
                compares, operations = self._writing(effect)
            case Decide():
                if self._presence.generation != effect.generation:
                    return LogInDoubt(effect.ticket)
                compares, operations = self._deciding(effect)
            case DeleteTransaction():
                compares, operations = await self._deleting(effect)
        result = await self._etcd.transact(
            compares, operations, view_operations(self._cluster, effect.global_id)
        )
        if result.succeeded:
            return LogWritten(effect.ticket, result.revision)
        assert len(result.responses) == VIEW_KEYS, "a refused change has read instead"
        view = self._view(result)
        return LogInDoubt(effect.ticket) if view is None else LogRefused(effect.ticket, view)

    def _view(self, result: TransactionResult) -> LogView | None:
        """None: etcd is behind what it said before. It was set back, and what it lacks proves nothing (DESIGN R1)."""
        if result.revision < self._revision_seen:
            _log.error("event=log_set_back revision=%d seen=%d", result.revision, self._revision_seen)
            return None
        self._revision_seen = result.revision
        return view_from(result)

    def _writing(self, effect: WriteParticipants) -> tuple[list[Compare], list[Operation]]:
        keys, global_id = self._keys, effect.global_id
        compares: list[Compare] = [
            ModRevisionEquals(keys.participants(global_id), effect.replaces),
            Absent(keys.decision(global_id)),
            Absent(keys.outcome(global_id)),
            ModRevisionEquals(self._presence.key, self._presence.revision),
            ValueEquals(self._generation_key, self._presence.generation_value),
        ]
        operations: list[Operation] = [Put(keys.participants(global_id), effect.entry.encode())]
        if effect.decision is not None:
            operations.append(Put(keys.decision(global_id), effect.decision.encode()))
        return compares, operations

    def _deciding(self, effect: Decide) -> tuple[list[Compare], list[Operation]]:
        keys, global_id = self._keys, effect.global_id
        return [
            ModRevisionEquals(keys.participants(global_id), effect.revision),
            Absent(keys.decision(global_id)),
            ValueEquals(self._generation_key, self._presence.generation_value),
        ], [Put(keys.decision(global_id), effect.verdict.encode())]

    async def _deleting(self, effect: DeleteTransaction) -> tuple[list[Compare], list[Operation]]:
        keys, global_id = self._keys, effect.global_id
        decision: Compare = Absent(keys.decision(global_id))
        if effect.decision is not None:
            decision = ValueEquals(keys.decision(global_id), effect.decision.encode())
        operations: list[Operation] = [Delete(keys.participants(global_id)), Delete(keys.decision(global_id))]
        if effect.outcome is not None:
            encoded = effect.outcome.encode()
            if effect.outcome.heuristic is XaStatus.OK:
                operations.append(Put(keys.outcome(global_id), encoded, await self._outcome_lease()))
            else:
                operations += [Put(keys.outcome(global_id), encoded), Put(keys.heuristic(global_id), encoded)]
        return [ModRevisionEquals(keys.participants(global_id), effect.revision), decision], operations

    async def heuristics(self) -> list[tuple[GlobalId, OutcomeEntry]]:
        """Outcomes that operators have not had forgotten. Raises `EtcdRejected` or `EtcdInDoubt`."""
        entries, _ = await self._etcd.get_prefix(self._keys.all_heuristics)
        found = []
        for entry in entries:
            try:
                found.append((self._keys.global_id(entry.key), OutcomeEntry.decode(entry.value)))
            except ValueError as error:
                _log.error("event=entry_not_understood key=%s %s", entry.key, error)
        return found

    async def forget(self, global_id: GlobalId) -> bool:
        """Makes it an outcome like others; False: there is no such record. Raises `EtcdRejected`, `EtcdInDoubt` or `ValueError`;
        may be repeated.
        """
        key = self._keys.heuristic(global_id)
        entry = await self._etcd.get(key)
        if entry is None:
            return False
        outcome = replace(OutcomeEntry.decode(entry.value), heuristic=XaStatus.OK)
        put = Put(self._keys.outcome(global_id), outcome.encode(), await self._outcome_lease())
        await self._etcd.transact([ModRevisionEquals(key, entry.mod_revision)], [Delete(key), put])
        return True

    async def _outcome_lease(self) -> int:
        """One under which an outcome stays for the retention at least. Raises `EtcdRejected` or `EtcdInDoubt`."""
        now, rotation = time.monotonic(), self._outcome_seconds / ROTATIONS_PER_RETENTION
        if now >= self._outcome_lease_until:
            granted = await self._etcd.lease_grant(int(self._outcome_seconds + rotation) + 1)
            self._outcome_lease_id, self._outcome_lease_until = granted.lease_id, now + rotation
        return self._outcome_lease_id

    async def _list(self, effect: ListLog) -> LogListed:
        keys = self._keys
        entries, _ = await self._etcd.get_prefix(keys.prefix)
        decisions: dict[GlobalId, Verdict] = {}
        found: list[LoggedTransaction] = []
        for entry in entries:
            try:
                # Decisions come before participants, as their keys do.
                if entry.key.startswith(keys.all_decisions):
                    decisions[keys.global_id(entry.key)] = Verdict(entry.value.decode())
                elif entry.key.startswith(keys.all_participants):
                    global_id = keys.global_id(entry.key)
                    listed = ParticipantsEntry.decode(entry.value)
                    decision = decisions.get(global_id)
                    found.append(LoggedTransaction(global_id, listed, entry.mod_revision, decision))
            except ValueError as error:
                _log.error("event=entry_not_understood key=%s %s", entry.key, error)
        owners = frozenset(
            Incarnation(entry.key.removeprefix(keys.all_coordinators))
            for entry in entries
            if entry.key.startswith(keys.all_coordinators)
        )
        return LogListed(effect.ticket, tuple(found), owners, self._presence.generation)
