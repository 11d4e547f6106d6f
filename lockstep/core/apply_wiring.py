"""Applying the records that declare, use, delete, bind and unbind.

Law: a thing is durable only if its record and everything it joins are; a transient record never deletes or unbinds what is
durable. Records that name what is gone change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lockstep.core.exchanges import Binding, Exchange
from lockstep.core.ids import Epoch, ExchangeId, LogIndex, QueueId
from lockstep.core.items import queue_key
from lockstep.core.queues import Queue
from lockstep.core.records import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Unbind,
    UseQueue,
)
from lockstep.core.reply import DONE, Reply

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState


def apply_declare_exchange(
    state: SetState, index: LogIndex, epoch: Epoch, record: DeclareExchange, is_durable: bool
) -> Reply:
    exchange = Exchange(ExchangeId(index), record.name, record.kind, record.is_durable and is_durable)
    state.exchanges.declare(exchange)
    return Reply(value=index)


def apply_delete_exchange(
    state: SetState, index: LogIndex, epoch: Epoch, record: DeleteExchange, is_durable: bool
) -> Reply:
    exchange = state.exchanges.by_id.get(record.exchange)
    if exchange is not None and (is_durable or not exchange.is_durable):
        if exchange.is_durable:
            state.subscriptions.resource_deleted(exchange.id, exchange.name, index)
        delete_exchange(state, exchange)
    return DONE


def delete_exchange(state: SetState, exchange: Exchange) -> None:
    """Delete an exchange with its bindings."""
    state.exchanges.delete(exchange)
    if state.listener is not None:
        state.tell(state.listener.exchange_deleted, exchange)


def apply_declare_queue(
    state: SetState, index: LogIndex, epoch: Epoch, record: DeclareQueue, is_durable: bool
) -> Reply:
    definition = msgspec.structs.replace(record, command=None, is_durable=record.is_durable and is_durable)
    queue = Queue(QueueId(index), definition, state.contents, state.changes, state.page_entries)
    state.queues.add(queue)
    if queue.is_durable:
        state.changed(queue_key(queue.id))
    if state.listener is not None:
        state.tell(state.listener.queue_declared, queue)
    return Reply(value=index)


def apply_use_queue(
    state: SetState, index: LogIndex, epoch: Epoch, record: UseQueue, is_durable: bool
) -> Reply:
    queue = state.queues.by_id.get(record.queue)
    if queue is not None and (is_durable or not queue.is_durable):
        queue.definition = msgspec.structs.replace(queue.definition, is_used=True)
        if queue.is_durable:
            state.changed(queue_key(queue.id))
    return DONE


def apply_delete_queue(
    state: SetState, index: LogIndex, epoch: Epoch, record: DeleteQueue, is_durable: bool
) -> Reply:
    queue = state.queues.by_id.get(record.queue)
    if queue is None or (queue.is_durable and not is_durable):
        return DONE
    length = queue.length
    if queue.is_durable:
        state.subscriptions.resource_deleted(queue.id, queue.name, index)
    delete_queue(state, queue)
    return Reply(value=length)


def delete_queue(state: SetState, queue: Queue) -> None:
    """Delete a queue with its messages, locks and bindings; open transactions that touch it become rollback-only. It is gone with
    that; what its messages took is let go of in pieces (`Clearing`).

    Their operations on it stay in their buffers and have no effect: the id is never given out again. That is the same as
    dropping them, and leaves what is durable of a buffer a function of durable records alone.
    """
    for binding in state.exchanges.bindings_of(queue.id):
        state.exchanges.unbind(binding)
    for buffer in state.transactions.open_touching(queue.id):
        buffer.is_rollback_only = True
    state.queues.remove(queue)
    if state.listener is not None:
        state.tell(state.listener.queue_deleted, queue)
    state.clearing.add(queue)
    if queue.is_durable:
        state.changed(queue_key(queue.id))


def apply_bind(state: SetState, index: LogIndex, epoch: Epoch, record: Bind, is_durable: bool) -> Reply:
    exchange = state.exchanges.by_id.get(record.exchange)
    queue = state.queues.by_id.get(record.queue)
    if exchange is not None and queue is not None:
        binding = Binding(exchange.id, queue.id, record.key, record.arguments)
        state.exchanges.bind(binding, is_durable and exchange.is_durable and queue.is_durable)
    return DONE


def apply_unbind(state: SetState, index: LogIndex, epoch: Epoch, record: Unbind, is_durable: bool) -> Reply:
    binding = Binding(record.exchange, record.queue, record.key, record.arguments)
    was_durable = state.exchanges.is_durable(binding)
    if was_durable is False or (was_durable and is_durable):
        state.exchanges.unbind(binding)
    return DONE
