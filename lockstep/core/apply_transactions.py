"""Applying the records of transactions.

Law: a transaction takes effect, or its locks are given back, by applying one record. Durable effects depend on durable records
alone: a `prepare` of a transaction whose records were all transient is recorded all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from lockstep.core.apply_messages import (
    QUEUE_COST,
    SHARES_AT_ONCE,
    enqueue,
    enqueue_in_steps,
    places_of,
    release,
    reserve,
    reserve_in_steps,
    shares_in,
)
from lockstep.core.ids import (
    ORDINAL_BITS,
    Epoch,
    LogIndex,
    MessageId,
    QueueId,
    QueuePosition,
    TransactionKey,
    place,
)
from lockstep.core.items import operation_key, transaction_key
from lockstep.core.outcomes import NOTHING_TO_COMMIT, Outcome
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.records import (
    Begin,
    Commit,
    ForgetHeuristic,
    ForgetOutcomes,
    MarkRollbackOnly,
    Prepare,
    Rollback,
    RollbackReason,
)
from lockstep.core.reply import DONE, Reply, refused
from lockstep.core.taking_apart import emptied
from lockstep.core.transaction_states import (
    COMMITS,
    ROLLBACKS,
    TransactionState,
    Transition,
    is_legal,
    rollback_transition,
)
from lockstep.core.transactions import Undone
from lockstep.core.tx_buffer import (
    DequeueOperation,
    DtxBuffer,
    Operation,
    PublishOperation,
    Share,
    TxBuffer,
    cost_of,
)
from lockstep.core.xa import XaStatus, end_status

if TYPE_CHECKING:
    from lockstep.core.queues import Queue
    from lockstep.core.set_state import SetState


ENDED_IN_ONE = 500
"""Messages that a transaction has accepted, or published one by one, that leave or come, or are given back, in one step."""
ACCEPTED_COST = 2
"""Of each accepted message that is given back."""
TOLD_TOGETHER = 8
"""Positions of one queue that are put together at the cost of telling of one queue more."""
_ORDINAL = attrgetter("ordinal")
_ASKED_FOR = (RollbackReason.CLIENT, RollbackReason.COORDINATOR, RollbackReason.ROLLBACK_ONLY)
"""Reasons of rollbacks that answer whoever knows the xid."""


def apply_begin(state: SetState, index: LogIndex, epoch: Epoch, record: Begin, is_durable: bool) -> Reply:
    kind = DtxBuffer if record.xid else TxBuffer
    buffer = kind(
        (index, epoch),
        xid=record.xid,
        session=record.session,
        timeout_ms=record.timeout_ms,
        started_ms=record.started_ms,
    )
    state.transactions.add(buffer)
    if isinstance(buffer, DtxBuffer):
        state.transactions.associate(buffer, record.session, False)
    return Reply(value=index)


def apply_prepare(state: SetState, index: LogIndex, epoch: Epoch, record: Prepare, is_durable: bool) -> Reply:
    transition = Transition.COMMIT_WHEN_PREPARED if record.commit_when_prepared else Transition.PREPARE
    buffer = state.buffer_of(record.transaction, epoch)
    if buffer is None or not is_legal(buffer.state, transition):
        outcome = state.outcome(record.transaction)
        is_repeated = record.commit_when_prepared and outcome.state in COMMITS
        return Reply(value=outcome.state) if is_repeated else refused(outcome)
    if record.commit_when_prepared:
        _end(state, index, buffer, transition, record.xid, NOTHING_TO_COMMIT if record.is_read_only else 0)
        return Reply(value=XaStatus.OK) if record.xid else Reply(value=said_of_commit(index, record))
    branch = state.transactions.identify(buffer, record.xid)
    branch.advance(transition)
    state.transactions.note_prepared(branch)
    state.transactions.dissociate_all(branch)
    branch.is_rollback_only = False
    branch.is_durable = True
    branch.prepared_ms = branch.prepared_ms or record.prepared_ms
    state.changed(transaction_key(branch.key))
    return Reply(value=XaStatus.OK)


def said_of_commit(index: LogIndex, record: Prepare) -> int:
    """Of a TX that has committed: where it did if its command has begun others: their indexes are right before that."""
    return index if record.begun else TransactionState.COMMITTED


def apply_commit(state: SetState, index: LogIndex, epoch: Epoch, record: Commit, is_durable: bool) -> Reply:
    transition = Transition.HEURISTIC_COMMIT if record.is_heuristic else Transition.COMMIT
    buffer = state.transactions.get(record.transaction)
    if buffer is None or not is_legal(buffer.state, transition):
        outcome = state.outcome(record.transaction)
        return Reply(value=end_status(outcome.state)) if outcome.state in COMMITS else refused(outcome)
    _end(state, index, buffer, transition, buffer.xid, 0)
    return Reply(value=XaStatus.OK)


def apply_rollback(
    state: SetState, index: LogIndex, epoch: Epoch, record: Rollback, is_durable: bool
) -> Reply:
    transition = rollback_transition(record.reason)
    buffer = state.buffer_of(record.transaction, epoch)
    if buffer is None or not is_legal(buffer.state, transition):
        outcome = state.outcome(record.transaction)
        return Reply(value=outcome.state) if outcome.state in ROLLBACKS else refused(outcome)
    # The xid of an open branch is known from its transient `begin` alone, and the outcome is durable.
    xid = buffer.xid if buffer.is_prepared else b""
    outcome = _end(state, index, buffer, transition, xid, record.reason)
    return Reply(value=XaStatus.OK if buffer.xid else outcome.state)


def apply_mark_rollback_only(
    state: SetState, index: LogIndex, epoch: Epoch, record: MarkRollbackOnly, is_durable: bool
) -> Reply:
    buffer = state.buffer_of(record.transaction, epoch)
    if buffer is not None and buffer.state is TransactionState.OPEN:
        buffer.is_rollback_only = True
    return DONE


def apply_forget_outcomes(
    state: SetState, index: LogIndex, epoch: Epoch, record: ForgetOutcomes, is_durable: bool
) -> Reply:
    state.outcomes.forget(record.floor, record.name_horizon_ms, record.kept)
    state.transactions.forget_undone(record.floor)
    return DONE


def apply_forget_heuristic(
    state: SetState, index: LogIndex, epoch: Epoch, record: ForgetHeuristic, is_durable: bool
) -> Reply:
    state.outcomes.forget_heuristic(record.transaction, record.name_horizon_ms)
    return DONE


def _end(
    state: SetState, index: LogIndex, buffer: TxBuffer, transition: Transition, xid: bytes, reason: int
) -> Outcome:
    """End a transaction with its effects, or give back what it holds, and record its outcome. Much of that is left unfinished."""
    buffer.advance(transition)
    state.transactions.remove(buffer)
    outcome = Outcome(buffer.state, reason, index, xid)
    if not xid:
        remember_undone(state, buffer, outcome)
    state.outcomes.record(buffer.key, outcome)
    state.do(_ending(state, index, buffer, outcome))
    return outcome


def _ending(state: SetState, index: LogIndex, buffer: TxBuffer, outcome: Outcome) -> Iterator[int]:
    """What it does by that, in steps that say what they cost (`Pieces`)."""
    if outcome.state in COMMITS:
        yield from _take_effect(state, index, buffer)
    else:
        yield from _give_back_counted(state, buffer)
    _removed(state, buffer)
    tell_outcome(state, buffer.key, outcome)
    if state.unfinished is not None or len(buffer.operations) > ENDED_IN_ONE:
        yield from _let_go_of_operations(buffer)


def _let_go_of_operations(buffer: TxBuffer) -> Iterator[int]:
    """Nobody has the transaction any more. Who reads a snapshot of before may have its list, which stays as it is."""
    operations = buffer.operations
    parts = [operations[begin : begin + ENDED_IN_ONE] for begin in range(0, len(operations), ENDED_IN_ONE)]
    operations = buffer.operations = []
    yield len(parts)
    while parts:
        yield from emptied(parts.pop(), cost_of)


def tell_outcome(state: SetState, key: TransactionKey, outcome: Outcome) -> None:
    """A transaction has ended."""
    if state.listener is not None:
        state.tell(state.listener.transaction_ended, key, outcome)


def remember_undone(state: SetState, buffer: TxBuffer, outcome: Outcome) -> None:
    """An open branch was rolled back: whoever knows it by its xid is still to hear of it."""
    if buffer.xid and outcome.state in ROLLBACKS and outcome.reason not in _ASKED_FOR:
        state.transactions.undone[buffer.xid] = Undone(buffer.key, outcome.reason, outcome.index)


class Effects:
    """What a transaction that commits did to queues: collected, and then told in one call for each queue."""

    __slots__ = ("_dequeued", "_enqueued", "_state")

    def __init__(self, state: SetState) -> None:
        self._state = state
        self._dequeued: dict[tuple[int, int], tuple[Queue, list[QueuePosition]]] = {}
        self._enqueued: dict[int, tuple[Queue, list[Sequence[QueuePosition]]]] = {}
        """As they came: there may be very many positions, and few ranges."""

    def dequeue(
        self, queue: Queue, positions: Sequence[QueuePosition], reason: int, is_durable: bool
    ) -> None:
        """Take out those of these positions that are there."""
        removed = queue.remove(positions, is_durable)
        release(self._state.contents, removed)
        if self._state.listener is not None:
            self._dequeued.setdefault((queue.id, reason), (queue, []))[1].extend(removed.positions)

    def enqueued(self, batches: Sequence[tuple[Queue, Sequence[QueuePosition]]]) -> None:
        """Messages were put there."""
        if self._state.listener is not None:
            for queue, positions in batches:
                self._enqueued.setdefault(queue.id, (queue, []))[1].append(positions)

    def tell(self, key: TransactionKey) -> None:
        """Tell the listener, if there is one, behind the record that is being applied."""
        for _ in self.tell_in_steps(key):
            pass

    def tell_in_steps(self, key: TransactionKey) -> Iterator[int]:
        """The same, in steps that say what they cost (`Pieces`)."""
        state = self._state
        if state.listener is None:
            return
        for (_, reason), (queue, positions) in self._dequeued.items():
            if positions:
                state.tell(state.listener.dequeued, queue, positions, reason, key)
        told, enqueued = 0, self._enqueued
        self._enqueued = {}
        for queue_id in list(enqueued):
            queue, parts = enqueued.pop(queue_id)  # There may be very many parts in all.
            if len(parts) == 1:
                state.tell(state.listener.enqueued, queue, parts[0])
                told += 1
            else:
                together = list(chain.from_iterable(parts))
                state.tell(state.listener.enqueued, queue, together)
                told += 1 + len(together) // TOLD_TOGETHER
            if told >= ENDED_IN_ONE:
                yield told
                told = 0


def _take_effect(state: SetState, index: LogIndex, buffer: TxBuffer) -> Iterator[int]:
    effects = Effects(state)
    publishes: list[PublishOperation] = []
    for part in parts_of(buffer.operations):
        cost = len(part) // 8
        for taken in _together([each for each in part if isinstance(each, DequeueOperation)]):
            queue = state.queues.by_id.get(taken.queue)
            if queue is not None:
                positions = queue.locked_by(buffer.key, taken.positions)
                effects.dequeue(queue, positions, taken.reason, taken.is_durable)
            cost += 4 * len(taken.positions)  # Where every other message of a record leaves: twice that.
        publishes += [each for each in part if isinstance(each, PublishOperation)]
        yield cost
    publishes.sort(key=_ORDINAL)  # Those of one ordinal stay in the order of the log.
    contents = state.contents
    for shares, places, ids, is_durable in _published(state, index, buffer, publishes):
        if len(shares) > SHARES_AT_ONCE:
            yield from reserve_in_steps(state, shares, -1)
            batches, references = yield from enqueue_in_steps(state, shares, places, ids, is_durable)
        else:
            reserve(state, shares, -1)
            batches, references = enqueue(state, shares, places, ids, is_durable)
        if isinstance(references, list):
            for message_id, counts in zip(ids, references, strict=True):
                contents.set_references(message_id, *counts)
        elif references != (int(is_durable), int(not is_durable)):
            for message_id in ids:
                contents.set_references(message_id, *references)
        cost = 2 + (len(ids) if isinstance(references, list) or not isinstance(ids, range) else 0)
        if len(shares) > SHARES_AT_ONCE:
            yield cost
            for begin in range(0, len(batches), ENDED_IN_ONE):
                effects.enqueued(batches[begin : begin + ENDED_IN_ONE])
                yield ENDED_IN_ONE // 2
        else:
            effects.enqueued(batches)
            yield cost + QUEUE_COST * (len(shares) - 1) + places_of(shares)
    yield from effects.tell_in_steps(buffer.key)


def _give_back_counted(state: SetState, buffer: TxBuffer) -> Iterator[int]:
    """A transaction is rolled back: what it had locked has been delivered once more."""
    unlocked: dict[int, tuple[Queue, list[QueuePosition]]] = {}
    for part, cost in parts_to_undo(state, buffer, buffer.operations):
        for queue, positions in give_back(state, buffer, part, is_counted=True):
            unlocked.setdefault(queue.id, (queue, []))[1].extend(positions)
        yield cost
    if state.listener is not None:
        for queue, positions in unlocked.values():
            state.tell(state.listener.unlocked, queue, sorted(positions))


def parts_to_undo(
    state: SetState, buffer: TxBuffer, operations: Sequence[Operation]
) -> Iterator[tuple[Sequence[Operation], int]]:
    """Operations in their order, as many at a time as are given back in one step, and what that costs."""
    for part in parts_of(operations, partial(_undoing_cost, state, buffer)):
        yield part, sum([undoing_cost(state, buffer, each) for each in part])


def undoing_cost(state: SetState, buffer: TxBuffer, operation: Operation) -> int:
    """Of giving it back."""
    if isinstance(operation, DequeueOperation):
        return ACCEPTED_COST * len(operation.positions)
    return 2 + _undoing_cost(state, buffer, operation)


def _undoing_cost(state: SetState, buffer: TxBuffer, operation: PublishOperation) -> int:
    """The same for its messages, and for the queues but one that they were for. What is found again for that is kept until it is
    given back.
    """
    shares = buffer.shares.get(operation.index)
    if shares is None:
        shares = buffer.shares[operation.index] = shares_in(state, buffer, operation)
    is_each_looked_at = state.contents.has_transients or not operation.is_durable
    contents = 2 * operation.count if is_each_looked_at else operation.count // 4
    return contents + max(0, len(shares) - 1) // 2


def parts_of(
    operations: Sequence[Operation], cost_of_publish: Callable[[PublishOperation], int] | None = None
) -> Iterator[Sequence[Operation]]:
    """Operations in their order, a few at a time; one that accepts many messages is as many as there have to be.

    `cost_of_publish`: of one that publishes, beside that it is one more, where that may be much.
    """
    part: list[Operation] = []
    accepted = 0
    for operation in operations:
        if isinstance(operation, DequeueOperation):
            positions = operation.positions
            while len(positions) > ENDED_IN_ONE:
                some, positions = positions[:ENDED_IN_ONE], positions[ENDED_IN_ONE:]
                yield [*part, msgspec.structs.replace(operation, positions=some)]
                part, accepted = [], 0
            if len(positions) < len(operation.positions):
                operation = msgspec.structs.replace(operation, positions=positions)
            accepted += len(positions)
        elif cost_of_publish is not None:
            accepted += cost_of_publish(operation) // ACCEPTED_COST
        part.append(operation)
        if accepted >= ENDED_IN_ONE or len(part) >= 2 * ENDED_IN_ONE:
            yield part
            part, accepted = [], 0
    if part:
        yield part


def _together(dequeues: Sequence[DequeueOperation]) -> Iterator[DequeueOperation]:
    """Neighbours that differ in their positions alone are one: whoever accepts one by one may have accepted very many."""
    first: DequeueOperation | None = None
    kind: tuple[QueueId, int, bool] | None = None
    positions: list[QueuePosition] = []
    for each in dequeues:
        found = each.queue, each.reason, each.is_durable
        if found == kind:
            positions += each.positions
            continue
        if first is not None:
            yield _with_positions(first, positions)
        first, kind, positions = each, found, list(each.positions)
    if first is not None:
        yield _with_positions(first, positions)


def _with_positions(first: DequeueOperation, positions: list[QueuePosition]) -> DequeueOperation:
    if len(positions) == len(first.positions):
        return first
    return msgspec.structs.replace(first, positions=tuple(positions))


def _published(
    state: SetState, index: LogIndex, buffer: TxBuffer, publishes: Sequence[PublishOperation]
) -> Iterator[tuple[Sequence[Share], Sequence[QueuePosition], Sequence[MessageId], bool]]:
    """What a transaction that commits at `index` publishes, in order; neighbours that came one by one for one queue together,
    as many as are little.
    """
    queue, is_durable = QueueId(-1), False
    alone: list[PublishOperation] = []
    shares_alone: list[Share] = []
    for given in publishes:
        shares = buffer.shares.pop(given.index, None) or shares_in(state, buffer, given)
        is_alone = given.count == len(shares) == 1
        is_more = is_alone and len(alone) < ENDED_IN_ONE
        if alone and not (is_more and shares[0].queue == queue and given.is_durable == is_durable):
            yield _together_at(index, alone, shares_alone)
            alone, shares_alone = [], []
        if is_alone:
            if not alone:
                queue, is_durable = shares[0].queue, given.is_durable
            alone.append(given)
            shares_alone.append(shares[0])
        else:
            yield shares, given.positions_at(index), given.message_ids, given.is_durable
    if alone:
        yield _together_at(index, alone, shares_alone)


def _together_at(
    index: LogIndex, alone: list[PublishOperation], shares: list[Share]
) -> tuple[Sequence[Share], Sequence[QueuePosition], Sequence[MessageId], bool]:
    """What one queue gets of messages that came one by one, and are committed at `index`."""
    first = place(index, 0)
    positions = [QueuePosition(first + given.ordinal) for given in alone]
    ids = [MessageId((given.index << ORDINAL_BITS) + given.ordinal) for given in alone]
    size = sum([share.size for share in shares])
    levels = [share.levels[0] if share.levels is not None else PRIORITY_DEFAULT for share in shares]
    is_plain = levels.count(PRIORITY_DEFAULT) == len(levels)
    together = Share(shares[0].queue, None, len(alone), size, None if is_plain else levels)
    return (together,), positions, ids, alone[0].is_durable


def give_back(
    state: SetState, buffer: TxBuffer, operations: Sequence[Operation], is_counted: bool = False
) -> list[tuple[Queue, list[QueuePosition]]]:
    """Undo what operations hold: room, contents and locks. Answers, by queue, what is unlocked; adds a delivery if counted."""
    unlocked: dict[int, tuple[Queue, list[QueuePosition]]] = {}
    for taken in _together([each for each in operations if isinstance(each, DequeueOperation)]):
        queue = state.queues.by_id.get(taken.queue)
        if queue is None:
            continue
        positions = queue.locked_by(buffer.key, taken.positions)
        queue.unlock(positions)
        if is_counted:
            queue.count_delivery(positions, taken.is_durable)
        unlocked.setdefault(queue.id, (queue, []))[1].extend(positions)
    _give_back_published(state, buffer, [each for each in operations if isinstance(each, PublishOperation)])
    return [(queue, sorted(positions)) for queue, positions in unlocked.values() if positions]


def _give_back_published(state: SetState, buffer: TxBuffer, publishes: Sequence[PublishOperation]) -> None:
    """The room and the contents of publishes; those that came one by one are released together."""
    room: dict[QueueId, tuple[int, int]] = {}
    alone: tuple[list[MessageId], list[MessageId]] = [], []
    for given in publishes:
        for share in buffer.shares.pop(given.index, None) or shares_in(state, buffer, given):
            length, size = room.get(share.queue, (0, 0))
            room[share.queue] = length + share.length, size + share.size
        if given.count == 1:
            alone[given.is_durable].append(MessageId((given.index << ORDINAL_BITS) + given.ordinal))
        else:
            state.contents.release(given.message_ids, given.is_durable)
    reserve(state, [Share(queue, None, *taken) for queue, taken in room.items()], -1)
    for is_durable in (False, True):
        if alone[is_durable]:
            state.contents.release(alone[is_durable], is_durable)


def queues_of(state: SetState, buffer: TxBuffer, operation: Operation) -> list[QueueId]:
    """Queues that an operation names."""
    if isinstance(operation, DequeueOperation):
        return [operation.queue]
    return [share.queue for share in shares_in(state, buffer, operation)]


def remove(state: SetState, buffer: TxBuffer) -> None:
    """A transaction is open or prepared no more; what its operations held was given back."""
    state.transactions.remove(buffer)
    _removed(state, buffer)


def _removed(state: SetState, buffer: TxBuffer) -> None:
    if buffer.is_durable:
        state.changed(transaction_key(buffer.key))
        gone(state, buffer, buffer.operations)


def gone(state: SetState, buffer: TxBuffer, operations: Sequence[Operation]) -> None:
    """Whoever keeps the durable items hears that these operations have none any more."""
    if state.changes.listener is not None:
        for operation in operations:
            if operation.is_durable:
                state.changed(operation_key(buffer.key, operation.index))
