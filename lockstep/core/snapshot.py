"""Snapshot: a state as items, for the store, for newcomers (DESIGN R8, R12) and for comparing states.

Law: items come in key order, and equal states give equal items. What an iterator gives is the state at the moment it was
made, however much is applied while it is read: only references are copied then, and values are encoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from lockstep.core import item_values as values
from lockstep.core import items as keys
from lockstep.core.content import Content, without_body
from lockstep.core.exchanges import Binding
from lockstep.core.ids import Epoch, ExchangeId, LogIndex, MessageId, QueueId, QueuePosition, SessionKey
from lockstep.core.items import Item
from lockstep.core.queues import Queue
from lockstep.core.sessions import Session
from lockstep.core.snapshot_blocks import capture_entry_blocks, capture_message_blocks
from lockstep.core.transactions import Undone
from lockstep.core.tx_buffer import DtxBuffer, TxBuffer

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState


def all_items(
    state: SetState, durable: bool, transient: bool, bodies: bool, in_blocks: bool
) -> Iterator[Item]:
    """The durable or the transient items or both, in key order; without `bodies`, contents as if all were dropped.

    `in_blocks`: durable messages and entries in blocks (`snapshot_blocks`), transient entries behind those of all queues.
    """
    wanted = {True: durable, False: transient}
    parts: list[Iterator[Item]] = []
    for capture in _CAPTURES:
        if capture is _capture_messages:
            parts.append(
                capture_message_blocks(state) if in_blocks else _capture_messages(state, wanted, bodies)
            )
        elif capture is not _capture_entries:
            parts.append(capture(state))
        elif in_blocks:
            parts += (capture_entry_blocks(state), _capture_entries(state, {True: False, False: True}))
        else:
            parts.append(_capture_entries(state, wanted))
    return (item for part in parts for item in part if wanted[item.is_durable])


def one_item(state: SetState, key: bytes) -> Item | None:
    """The present item of a key, durable or transient; None if there is none."""
    return _ITEMS[key[:1]](state, key)


# --- one kind after the other: all of it, captured; one of it ------------------------------------------------------------


def _meta(state: SetState, key: bytes = keys.META_KEY) -> Item:
    floor, names_from = state.outcomes.floor, state.subscriptions.names_from
    value = values.MetaValue(state.applied, state.time_ms, floor, state.open_from, names_from)
    return Item(key, values.encode(value), True)


def _capture_meta(state: SetState) -> Iterator[Item]:
    return iter([_meta(state)])


def _epoch(state: SetState, key: bytes) -> Item | None:
    (epoch,) = keys.numbers_in(key)
    first = state.epochs.first_of(Epoch(epoch))
    return Item(key, values.encode(first), True) if first is not None else None


def _capture_epochs(state: SetState) -> Iterator[Item]:
    return (Item(keys.epoch_key(epoch), values.encode(first), True) for epoch, first in state.epochs.entries)


def _exchange(state: SetState, key: bytes) -> Item | None:
    (exchange_id,) = keys.numbers_in(key)
    exchange = state.exchanges.by_id.get(ExchangeId(exchange_id))
    if exchange is None:
        return None
    return Item(key, values.encode(values.ExchangeValue(exchange.name, exchange.kind)), exchange.is_durable)


def _capture_exchanges(state: SetState) -> Iterator[Item]:
    found = [_exchange(state, keys.exchange_key(exchange)) for exchange in sorted(state.exchanges.by_id)]
    return (item for item in found if item is not None)


def _queue(state: SetState, key: bytes) -> Item | None:
    (queue_id,) = keys.numbers_in(key)
    queue = state.queues.by_id.get(QueueId(queue_id))
    return Item(key, values.encode(queue.definition), queue.is_durable) if queue is not None else None


def _capture_queues(state: SetState) -> Iterator[Item]:
    found = [_queue(state, keys.queue_key(queue)) for queue in sorted(state.queues.by_id)]
    return (item for item in found if item is not None)


def _entry(state: SetState, key: bytes) -> Item | None:
    queue_id, number = keys.numbers_in(key)
    queue, position = state.queues.by_id.get(QueueId(queue_id)), QueuePosition(number)
    message_id = queue.message_id(position) if queue is not None else None
    if queue is None or message_id is None:
        return None
    value = values.EntryValue(message_id, queue.delivery_count(position), queue.expiries.get(position))
    return Item(key, values.encode(value), queue.is_entry_durable(position))


_Wanted = dict[bool, bool]
"""Whether durable items (True) and transient ones (False) are asked for; of messages, which are many, nothing else is encoded."""
_EVERYTHING: _Wanted = {True: True, False: True}


def _capture_entries(state: SetState, wanted: _Wanted = _EVERYTHING) -> Iterator[Item]:
    parts = [_capture_queue(queue, wanted) for _, queue in sorted(state.queues.by_id.items())]
    return (item for part in parts for item in part)


def _capture_queue(queue: Queue, wanted: _Wanted) -> Iterator[Item]:
    counts, transient = dict(queue.delivery_counts), set(queue.transient_positions)
    expiries = dict(queue.expiries)
    queue_id, is_durable = queue.id, queue.is_durable
    entries: Iterable[tuple[QueuePosition, MessageId]]
    if wanted[True] or not is_durable:
        entries = [pair for pair in queue.items() if wanted[is_durable and pair[0] not in transient]]
    else:
        # Of a long durable queue nobody walks over what is durable.
        marked = sorted(transient) if wanted[False] else []
        entries = list(zip(marked, queue.message_ids(marked), strict=True))
    return (
        Item(
            keys.entry_key(queue_id, position),
            values.encode(values.EntryValue(message_id, counts.get(position, 0), expiries.get(position))),
            is_durable and position not in transient,
        )
        for position, message_id in entries
    )


_NIL = values.encode(None)


def _binding(state: SetState, key: bytes) -> Item | None:
    is_durable = state.exchanges.is_durable(Binding(*keys.parse_binding_key(key)))
    return Item(key, _NIL, is_durable) if is_durable is not None else None


def _capture_bindings(state: SetState) -> Iterator[Item]:
    found = [
        Item(keys.binding_key(*binding), _NIL, is_durable)
        for exchange in state.exchanges.by_id.values()
        for binding, is_durable in exchange.bindings.items()
    ]
    return iter(sorted(found, key=lambda item: item.key))


def _message(state: SetState, key: bytes) -> Item | None:
    (number,) = keys.numbers_in(key)
    message_id = MessageId(number)
    content = state.contents.find(message_id)
    if content is None:
        return None
    return Item(key, values.encode_content(content), state.contents.references(message_id)[0] > 0)


def _capture_messages(state: SetState, wanted: _Wanted = _EVERYTHING, bodies: bool = True) -> Iterator[Item]:
    transient = state.contents.transient_ids()
    contents: list[tuple[MessageId, Content]]
    if wanted[True]:
        contents = sorted(
            (message_id, content)
            for message_id, content in state.contents.items()
            if wanted[message_id not in transient]
        )
    else:
        ids = sorted(transient) if wanted[False] else []
        contents = list(zip(ids, state.contents.of(ids), strict=True))
    return (
        Item(
            keys.message_key(message_id),
            values.encode_content(content if bodies else without_body(content)),
            message_id not in transient,
        )
        for message_id, content in contents
    )


def _outcome(state: SetState, key: bytes) -> Item | None:
    index, epoch = keys.numbers_in(key)
    outcome = state.outcomes.get((LogIndex(index), Epoch(epoch)))
    return Item(key, values.encode(outcome), True) if outcome is not None else None


def _capture_outcomes(state: SetState) -> Iterator[Item]:
    outcomes = state.outcomes.all()
    return (Item(keys.outcome_key(key), values.encode(outcome), True) for key, outcome in outcomes)


def _session(state: SetState, key: bytes) -> Item | None:
    (number,) = keys.numbers_in(key)
    session = state.sessions.by_key.get(SessionKey(number))
    return _session_item(session) if session is not None else None


def _session_item(session: Session) -> Item:
    answers = tuple(session.answers.items())
    value = values.SessionValue(
        session.id,
        session.epoch,
        session.timeout_ms,
        session.next_number,
        answers,
        session.dtx,
        tuple(session.consumed),
    )
    return Item(keys.session_key(session.key), values.encode(value), False)


def _capture_sessions(state: SetState) -> Iterator[Item]:
    return iter([_session_item(session) for _, session in sorted(state.sessions.by_key.items())])


def _buffer(state: SetState, key: bytes) -> TxBuffer | None:
    index, epoch = keys.numbers_in(key)[:2]
    return state.transactions.live.get((LogIndex(index), Epoch(epoch)))


def _transaction(state: SetState, key: bytes) -> Item | None:
    buffer = _buffer(state, key)
    return _transaction_item(buffer) if buffer is not None else None


def _transaction_item(buffer: TxBuffer) -> Item | None:
    if not buffer.is_durable:
        return None
    value = values.TransactionValue(buffer.state)
    if isinstance(buffer, DtxBuffer) and buffer.is_prepared:
        value = values.TransactionValue(buffer.state, buffer.xid, buffer.prepared_ms)
    return Item(keys.transaction_key(buffer.key), values.encode(value), True)


def _beginning(state: SetState, key: bytes) -> Item | None:
    buffer = _buffer(state, key)
    return _beginning_item(buffer) if buffer is not None else None


def _beginning_item(buffer: TxBuffer) -> Item | None:
    xid = b"" if buffer.is_prepared else buffer.xid
    associations = sorted(buffer.associations.items()) if isinstance(buffer, DtxBuffer) else ()
    value = values.BeginningValue(
        xid,
        buffer.session,
        buffer.timeout_ms,
        buffer.started_ms,
        buffer.is_rollback_only,
        tuple(associations),
    )
    if buffer.is_durable and value == values.BeginningValue(b"", SessionKey(0), 0, 0, False):
        return None
    return Item(keys.beginning_key(buffer.key), values.encode(value), False)


def _capture_transactions(state: SetState) -> Iterator[Item]:
    return _of_buffers(state, _transaction_item)


def _capture_beginnings(state: SetState) -> Iterator[Item]:
    return _of_buffers(state, _beginning_item)


def _subscription(state: SetState, key: bytes) -> Item | None:
    (number,) = keys.numbers_in(key)
    group = state.subscriptions.by_id.get(LogIndex(number))
    return Item(key, values.encode(group), True) if group is not None else None


def _capture_subscriptions(state: SetState) -> Iterator[Item]:
    found = sorted(state.subscriptions.by_id.items())
    return (Item(keys.subscription_key(number), values.encode(group), True) for number, group in found)


def _deleted_resource(state: SetState, key: bytes) -> Item | None:
    (resource,) = keys.numbers_in(key)
    deleted = state.subscriptions.deleted(resource)
    return Item(key, values.encode(deleted), True) if deleted is not None else None


def _capture_deleted_resources(state: SetState) -> Iterator[Item]:
    found = state.subscriptions.all_deleted()
    return (
        Item(keys.deleted_resource_key(resource), values.encode(deleted), True) for resource, deleted in found
    )


def _undone_item(xid: bytes, undone: Undone) -> Item:
    value = values.UndoneValue(xid, undone.reason, undone.ended_at)
    return Item(keys.undone_key(undone.key), values.encode(value), False)


def _capture_undone(state: SetState) -> Iterator[Item]:
    found = sorted(state.transactions.undone.items(), key=lambda pair: pair[1].key)
    return iter([_undone_item(xid, undone) for xid, undone in found])


def _undone(state: SetState, key: bytes) -> Item | None:
    wanted = keys.numbers_in(key)
    for xid, undone in state.transactions.undone.items():
        if undone.key == wanted:
            return _undone_item(xid, undone)
    return None


def _of_buffers(state: SetState, item_of: Callable[[TxBuffer], Item | None]) -> Iterator[Item]:
    found = [item_of(buffer) for _, buffer in sorted(state.transactions.live.items())]
    return (item for item in found if item is not None)


def _operation(state: SetState, key: bytes) -> Item | None:
    buffer, index = _buffer(state, key), keys.numbers_in(key)[2]
    for operation in buffer.operations if buffer is not None else ():
        if operation.index == index:
            return Item(key, values.encode_operation(operation), operation.is_durable)
    return None


def _capture_operations(state: SetState) -> Iterator[Item]:
    captured = [(key, list(buffer.operations)) for key, buffer in sorted(state.transactions.live.items())]
    return (
        Item(
            keys.operation_key(key, operation.index), values.encode_operation(operation), operation.is_durable
        )
        for key, operations in captured
        for operation in operations
    )


_CAPTURES: list[Callable[[SetState], Iterator[Item]]] = [
    _capture_meta,
    _capture_epochs,
    _capture_exchanges,
    _capture_queues,
    _capture_entries,
    _capture_bindings,
    _capture_subscriptions,
    _capture_deleted_resources,
    _capture_messages,
    _capture_outcomes,
    _capture_sessions,
    _capture_transactions,
    _capture_operations,
    _capture_beginnings,
    _capture_undone,
]
_ITEMS: dict[bytes, Callable[[SetState, bytes], Item | None]] = {
    keys.META: _meta,
    keys.EPOCH: _epoch,
    keys.EXCHANGE: _exchange,
    keys.QUEUE: _queue,
    keys.ENTRY: _entry,
    keys.BINDING: _binding,
    keys.SUBSCRIPTION: _subscription,
    keys.DELETED_RESOURCE: _deleted_resource,
    keys.MESSAGE: _message,
    keys.OUTCOME: _outcome,
    keys.SESSION: _session,
    keys.TRANSACTION: _transaction,
    keys.OPERATION: _operation,
    keys.BEGINNING: _beginning,
    keys.UNDONE: _undone,
}
