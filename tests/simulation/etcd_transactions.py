"""Transactions as the runtime sends them to etcd, executed on the model of etcd: the same compares and operations.

Law: all compares are looked at before anything is done; an unknown lease refuses the whole transaction.
"""

from collections.abc import Sequence

from lockstep.runtime.etcd_values import (
    Absent,
    Compare,
    Delete,
    DeleteDone,
    Entry,
    Get,
    GetDone,
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
from tests.simulation.etcd import Etcd


def transact(
    etcd: Etcd,
    compares: Sequence[Compare],
    operations: Sequence[Operation],
    otherwise: Sequence[Operation] = (),
) -> TransactionResult | None:
    """To be called inside `Etcd.execute`; None: a lease that it names is gone, and nothing was done."""
    is_so = all(holds(etcd, compare) for compare in compares)
    executed = operations if is_so else otherwise
    if any(isinstance(one, Put) and one.lease_id and one.lease_id not in etcd.leases for one in executed):
        return None
    responses = [_do(etcd, one) for one in executed]
    return TransactionResult(is_so, etcd.revision, responses)


def entries(etcd: Etcd, prefix: str) -> list[Entry]:
    """All below a prefix, by key."""
    return [_entry(etcd, key) for key, _ in etcd.prefix(prefix)]


def holds(etcd: Etcd, compare: Compare) -> bool:
    """Whether it is so now."""
    entry = etcd.get(compare.key)
    match compare:
        case ModRevisionEquals():
            return etcd.mod_revision(compare.key) == compare.revision
        case Absent():
            return entry is None
        case ValueEquals():
            return entry is not None and entry.value == compare.value


def _do(etcd: Etcd, operation: Operation) -> OperationDone:
    match operation:
        case Put():
            etcd.put(operation.key, operation.value, operation.lease_id)
            return PutDone()
        case Delete():
            was_present = etcd.get(operation.key) is not None
            etcd.delete(operation.key)
            return DeleteDone(was_present)
        case Get():
            return GetDone(_entry(etcd, operation.key) if etcd.get(operation.key) is not None else None)
        case Transact():
            succeeded = all(holds(etcd, compare) for compare in operation.compares)
            chosen = operation.on_success if succeeded else operation.on_failure
            return TransactDone(succeeded, [_do(etcd, one) for one in chosen])


def _entry(etcd: Etcd, key: str) -> Entry:
    found = etcd.entries[key]
    return Entry(key, found.value, found.mod_revision, found.mod_revision, found.lease)
