"""Applying the record that begins an epoch: what was open is aborted, and a restart loses all that is not durable (DESIGN R12).

Law: all of it takes effect with that one record. It may be very much, so it is also to be had in steps, for whoever is about to
apply the record next and shows the state to nobody before: what has been done already the record finds done.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lockstep.core.apply_messages import release
from lockstep.core.apply_transactions import (
    give_back,
    gone,
    parts_to_undo,
    queues_of,
    remember_undone,
    remove,
    undoing_cost,
)
from lockstep.core.apply_wiring import delete_exchange, delete_queue
from lockstep.core.ids import Epoch, LogIndex, QueueId
from lockstep.core.outcomes import Outcome
from lockstep.core.records import DequeueReason, EpochBegins, RollbackReason
from lockstep.core.reply import DONE, Reply
from lockstep.core.transaction_states import TransactionState
from lockstep.core.tx_buffer import DequeueOperation, Operation, TxBuffer

if TYPE_CHECKING:
    from lockstep.core.exchanges import Binding
    from lockstep.core.queues import Queue
    from lockstep.core.set_state import SetState

GIVEN_BACK_IN_ONE = 500
"""Operations of one transaction that are given back in one step, and messages of one that has accepted more."""
_TRANSACTION_COST = 8
"""Of aborting one, beside its operations."""
_SESSION_COST = 2
_QUEUE_COST = 12
"""Of deleting one, beside its bindings."""
_BINDING_COST = 10


def apply_epoch_begins(
    state: SetState, index: LogIndex, epoch: Epoch, record: EpochBegins, is_durable: bool
) -> Reply:
    if state.begun_at != index:
        for _ in begin_epoch(state, index, record):
            pass
    if not record.is_handed_over:
        state.open_from = epoch
    return DONE


def begin_epoch(state: SetState, index: LogIndex, record: EpochBegins) -> Iterator[int]:
    """What applying this record at `index` does, in steps that say what they cost (`Pieces`)."""
    if not record.is_handed_over:
        yield from _abort_open(state, index)
    if record.is_restarted:
        yield from _drop_transients(state)
    state.begun_at = index


def _abort_open(state: SetState, index: LogIndex) -> Iterator[int]:
    aborted = Outcome(TransactionState.ROLLED_BACK, RollbackReason.FAILOVER, index)
    for key in state.transactions.open_keys():
        buffer = state.transactions.live[key]
        yield from _give_back_all(state, buffer)
        remove(state, buffer)
        remember_undone(state, buffer, aborted)
        if state.listener is not None:
            state.tell(state.listener.transaction_ended, key, aborted)
        yield _TRANSACTION_COST


def _give_back_all(state: SetState, buffer: TxBuffer) -> Iterator[int]:
    """What a transaction that is aborted holds."""
    while buffer.operations:
        operations, cost = _take_last(state, buffer)
        unlocked = give_back(state, buffer, operations)
        if state.listener is not None:
            for queue, positions in unlocked:
                state.tell(state.listener.unlocked, queue, positions)
        gone(state, buffer, operations)
        yield cost


def _take_last(state: SetState, buffer: TxBuffer) -> tuple[list[Operation], int]:
    """The last operations of a buffer, which they leave, the very last one first: as many as are given back in one step, and what
    that costs. Of one that accepted many messages the first ones stay there.
    """
    operations, taken, cost = buffer.operations, list[Operation](), 0
    while operations and cost < 2 * GIVEN_BACK_IN_ONE:
        last = operations.pop()
        if isinstance(last, DequeueOperation) and len(last.positions) > GIVEN_BACK_IN_ONE:
            operations.append(replace(last, positions=last.positions[:-GIVEN_BACK_IN_ONE]))
            last = replace(last, positions=last.positions[-GIVEN_BACK_IN_ONE:])
        taken.append(last)
        cost += undoing_cost(state, buffer, last)
    return taken, cost


def _drop_transients(state: SetState) -> Iterator[int]:
    """What a restart loses, non-durable effects inside prepared transactions included (Reliability Requirements, T7)."""
    for key in state.transactions.prepared_keys():
        yield from _drop_transients_of(state, state.transactions.live[key])
    state.transactions.undone.clear()
    for session_key in sorted(state.sessions.by_key):
        session = state.sessions.by_key[session_key]
        state.sessions.remove(session)
        if state.listener is not None:
            state.tell(state.listener.session_closed, session)
        yield _SESSION_COST + len(session.answers) // 8
    for queue_id in sorted(state.queues.by_id):
        queue = state.queues.by_id[queue_id]
        if queue.is_durable:
            yield from _drop_marked(state, queue)
        else:
            yield from _unbind(state, state.exchanges.bindings_of(queue_id))
            delete_queue(state, queue)
            yield _QUEUE_COST
    for exchange_id in sorted(state.exchanges.by_id):
        exchange = state.exchanges.by_id[exchange_id]
        lost = [b for b, is_durable in exchange.bindings.items() if not (is_durable and exchange.is_durable)]
        yield from _unbind(state, lost)
        if not exchange.is_durable:
            delete_exchange(state, exchange)
        yield 1


def _drop_transients_of(state: SetState, buffer: TxBuffer) -> Iterator[int]:
    """Of one that is prepared: most have nothing that is not durable but who began them."""
    lost = buffer.drop_transients()
    yield 1 + len(buffer.operations) // 4
    if not lost:
        return
    for operations, cost in parts_to_undo(state, buffer, lost):
        give_back(state, buffer, operations)
        yield cost
    touched: set[QueueId] = set()
    for operation in buffer.operations:
        names = queues_of(state, buffer, operation)
        touched.update(names)
        yield len(names)
    state.transactions.retouch(buffer, touched)


def _drop_marked(state: SetState, queue: Queue) -> Iterator[int]:
    """What is not durable in a durable queue."""
    for positions in queue.transient_positions.parts():
        removed = queue.remove(positions, False)
        release(state.contents, removed)
        if state.listener is not None:
            state.tell(state.listener.dequeued, queue, removed.positions, DequeueReason.LOST, None)
        yield 2 * len(positions)


def _unbind(state: SetState, bindings: list[Binding]) -> Iterator[int]:
    for binding in bindings:
        state.exchanges.unbind(binding)
        yield _BINDING_COST
