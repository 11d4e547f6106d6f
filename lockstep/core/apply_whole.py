"""Applying a TX as a whole: one whose operations and whose commit stand together in a frame, as those of short ones do.

Law: it comes to the same as applying its records one by one. What they make only for each other (a buffer, reserved room, locks)
is never made.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from lockstep.core.apply_messages import (
    FEW_MESSAGES,
    SHARES_AT_ONCE,
    ids_of,
    publish_at_once,
    shares_of,
    spread_of,
)
from lockstep.core.apply_transactions import Effects, said_of_commit, tell_outcome
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, TransactionKey, positions_from
from lockstep.core.outcomes import Outcome
from lockstep.core.packed_messages import PackedMessages, messages_of
from lockstep.core.records import AppliedRecord, Dequeue, Message, PackedPublish, Prepare, Publish
from lockstep.core.transaction_states import TransactionState
from lockstep.core.tx_buffer import Share

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState

AppliedAt = tuple[LogIndex, AppliedRecord, bool]
"""(index, record, is durable)"""
_PUBLISHES = (PackedPublish, Publish)
_OPERATIONS = (PackedPublish, Dequeue)
_BY_ORDINAL = itemgetter(0, 1)
SPREAD_WHOLE = 1000
"""What several publishes may cost, in queues, that are applied in one."""


def stretch(records: Sequence[AppliedAt], begin: int) -> tuple[int, bool]:
    """Where the operations of one transaction that begin here end, its commit included, and whether that is there; or what is
    one record, and none of a transaction.
    """
    record = records[begin][1]
    if type(record) not in _OPERATIONS or record.transaction is None:  # type: ignore[union-attr]
        return begin + 1, False
    key = record.transaction  # type: ignore[union-attr]
    for place in range(begin + 1, len(records)):
        record = records[place][1]
        kind = type(record)
        if kind is Prepare and record.transaction == key:  # type: ignore[union-attr]
            return place + 1, record.commit_when_prepared  # type: ignore[union-attr]
        if kind not in _OPERATIONS or record.transaction != key:  # type: ignore[union-attr]
            return place, False
    return len(records), False


def apply_whole(state: SetState, epoch: Epoch, records: Sequence[AppliedAt]) -> list[int] | None:
    """Apply the operations of a transaction and its commit; answers the value that each record says to its command, if any.
    None, and nothing is done: it is to be applied record by record, for it is a branch, has done more before or has ended, or it
    publishes to many queues, or at many places.
    """
    index, prepare, _ = records[-1]
    assert isinstance(prepare, Prepare)
    key = prepare.transaction
    if prepare.xid or not _is_new(state, epoch, key):
        return None
    if len(records) == 2 and isinstance(records[0][1], _PUBLISHES):
        return _publish_alone(state, records[0], index, prepare)
    values: list[int] = []
    dequeues: list[tuple[Dequeue, bool]] = []
    publishes: list[tuple[int, LogIndex, Sequence[Message] | PackedMessages, list[Share], bool]] = []
    spread = 0
    for at, record, is_durable in records[:-1]:
        if isinstance(record, Dequeue):
            dequeues.append((record, is_durable))
            values.append(len(record.positions))
            continue
        assert isinstance(record, _PUBLISHES)
        messages = messages_of(record)
        shares = shares_of(messages, record.alike) if messages else []
        if len(shares) > 1 or len(messages) > FEW_MESSAGES:
            spread += spread_of(shares, messages)
            if len(shares) > SHARES_AT_ONCE or (publishes and spread > SPREAD_WHOLE):
                return None
        publishes.append((record.ordinal, at, messages, shares, is_durable))
        values.append(0 if record.command is None else sum([share.length for share in shares]))
    _begin(state, key)
    effects = Effects(state)
    for taken, is_durable in dequeues:
        queue = state.queues.by_id.get(taken.queue)
        if queue is not None:
            free: Sequence[QueuePosition] = taken.positions
            if queue.locks.pages and (locked := queue.locks.among(free)):
                free = [each for each in free if each not in locked]
            effects.dequeue(queue, free, taken.reason, is_durable)
    for ordinal, at, messages, shares, is_durable in sorted(publishes, key=_BY_ORDINAL):
        ids, positions = ids_of(at, ordinal, len(messages)), positions_from(index, ordinal, len(messages))
        effects.enqueued(publish_at_once(state, shares, positions, ids, messages, is_durable))
    effects.tell(key)
    outcome = Outcome(TransactionState.COMMITTED, 0, index)
    state.outcomes.record(key, outcome)
    tell_outcome(state, key, outcome)
    values.append(said_of_commit(index, prepare))
    return values


def _publish_alone(state: SetState, only: AppliedAt, index: LogIndex, prepare: Prepare) -> list[int] | None:
    """The same where one publish is all there is, as it mostly is."""
    at, record, is_durable = only
    assert isinstance(record, _PUBLISHES)
    messages = messages_of(record)
    count, ordinal = len(messages), record.ordinal
    shares = shares_of(messages, record.alike) if count else []
    if len(shares) > SHARES_AT_ONCE:
        return None
    _begin(state, prepare.transaction)
    ids, positions = ids_of(at, ordinal, count), positions_from(index, ordinal, count)
    batches = publish_at_once(state, shares, positions, ids, messages, is_durable)
    outcome = Outcome(TransactionState.COMMITTED, 0, index)
    state.outcomes.record(prepare.transaction, outcome)
    if state.listener is not None:
        for queue, given in batches:
            state.tell(state.listener.enqueued, queue, given)
        tell_outcome(state, prepare.transaction, outcome)
    said = 0 if record.command is None else sum([share.length for share in shares])
    return [said, said_of_commit(index, prepare)]


def _is_new(state: SetState, epoch: Epoch, key: TransactionKey) -> bool:
    """Whether a transaction is open and has done nothing yet."""
    buffer = state.transactions.live.get(key)
    if buffer is None:
        return state.open_from <= key[1] <= epoch and key not in state.outcomes
    return buffer.state is TransactionState.OPEN and not buffer.operations


def _begin(state: SetState, key: TransactionKey) -> None:
    """A transaction that is new is applied as a whole: it is open no more."""
    buffer = state.transactions.live.get(key)
    if buffer is not None:
        state.transactions.remove(buffer)
