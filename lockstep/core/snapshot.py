"""Snapshot: a state as items, for the store, for newcomers (DESIGN R8, R12) and for comparing states.

Law: items come in key order, and equal states give equal items. What an iterator gives is the state at the moment it was
made, however much is applied while it is read. Messages, entries and outcomes, of which there may be any number, are captured in
pieces, as the reader comes to them (`state_captures`); of all else references are copied when it is made. Values are encoded one
by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lockstep.core import item_values as values
from lockstep.core import items as keys
from lockstep.core.content import without_body
from lockstep.core.exchanges import Binding
from lockstep.core.ids import (
    Epoch,
    ExchangeId,
    LogIndex,
    MessageId,
    QueueId,
    QueuePosition,
    SessionKey,
    TransactionKey,
)
from lockstep.core.items import Item
from lockstep.core.outcomes import Outcome
from lockstep.core.packed_messages import PackedMessages
from lockstep.core.queues import Queue
from lockstep.core.records import DeclareQueue
from lockstep.core.sessions import Session
from lockstep.core.snapshot_blocks import entry_blocks, message_blocks
from lockstep.core.state_captures import LOOKED_AT, CapturedContents, CapturedEntries, EntriesPiece
from lockstep.core.transaction_states import TransactionState
from lockstep.core.transactions import Undone
from lockstep.core.tx_buffer import DtxBuffer, TxBuffer

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState

_BUFFER_COST = 25
"""Of a look at one transaction."""
_Wanted = dict[bool, bool]
"""Whether durable items (True) and transient ones (False) are asked for; nothing else is encoded."""
Paced = Iterator[Item | None]
"""Items, and None where much was looked at and nothing found: others may have their turn."""


def all_items(state: SetState, durable: bool, transient: bool, bodies: bool, in_blocks: bool) -> Paced:
    """The durable or the transient items or both, in key order; without `bodies`, contents as if all were dropped.

    `in_blocks`: durable messages and entries in blocks (`snapshot_blocks`), transient entries behind those of all queues.
    """
    wanted = {True: durable, False: transient}
    contents = CapturedContents(state, durable)
    entries: list[Paced]
    if in_blocks:
        entries = [
            entry_blocks(CapturedEntries(state, True, False)),
            _entries(CapturedEntries(state, False, True), {True: False, False: True}),
        ]
    else:
        entries = [_entries(CapturedEntries(state, durable, transient), wanted)]
    parts: list[Paced] = [
        *(capture(state, wanted) for capture in _BEFORE_ENTRIES),
        *entries,
        *(capture(state, wanted) for capture in _BEFORE_MESSAGES),
        message_blocks(contents) if in_blocks else _messages(contents, wanted, bodies),
        *(capture(state, wanted) for capture in _BEHIND_MESSAGES),
    ]
    return (item for part in parts for item in part if item is None or wanted[item.is_durable])


def one_item(state: SetState, key: bytes) -> Item | None:
    """The present item of a key, durable or transient; None if there is none."""
    return _ITEMS[key[:1]](state, key)


# --- one kind after the other: all of it, captured; one of it ------------------------------------------------------------


def _meta(state: SetState, key: bytes = keys.META_KEY) -> Item:
    value = values.MetaValue(
        state.applied,
        state.time_ms,
        state.outcomes.floor,
        state.open_from,
        state.subscriptions.names_from,
        state.outcomes.name_horizon_ms,
    )
    return Item(key, values.encode(value), True)


def _capture_meta(state: SetState, wanted: _Wanted) -> Paced:
    if not wanted[True]:
        return iter(())
    return iter([_meta(state)])


def _epoch(state: SetState, key: bytes) -> Item | None:
    (epoch,) = keys.numbers_in(key)
    first = state.epochs.first_of(Epoch(epoch))
    return Item(key, values.encode(first), True) if first is not None else None


def _capture_epochs(state: SetState, wanted: _Wanted) -> Paced:
    if not wanted[True]:
        return iter(())
    return (Item(keys.epoch_key(epoch), values.encode(first), True) for epoch, first in state.epochs.entries)


def _exchange(state: SetState, key: bytes) -> Item | None:
    (exchange_id,) = keys.numbers_in(key)
    exchange = state.exchanges.by_id.get(ExchangeId(exchange_id))
    if exchange is None:
        return None
    return Item(key, values.encode(values.ExchangeValue(exchange.name, exchange.kind)), exchange.is_durable)


def _capture_exchanges(state: SetState, wanted: _Wanted) -> Paced:
    found = [pair for pair in sorted(state.exchanges.by_id.items()) if wanted[pair[1].is_durable]]
    encode, value = values.encode, values.ExchangeValue
    return (
        Item(keys.exchange_key(number), encode(value(exchange.name, exchange.kind)), exchange.is_durable)
        for number, exchange in found
    )


def _queue(state: SetState, key: bytes) -> Item | None:
    (queue_id,) = keys.numbers_in(key)
    queue = state.queues.by_id.get(QueueId(queue_id))
    return Item(key, values.encode(queue.definition), queue.is_durable) if queue is not None else None


def _capture_queues(state: SetState, wanted: _Wanted) -> Paced:
    queues = list(map(state.queues.by_id.__getitem__, sorted(state.queues.by_id)))
    definitions = list(map(attrgetter("definition"), queues))
    return _of_queues(queues, definitions, wanted)


def _of_queues(queues: list[Queue], definitions: list[DeclareQueue], wanted: _Wanted) -> Paced:
    for number, (queue, definition) in enumerate(zip(queues, definitions, strict=True), 1):
        if wanted[queue.is_durable]:
            yield Item(keys.queue_key(queue.id), values.encode(definition), queue.is_durable)
        if number % LOOKED_AT == 0:
            yield None


def _entry(state: SetState, key: bytes) -> Item | None:
    queue_id, number = keys.numbers_in(key)
    queue, position = state.queues.by_id.get(QueueId(queue_id)), QueuePosition(number)
    message_id = queue.message_id(position) if queue is not None else None
    if queue is None or message_id is None:
        return None
    count, expires_ms = queue.delivery_count(position), queue.expiries.get(position)
    deaths, annotations = queue.deaths.get(position, ()), queue.annotations.get(position, b"")
    value = values.encode_entry(message_id, count, expires_ms, deaths, annotations)
    return Item(key, value, queue.is_entry_durable(position))


def _entries(captured: CapturedEntries, wanted: _Wanted) -> Paced:
    looked_at = 0
    while (piece := captured.next()) is not None:
        looked_at += piece.cost
        for item in _of_piece(piece, wanted):
            yield item
            looked_at = 0
        if looked_at >= LOOKED_AT:
            yield None
            looked_at = 0


def _of_piece(piece: EntriesPiece, wanted: _Wanted) -> Iterator[Item]:
    queue, is_queue_durable, pieces, counts, expiries, transient, deaths, annotations = piece
    for positions, ids in pieces:
        for position, message_id in zip(positions, ids, strict=True):
            is_durable = is_queue_durable and position not in transient
            if wanted[is_durable]:
                count, expires_ms = counts.get(position, 0), expiries.get(position)
                died, said = deaths.get(position, ()), annotations.get(position, b"")
                value = values.encode_entry(message_id, count, expires_ms, died, said)
                yield Item(keys.entry_key(queue, position), value, is_durable)


_NIL = values.encode(None)


def _binding(state: SetState, key: bytes) -> Item | None:
    is_durable = state.exchanges.is_durable(Binding(*keys.parse_binding_key(key)))
    return Item(key, _NIL, is_durable) if is_durable is not None else None


def _capture_bindings(state: SetState, wanted: _Wanted) -> Paced:
    found = [list(exchange.bindings.items()) for _, exchange in sorted(state.exchanges.by_id.items())]
    return (item for bindings in found for item in _of_exchange(bindings, wanted))


def _of_exchange(bindings: list[tuple[Binding, bool]], wanted: _Wanted) -> Paced:
    """By queue first, as their keys are."""
    by_queue: dict[QueueId, list[tuple[Binding, bool]]] = {}
    for number, pair in enumerate(bindings, 1):
        if wanted[pair[1]]:
            by_queue.setdefault(pair[0].queue, []).append(pair)
        if number % LOOKED_AT == 0:
            yield None
    for _, pairs in sorted(by_queue.items()):
        items = [Item(keys.binding_key(*binding), _NIL, is_durable) for binding, is_durable in pairs]
        yield from sorted(items, key=lambda item: item.key)


def _message(state: SetState, key: bytes) -> Item | None:
    (number,) = keys.numbers_in(key)
    message_id = MessageId(number)
    content = state.contents.find(message_id)
    if content is None:
        return None
    return Item(key, values.encode_content(content), state.contents.references(message_id)[0] > 0)


def _messages(captured: CapturedContents, wanted: _Wanted, bodies: bool) -> Paced:
    looked_at = 0
    while not captured.is_over:
        shelf = captured.next()
        if shelf is None:
            yield None
            continue
        for ids, contents in shelf.records():
            transient = shelf.transient_among(ids)
            looked_at += len(ids)
            if looked_at >= LOOKED_AT:
                yield None
                looked_at = 0
            each = contents.unpack() if isinstance(contents, PackedMessages) else contents
            for message_id, content in zip(ids, each, strict=True):
                is_durable = message_id not in transient
                if wanted[is_durable]:
                    value = values.encode_content(content if bodies else without_body(content))
                    yield Item(keys.message_key(message_id), value, is_durable)
                    looked_at = 0


def _outcome(state: SetState, key: bytes) -> Item | None:
    index, epoch = keys.numbers_in(key)
    outcome = state.outcomes.get((LogIndex(index), Epoch(epoch)))
    return Item(key, values.encode(outcome), True) if outcome is not None else None


def _capture_outcomes(state: SetState, wanted: _Wanted) -> Paced:
    if not wanted[True]:
        return iter(())
    return _of_outcomes(state.outcomes.capture(state.applied))


def _of_outcomes(captured: Iterator[list[tuple[TransactionKey, Outcome]]]) -> Paced:
    for pairs in captured:
        yield None
        for key, outcome in pairs:
            yield Item(keys.outcome_key(key), values.encode(outcome), True)


def _session(state: SetState, key: bytes) -> Item | None:
    (number,) = keys.numbers_in(key)
    session = state.sessions.by_key.get(SessionKey(number))
    return _session_item(session) if session is not None else None


def _session_item(session: Session) -> Item:
    return Item(keys.session_key(session.key), values.encode(_session_value(session)), False)


def _session_value(session: Session) -> values.SessionValue:
    return values.SessionValue(
        session.id,
        session.epoch,
        session.timeout_ms,
        session.next_number,
        tuple(session.answers.items()),
        session.dtx,
        tuple(session.consumed),
    )


def _capture_sessions(state: SetState, wanted: _Wanted) -> Paced:
    if not wanted[False]:
        return iter(())
    found = [(key, _session_value(session)) for key, session in sorted(state.sessions.by_key.items())]
    return (Item(keys.session_key(key), values.encode(value), False) for key, value in found)


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


def _capture_transactions(state: SetState, wanted: _Wanted) -> Paced:
    """Transactions, then what they do, then what is said of those that are not prepared."""
    live = list(state.transactions.live.values())
    prepared = [buffer for buffer in live if buffer.is_prepared]
    opened = [_copy_of(buffer) for buffer in state.transactions.open()]
    return _of_buffers(prepared, list(map(_CHANGING_OF, prepared)), opened, wanted)


_CHANGING_OF = attrgetter("session", "timeout_ms", "started_ms", "prepared_ms", "operations")
"""Of a branch that is prepared, and not ended: nothing else of it changes. Nor is any operation added or taken out."""


def _copy_of(buffer: TxBuffer) -> TxBuffer:
    """Of one that is open, whose operations do not change."""
    if isinstance(buffer, DtxBuffer):
        return replace(buffer, operations=list(buffer.operations), associations=dict(buffer.associations))
    return replace(buffer, operations=list(buffer.operations))


def _as_prepared(buffer: TxBuffer, session: SessionKey, *others: Any) -> TxBuffer:
    timeout_ms, started_ms, prepared_ms, operations = others
    prepared = replace(buffer, state=TransactionState.PREPARED, session=session, operations=operations)
    assert isinstance(prepared, DtxBuffer), "only branches are prepared"
    prepared.timeout_ms, prepared.started_ms, prepared.prepared_ms = timeout_ms, started_ms, prepared_ms
    return prepared


def _of_buffers(
    prepared: list[TxBuffer], changing: list[tuple[Any, ...]], opened: list[TxBuffer], wanted: _Wanted
) -> Paced:
    places = sorted(
        [
            *((buffer.key, place) for place, buffer in enumerate(prepared)),
            *((buffer.key, -1 - place) for place, buffer in enumerate(opened)),
        ]
    )
    yield None
    looked_at = 0
    for items_of in (_transaction_items, _operation_items, _beginning_items):
        for _, place in places:
            buffer = opened[-1 - place] if place < 0 else _as_prepared(prepared[place], *changing[place])
            looked_at += _BUFFER_COST
            for item in items_of(buffer, wanted):
                yield item
                looked_at = 0
            if looked_at >= LOOKED_AT:
                yield None
                looked_at = 0


def _subscription(state: SetState, key: bytes) -> Item | None:
    (number,) = keys.numbers_in(key)
    group = state.subscriptions.by_id.get(LogIndex(number))
    return Item(key, values.encode(group), True) if group is not None else None


def _capture_subscriptions(state: SetState, wanted: _Wanted) -> Paced:
    if not wanted[True]:
        return iter(())
    found = sorted(state.subscriptions.by_id.items())
    return (Item(keys.subscription_key(number), values.encode(group), True) for number, group in found)


def _deleted_resource(state: SetState, key: bytes) -> Item | None:
    (resource,) = keys.numbers_in(key)
    deleted = state.subscriptions.deleted(resource)
    return Item(key, values.encode(deleted), True) if deleted is not None else None


def _capture_deleted_resources(state: SetState, wanted: _Wanted) -> Paced:
    if not wanted[True]:
        return iter(())
    found = state.subscriptions.all_deleted()
    return (
        Item(keys.deleted_resource_key(resource), values.encode(deleted), True) for resource, deleted in found
    )


def _undone_item(xid: bytes, undone: Undone) -> Item:
    value = values.UndoneValue(xid, undone.reason, undone.ended_at)
    return Item(keys.undone_key(undone.key), values.encode(value), False)


def _capture_undone(state: SetState, wanted: _Wanted) -> Paced:
    if not wanted[False]:
        return iter(())
    found = sorted(state.transactions.undone.items(), key=lambda pair: pair[1].key)
    return iter([_undone_item(xid, undone) for xid, undone in found])


def _undone(state: SetState, key: bytes) -> Item | None:
    wanted = keys.numbers_in(key)
    for xid, undone in state.transactions.undone.items():
        if undone.key == wanted:
            return _undone_item(xid, undone)
    return None


def _transaction_items(buffer: TxBuffer, wanted: _Wanted) -> Iterator[Item]:
    item = _transaction_item(buffer) if wanted[True] else None
    if item is not None:
        yield item


def _beginning_items(buffer: TxBuffer, wanted: _Wanted) -> Iterator[Item]:
    item = _beginning_item(buffer) if wanted[False] else None
    if item is not None:
        yield item


def _operation_items(buffer: TxBuffer, wanted: _Wanted) -> Iterator[Item]:
    for operation in buffer.operations:
        if wanted[operation.is_durable]:
            key = keys.operation_key(buffer.key, operation.index)
            yield Item(key, values.encode_operation(operation), operation.is_durable)


def _operation(state: SetState, key: bytes) -> Item | None:
    buffer, index = _buffer(state, key), keys.numbers_in(key)[2]
    operations = buffer.operations if buffer is not None else []
    place = bisect_left(operations, index, key=attrgetter("index"))
    if place == len(operations) or operations[place].index != index:
        return None
    return Item(key, values.encode_operation(operations[place]), operations[place].is_durable)


_BEFORE_ENTRIES: list[Callable[[SetState, _Wanted], Paced]] = [
    _capture_meta,
    _capture_epochs,
    _capture_exchanges,
    _capture_queues,
]
_BEFORE_MESSAGES: list[Callable[[SetState, _Wanted], Paced]] = [
    _capture_bindings,
    _capture_subscriptions,
    _capture_deleted_resources,
]
_BEHIND_MESSAGES: list[Callable[[SetState, _Wanted], Paced]] = [
    _capture_outcomes,
    _capture_sessions,
    _capture_transactions,
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
