"""What a broker writes to etcd about its sets, where etcd executes it late (DESIGN R6)."""

from collections.abc import Sequence
from typing import cast

from lockstep.core.cluster_map import Keys
from lockstep.core.effects import RestoreLeaseKey
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, Incarnation, LogIndex, SetName
from lockstep.core.inputs import SwapAnswered, Verdict
from lockstep.runtime.etcd import (
    Absent,
    Compare,
    Entry,
    EtcdClient,
    EtcdInDoubt,
    ModRevisionEquals,
    Operation,
    Put,
    TransactionResult,
)
from lockstep.runtime.map_changes import MapChanges

SET = SetName("s")
KEYS = Keys("c")


class Etcd:
    """Keys with revisions and leases; while it hangs, transactions are executed late."""

    def __init__(self) -> None:
        self.revision = 100
        self.entries: dict[str, Entry] = {}
        self.late: list[tuple[Sequence[Compare], Sequence[Operation]]] = []
        self.hangs = False

    def put(self, key: str, value: bytes, lease_id: int) -> None:
        self.revision += 1
        self.entries[key] = Entry(key, value, self.revision, self.revision, lease_id)

    async def get(self, key: str) -> Entry | None:
        return self.entries.get(key)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TransactionResult:
        if self.hangs:
            self.late.append((compares, operations))
            raise EtcdInDoubt(ErrorCode.UNAVAILABLE, "a member hangs")
        return self.execute(compares, operations)

    def execute(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        is_so = all(self._holds(compare) for compare in compares)
        for operation in operations if is_so else ():
            assert isinstance(operation, Put)
            self.put(operation.key, operation.value, operation.lease_id)
        return TransactionResult(is_so, self.revision, ())

    def _holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        match compare:
            case Absent():
                return entry is None
            case ModRevisionEquals(revision=revision):
                return (entry.mod_revision if entry else 0) == revision
            case _:
                return entry is not None and entry.value == compare.value


async def test_a_lease_key_restored_late_does_not_take_it_from_the_lease_that_has_it_then() -> None:
    etcd, lease_ids = Etcd(), [1]
    answers: list[object] = []
    etcd.put(KEYS.set_map(SET), b"map", 0)
    map_revision = etcd.revision
    lease_key, holder = KEYS.set_lease(SET), Incarnation("p.0")
    etcd.put(lease_key, holder.encode(), 7)

    async def read(_: SetName) -> None:
        """Nothing else has changed."""

    changes = MapChanges(
        cast(EtcdClient, etcd), KEYS, BrokerId("a"), lambda: lease_ids[-1], read, answers.append
    )

    async def restore(request: int) -> Verdict:
        changes.perform(RestoreLeaseKey(SET, request, LogIndex(map_revision), holder))
        await changes.settled(SET)
        answered = answers[-1]
        assert isinstance(answered, SwapAnswered)
        return answered.verdict

    etcd.hangs = True
    assert await restore(1) is Verdict.IN_DOUBT
    etcd.hangs = False
    lease_ids.append(2)
    assert await restore(2) is Verdict.DONE
    assert not etcd.execute(*etcd.late[0]).succeeded
    assert etcd.entries[lease_key].lease_id == 2
    await changes.close()
