"""The decision log in etcd, as the core wants it written and read.

Law: a change is one etcd transaction with the compares that its effect names (`log_changes.py`), sent once. Without an answer
it is in doubt, and the core reads.
"""

import asyncio
import logging
from dataclasses import replace

from lockstep.core.branch_names import GlobalId
from lockstep.core.decision_log import OutcomeEntry
from lockstep.core.xa import XaStatus
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.etcd import (
    Delete,
    EtcdClient,
    EtcdInDoubt,
    EtcdRejected,
    LeaseGone,
    Operation,
    Put,
    entry_as_read,
)
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.roll_calls import RollCalls
from services.coordinator.core.messages import (
    DeleteTransaction,
    KeepCommitted,
    ListLog,
    LogInDoubt,
    LogListed,
    LogRead,
    LogRefused,
    LogWritten,
    ReadLog,
)
from services.coordinator.log_changes import AnyLogAnswer, AnyLogChange, AnyLogEffect, LogChanges
from services.coordinator.presence import Presence

_log = logging.getLogger("lockstep.coordinator")
_failures = LimitLog(_log)

ROTATIONS_PER_RETENTION = 4
"""Leases of outcomes: each takes those of a quarter of the retention at most, and lives for that much longer."""
OUTCOMES_PER_LEASE = 1_000
"""etcd deletes all that is under a lease at once, and everybody's writes wait: 20 to 40 ms for so many."""

ENTRIES_AT_ONCE = 200
"""Of a list that are read before others have their turn: 3 ms."""


class LogPort:
    """Lives as long as the process."""

    def __init__(self, etcd: EtcdClient, cluster: str, presence: Presence, outcome_ms: int) -> None:
        self._etcd = etcd
        self._changes = LogChanges(cluster, presence, presence.watch)
        self._roll_calls = RollCalls(etcd, cluster, self._changes.roll_call)
        self._outcome_ms = outcome_ms
        self._outcome_lease_id = 0
        self._outcome_lease_until_ms = 0
        """CLOCK_BOOTTIME: etcd's leases go on while this machine sleeps."""
        self._outcome_lease_room = 0
        """How many more outcomes it takes."""
        self._granting: asyncio.Task[None] | None = None
        """The grant under way: whoever needs another lease waits for the same."""

    async def perform(self, effect: AnyLogEffect, asked_ms: int) -> AnyLogAnswer:
        """Never raises for what etcd does. `asked_ms`: CLOCK_BOOTTIME, when the core wanted it."""
        try:
            match effect:
                case ReadLog():
                    return await self._read(effect)
                case ListLog():
                    return await self._list(effect)
                case _:
                    return await self._change(effect, asked_ms)
        except LeaseGone:
            self._outcome_lease_until_ms = 0
            return LogInDoubt(effect.ticket)
        except (EtcdRejected, EtcdInDoubt) as error:
            _log.debug("event=log_in_doubt %s", error.message)
            return LogInDoubt(effect.ticket)
        except ValueError as error:
            # Somebody else wrote there. It stays in doubt until somebody has looked at it.
            text = f"effect={type(effect).__name__} {error}"
            _failures.seldom("log_not_understood", text, level=logging.ERROR)
            return LogInDoubt(effect.ticket)

    async def _read(self, effect: ReadLog, *, is_own: bool = False) -> LogRead | LogInDoubt:
        """Where the roll has to be called, the core reads again. `is_own`: also for a list that this process has written, or
        would write."""
        changes = self._changes
        operations, seen, sent_ms = (
            changes.view_operations(effect.global_id),
            changes.revision_seen,
            boottime_ms(),
        )
        answer = changes.read(effect, await self._etcd.transact([], operations), seen, sent_ms)
        if changes.is_roll_to_be_called(answer, is_own=is_own):
            view = answer.view
            await self._roll_calls.call(view)
        return answer

    async def _list(self, effect: ListLog) -> LogListed:
        entries, _ = await self._etcd.get_prefix(self._changes.keys.prefix)
        listing = self._changes.listing()
        for at in range(0, len(entries), ENTRIES_AT_ONCE):
            listing.take(entries[at : at + ENTRIES_AT_ONCE])
            await asyncio.sleep(0)
        return self._changes.listed(effect, listing)

    async def _change(self, effect: AnyLogChange, asked_ms: int) -> LogWritten | LogRefused | LogInDoubt:
        if not isinstance(effect, KeepCommitted) and effect.needs_roll:
            answer = await self._read(ReadLog(effect.ticket, effect.global_id), is_own=True)
            if isinstance(answer, LogInDoubt) or answer.view.is_unattested:
                return LogInDoubt(effect.ticket)
        leaves_outcome = isinstance(effect, DeleteTransaction) and effect.outcome is not None
        outcome_lease = await self._outcome_lease() if leaves_outcome else 0
        sent_ms = boottime_ms()
        change = self._changes.change(effect, outcome_lease, sent_ms - asked_ms)
        if change is None:
            return LogInDoubt(effect.ticket)
        operations, seen = self._changes.view_operations(effect.global_id), self._changes.revision_seen
        return self._changes.changed(effect, await self._etcd.transact(*change, operations), seen, sent_ms)

    async def forget(self, global_id: GlobalId) -> bool:
        """Makes it an outcome like others, where an outcome stands; False: there is no such record. Raises `EtcdRejected`,
        `EtcdInDoubt` or `ValueError`; may be repeated.
        """
        keys = self._changes.keys
        key = keys.heuristic(global_id)
        entry = await self._etcd.get(key)
        if entry is None:
            return False
        outcome = replace(OutcomeEntry.decode(entry.value), heuristic=XaStatus.OK)
        operations: list[Operation] = [Delete(key)]
        if outcome.is_known:
            operations.append(Put(keys.outcome(global_id), outcome.encode(), await self._outcome_lease()))
        await self._etcd.transact(entry_as_read(key, entry), operations)
        return True

    async def _outcome_lease(self) -> int:
        """One under which an outcome stays for the retention at least. Raises `EtcdRejected` or `EtcdInDoubt`."""
        while self._outcome_lease_room == 0 or boottime_ms() >= self._outcome_lease_until_ms:
            if self._granting is None:
                self._granting = asyncio.create_task(self._grant())
                self._granting.add_done_callback(self._granted)
            await asyncio.shield(self._granting)
        self._outcome_lease_room -= 1
        return self._outcome_lease_id

    async def _grant(self) -> None:
        now_ms, rotation_ms = boottime_ms(), self._outcome_ms // ROTATIONS_PER_RETENTION
        granted = await self._etcd.lease_grant((self._outcome_ms + rotation_ms) // 1_000 + 1)
        self._outcome_lease_id, self._outcome_lease_until_ms = granted.lease_id, now_ms + rotation_ms
        self._outcome_lease_room = OUTCOMES_PER_LEASE

    def _granted(self, granting: asyncio.Task[None]) -> None:
        self._granting = None
        if not granting.cancelled():
            granting.exception()  # Whoever waits for it has it too; where nobody does, nothing is missing.
