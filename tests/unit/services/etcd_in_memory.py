"""An etcd in memory: keys with revisions, leases that the test ends, and answers that it loses.

Law: as etcd's own: a change is made whole at one new revision, or not at all; a key goes with the lease under which it
was put last.
"""

from collections.abc import Sequence

from lockstep.core.errors import ErrorCode
from lockstep.runtime.etcd_values import (
    Absent,
    Compare,
    Delete,
    DeleteDone,
    Entry,
    EtcdInDoubt,
    Get,
    GetDone,
    LeaseGone,
    LeaseGranted,
    ModRevisionEquals,
    Operation,
    OperationDone,
    Put,
    PutDone,
    Transact,
    TransactDone,
    TransactionResult,
    ValueEquals,
)


class EtcdInMemory:
    """Lives as long as its test."""

    def __init__(self) -> None:
        self.revision = 100
        self.entries: dict[str, Entry] = {}
        self.granted: list[LeaseGranted] = []
        self.ended: set[int] = set()
        self.delayed: list[tuple[Sequence[Compare], Sequence[Operation]]] = []
        """Transactions without an answer, which are not executed yet."""
        self.delays_next_of = ""
        """The key whose next put is delayed; "": none."""

    def put(self, key: str, value: bytes, lease_id: int = 0) -> None:
        """At a new revision."""
        self.revision += 1
        self._put(Put(key, value, lease_id))

    def execute_delayed(self) -> list[bool]:
        """Answers which of them were done."""
        delayed, self.delayed = self.delayed, []
        return [self._execute(compares, operations, ()).succeeded for compares, operations in delayed]

    def end_lease(self, lease_id: int) -> None:
        self.ended.add(lease_id)
        self.revision += 1
        self.entries = {key: one for key, one in self.entries.items() if one.lease_id != lease_id}

    async def get(self, key: str) -> Entry | None:
        return self.entries.get(key)

    async def get_many(self, keys: Sequence[str]) -> dict[str, Entry]:
        return {key: self.entries[key] for key in keys if key in self.entries}

    async def get_prefix(self, prefix: str) -> tuple[list[Entry], int]:
        found = [entry for key, entry in sorted(self.entries.items()) if key.startswith(prefix)]
        return found, self.revision

    async def get_page(self, prefix: str, after: str, limit: int) -> list[Entry]:
        entries, _ = await self.get_prefix(prefix)
        return [entry for entry in entries if not after or entry.key > prefix + after][:limit]

    async def lease_grant(self, ttl_seconds: int, lease_id: int = 0) -> LeaseGranted:
        self.granted.append(LeaseGranted(lease_id or len(self.granted) + 1, ttl_seconds))
        return self.granted[-1]

    async def lease_renew(self, lease_id: int) -> int:
        if lease_id in self.ended:
            raise LeaseGone(lease_id)
        return next(lease.ttl_seconds for lease in self.granted if lease.lease_id == lease_id)

    async def lease_revoke(self, lease_id: int) -> None:
        self.end_lease(lease_id)

    async def transact(
        self,
        compares: Sequence[Compare],
        on_success: Sequence[Operation],
        on_failure: Sequence[Operation] = (),
    ) -> TransactionResult:
        if any(isinstance(one, Put) and one.key == self.delays_next_of for one in on_success):
            self.delayed.append((compares, on_success))
            self.delays_next_of = ""
            raise EtcdInDoubt(ErrorCode.UNAVAILABLE, "no answer")
        return self._execute(compares, on_success, on_failure)

    def _execute(
        self, compares: Sequence[Compare], on_success: Sequence[Operation], on_failure: Sequence[Operation]
    ) -> TransactionResult:
        succeeded = all(self._holds(compare) for compare in compares)
        operations = on_success if succeeded else on_failure
        self.revision += any(isinstance(one, Put | Delete) for one in self._flat(operations))
        return TransactionResult(succeeded, self.revision, [self._do(one) for one in operations])

    def _holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        match compare:
            case Absent():
                return entry is None
            case ModRevisionEquals():
                return (entry.mod_revision if entry is not None else 0) == compare.revision
            case ValueEquals():
                return entry is not None and entry.value == compare.value

    def _do(self, operation: Operation) -> OperationDone:
        match operation:
            case Put():
                self._put(operation)
                return PutDone()
            case Delete():
                return DeleteDone(self.entries.pop(operation.key, None) is not None)
            case Get():
                return GetDone(self.entries.get(operation.key))
            case Transact():
                chosen = self._chosen(operation)
                succeeded = chosen is operation.on_success
                return TransactDone(succeeded, [self._do(one) for one in chosen])

    def _chosen(self, inner: Transact) -> Sequence[Operation]:
        return inner.on_success if all(map(self._holds, inner.compares)) else inner.on_failure

    def _flat(self, operations: Sequence[Operation]) -> list[Operation]:
        """What is executed of them, inside transactions too."""
        found: list[Operation] = []
        for one in operations:
            found += self._flat(self._chosen(one)) if isinstance(one, Transact) else [one]
        return found

    def _put(self, put: Put) -> None:
        before = self.entries.get(put.key)
        created = before.create_revision if before is not None else self.revision
        self.entries[put.key] = Entry(put.key, put.value, created, self.revision, put.lease_id)
