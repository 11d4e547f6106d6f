"""Translation between our values and etcd's messages.

Law: keys are text here and UTF-8 there; whatever foreign bytes a key has come through unchanged (surrogateescape).
"""

from collections.abc import Sequence
from typing import Any, assert_never

from aetcd import rpc

from lockstep.runtime.etcd_values import (
    Absent,
    Compare,
    Delete,
    DeleteDone,
    DeleteEvent,
    Entry,
    Event,
    Get,
    GetDone,
    ModRevisionEquals,
    Operation,
    OperationDone,
    Put,
    PutDone,
    PutEvent,
    Transact,
    TransactDone,
    TransactionResult,
    ValueEquals,
    WatchBatch,
)


def key_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def key_text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def prefix_end(prefix: str) -> bytes:
    """The first key behind all keys with this prefix, as etcd's `range_end` wants it; b"\\0" means: to the last key."""
    stem = key_bytes(prefix).rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


def entry_from(key_value: Any) -> Entry:
    """From an etcd KeyValue."""
    return Entry(
        key_text(key_value.key),
        key_value.value,
        key_value.create_revision,
        key_value.mod_revision,
        key_value.lease,
    )


def transaction_request(
    compares: Sequence[Compare], on_success: Sequence[Operation], on_failure: Sequence[Operation]
) -> Any:
    """The etcd TxnRequest."""
    return rpc.TxnRequest(
        compare=[_compare_message(compare) for compare in compares],
        success=[_operation_message(operation) for operation in on_success],
        failure=[_operation_message(operation) for operation in on_failure],
    )


def transaction_result(response: Any) -> TransactionResult:
    """From an etcd TxnResponse."""
    return TransactionResult(
        response.succeeded,
        response.header.revision,
        tuple(_operation_done(operation) for operation in response.responses),
    )


def watch_batch(response: Any) -> WatchBatch:
    """From an etcd WatchResponse with at least one event."""
    events: list[Event] = []
    for event in response.events:
        if event.type == rpc.Event.PUT:
            events.append(PutEvent(entry_from(event.kv)))
        else:
            events.append(DeleteEvent(key_text(event.kv.key), event.kv.mod_revision))
    return WatchBatch(tuple(events), response.events[-1].kv.mod_revision, response.header.revision)


def _compare_message(compare: Compare) -> Any:
    message = rpc.Compare(key=key_bytes(compare.key), result=rpc.Compare.EQUAL)
    match compare:
        case ModRevisionEquals(revision=revision):
            message.target = rpc.Compare.MOD
            message.mod_revision = revision
        case Absent():
            message.target = rpc.Compare.CREATE
            message.create_revision = 0
        case ValueEquals(value=value):
            message.target = rpc.Compare.VALUE
            message.value = value
        case _:
            assert_never(compare)
    return message


def _operation_message(operation: Operation) -> Any:
    match operation:
        case Put(key, value, lease_id):
            put = rpc.PutRequest(key=key_bytes(key), value=value, lease=lease_id)
            return rpc.RequestOp(request_put=put)
        case Delete(key):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key_bytes(key)))
        case Get(key):
            return rpc.RequestOp(request_range=rpc.RangeRequest(key=key_bytes(key)))
        case Transact(compares, on_success, on_failure):
            return rpc.RequestOp(request_txn=transaction_request(compares, on_success, on_failure))
        case _:
            assert_never(operation)


def _operation_done(response: Any) -> OperationDone:
    kind = response.WhichOneof("response")
    if kind == "response_put":
        return PutDone()
    if kind == "response_delete_range":
        return DeleteDone(response.response_delete_range.deleted > 0)
    if kind == "response_txn":
        inner = response.response_txn
        return TransactDone(inner.succeeded, tuple(map(_operation_done, inner.responses)))
    assert kind == "response_range", f"we send no operation that is answered by {kind}"
    entries = response.response_range.kvs
    return GetDone(entry_from(entries[0]) if entries else None)
