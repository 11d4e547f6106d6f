"""Applying publish, dequeue, move and requeue records.

Law: what a record makes visible becomes visible by it alone, at (its index, ordinal). Queues that are gone are skipped. In a
transaction nothing becomes visible: publishes reserve room, dequeues lock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from lockstep.core.content import Content, priorities_of, size_of, size_of_all
from lockstep.core.deaths import DeathReason, Deaths, died_again
from lockstep.core.ids import (
    Epoch,
    LogIndex,
    MessageId,
    QueueId,
    QueuePosition,
    message_ids_from,
    place,
)
from lockstep.core.packed_messages import RUN_MIN, PackedMessages, messages_of
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.records import (
    Alike,
    Annotate,
    Dequeue,
    DequeueReason,
    Message,
    Move,
    PackedPublish,
    Publish,
    Requeue,
)
from lockstep.core.reply import DONE, Reply, refused
from lockstep.core.tx_buffer import DequeueOperation, PublishOperation, Share, TxBuffer

if TYPE_CHECKING:
    from lockstep.core.contents import Contents
    from lockstep.core.queues import Queue, Removed
    from lockstep.core.set_state import SetState

    Batches = list[tuple[Queue, Sequence[QueuePosition]]]
    """What queues got."""
    References = list[tuple[int, int]] | tuple[int, int]
    """(durable, transient) of each message of a batch; a single pair where all have the same."""
    Enqueued = tuple[Batches, References]
    """What each queue got, and how many references each message got: these are for the caller to count."""


_QUEUES = attrgetter("queues")
QUEUE_COST = 3
"""Of putting what is published into one more queue, in microseconds, about."""
SHARES_AT_ONCE = 1000
"""What a record publishes goes to so many queues in one step; to more in several."""
SHARES_IN_ONE = 250
"""Of these, in one."""
PLACES_A_QUEUE = 3
"""Places in queues cost as much as one queue more, where each is looked at: those of messages that are alike are one range."""
FEW_MESSAGES = 32
"""So many of one record that go to one queue cost no more than a record does."""
POSITIONS_A_QUEUE = 8
"""Messages that a record takes out, or counts, cost as much as one queue more that a publish goes to."""
MOVED_AS_TARGETS = 2
"""What it costs to move a message, beside what each queue does that it is moved to: as much as so many of these."""
MOVED_AT_ONCE = 1500
"""What is moved in one step (`moving_cost`); more takes several."""
TARGETS_AT_ONCE = 500
"""So does what is moved to more queues than these: each takes as long as some messages more, some 10 us."""
MOVED_IN_ONE, MOVING_COST_MAX = 250, 1000
"""Messages that leave their queue in one of these steps; and what it may cost, but for what they do to one queue."""


def shares_of(messages: Sequence[Content] | PackedMessages, alike: Alike | None = None) -> list[Share]:
    """How a batch, of at least one message, is spread over queues."""
    if alike is not None:
        count, size = len(alike.sizes), sum(alike.sizes)
        return [Share(queue, None, count, size) for queue in alike.queues]
    assert not isinstance(messages, PackedMessages), "what is packed is alike"
    queues = messages[0].queues
    if len(messages) == 1:
        level = messages[0].priority
        one = None if level == PRIORITY_DEFAULT else (level,)
        return [Share(queue, None, 1, size_of(messages[0]), one) for queue in queues]
    if list(map(_QUEUES, messages)).count(queues) == len(messages):
        size, levels = size_of_all(messages), priorities_of(messages)
        return [Share(queue, None, len(messages), size, levels) for queue in queues]
    places: dict[QueueId, list[int]] = {}
    sizes: dict[QueueId, int] = {}
    for number, message in enumerate(messages):
        size = size_of(message)
        for queue in message.queues:
            places.setdefault(queue, []).append(number)
            sizes[queue] = sizes.get(queue, 0) + size
    return [
        Share(
            queue,
            numbers,
            len(numbers),
            sizes[queue],
            priorities_of([messages[number] for number in numbers]),
        )
        for queue, numbers in places.items()
    ]


def places_of(shares: Sequence[Share]) -> int:
    """How many places a batch gets, if each of them is looked at: messages have priorities, or go to other queues each."""
    if not shares or (shares[0].places is None and shares[0].levels is None):
        return 0
    return sum([share.length for share in shares])


def spread_of(shares: Sequence[Share], messages: Sequence[Content] | PackedMessages) -> int:
    """What a batch costs beside its record, in queues (`SetState.spread`)."""
    looked_at = 0 if isinstance(messages, PackedMessages) else max(len(messages), places_of(shares))
    return max(len(shares) - 1, 0) + looked_at // PLACES_A_QUEUE


def _total_size(shares: Sequence[Share], messages: Sequence[Content] | PackedMessages) -> int:
    """Bytes of a batch, each message once."""
    if shares and shares[0].places is None:
        return shares[0].size
    assert not isinstance(messages, PackedMessages), "what is packed goes to at least one queue"
    return size_of_all(messages)


def shares_in(state: SetState, buffer: TxBuffer, operation: PublishOperation) -> Sequence[Share]:
    """How what a transaction publishes is spread: found when it was collected, or, after a restoration, found again."""
    shares = buffer.shares.get(operation.index)
    if shares is None:
        shares = shares_of(state.contents.of(operation.message_ids))
    return shares


def enqueue(
    state: SetState,
    shares: Sequence[Share],
    positions: Sequence[QueuePosition],
    ids: Sequence[MessageId],
    is_durable: bool,
) -> Enqueued:
    """Put a batch into those of its queues that there are. Answers what each queue got, and how many (durable, transient)
    references each message, a single pair where all got the same: these are for the caller to count.
    """
    batches: Batches = []
    if not shares or shares[0].places is None:
        durable = 0
        for share in shares:
            queue = state.queues.by_id.get(share.queue)
            if queue is not None:
                queue.append(positions, ids, share.size, is_durable)
                if share.levels is not None:
                    queue.prioritise(positions, share.levels)
                batches.append((queue, positions))
                durable += is_durable and queue.is_durable
        return batches, (durable, len(batches) - durable)
    references = [(0, 0)] * len(ids)
    for share in shares:
        queue = state.queues.by_id.get(share.queue)
        if queue is None:
            continue
        places = share.places
        assert places is not None, "all shares of a batch are of all of it, or none is"
        chosen = [positions[number] for number in places]
        queue.append(chosen, [ids[number] for number in places], share.size, is_durable)
        if share.levels is not None:
            queue.prioritise(chosen, share.levels)
        batches.append((queue, chosen))
        more = (1, 0) if is_durable and queue.is_durable else (0, 1)
        for number in places:
            had = references[number]
            references[number] = (had[0] + more[0], had[1] + more[1])
    return batches, references


def enqueue_in_steps(
    state: SetState,
    shares: Sequence[Share],
    positions: Sequence[QueuePosition],
    ids: Sequence[MessageId],
    is_durable: bool,
) -> Generator[int, None, Enqueued]:
    """The same of many shares, in steps that say what they cost (`Pieces`)."""
    batches: Batches = []
    references: References = (0, 0)
    for begin in range(0, len(shares), SHARES_IN_ONE):
        some = shares[begin : begin + SHARES_IN_ONE]
        more, counts = enqueue(state, some, positions, ids, is_durable)
        batches += more
        references = _together(references, counts, len(ids))
        yield sum([QUEUE_COST if share.places is None else QUEUE_COST + share.length for share in some])
    return batches, references


def _together(some: References, more: References, count: int) -> References:
    """The references that so many messages got by two parts of their shares."""
    if isinstance(some, tuple) and isinstance(more, tuple):
        return some[0] + more[0], some[1] + more[1]
    each = [given if isinstance(given, list) else [given] * count for given in (some, more)]
    return [(one[0] + other[0], one[1] + other[1]) for one, other in zip(*each, strict=True)]


def release(contents: Contents, removed: Removed) -> None:
    """Count down the references of removed entries."""
    for ids in removed.durable:
        contents.release(ids, True)
    for ids in removed.transient:
        contents.release(ids, False)


def reserve(state: SetState, shares: Sequence[Share], sign: int) -> None:
    """Reserve (sign 1) or give back (-1) the room of a transaction's publishes."""
    for share in shares:
        queue = state.queues.by_id.get(share.queue)
        if queue is not None:
            queue.reserved_length += sign * share.length
            queue.reserved_bytes += sign * share.size


def reserve_in_steps(state: SetState, shares: Sequence[Share], sign: int) -> Iterator[int]:
    """The same of many shares, in steps that say what they cost (`Pieces`)."""
    for begin in range(0, len(shares), SHARES_IN_ONE):
        reserve(state, shares[begin : begin + SHARES_IN_ONE], sign)
        yield SHARES_IN_ONE // 4


def apply_publish(
    state: SetState, index: LogIndex, epoch: Epoch, record: Publish | PackedPublish, is_durable: bool
) -> Reply:
    messages = messages_of(record)
    if not messages:
        return DONE
    ids = ids_of(index, record.ordinal, len(messages))
    if record.transaction is not None:
        buffer = state.buffer_of(record.transaction, epoch)
        if buffer is None:
            return refused(state.outcome(record.transaction))
        shares = shares_of(messages, record.alike)
        if len(shares) > 1 or len(ids) > FEW_MESSAGES:
            state.spread += spread_of(shares, messages)
        if len(shares) > SHARES_AT_ONCE:
            state.do(reserve_in_steps(state, shares, 1))
        else:
            reserve(state, shares, 1)
        size = _total_size(shares, messages)
        state.contents.add(ids, messages, int(is_durable), int(not is_durable), size)
        buffer.touched.update([share.queue for share in shares])
        buffer.shares[index] = shares
        state.collect(buffer, PublishOperation(index, record.ordinal, len(messages), is_durable))
        return Reply(value=sum([share.length for share in shares]))
    # Outside a transaction a message's first position is its id.
    positions: Sequence[QueuePosition] = ids  # type: ignore[assignment]
    shares = shares_of(messages, record.alike)
    if len(shares) > SHARES_AT_ONCE:
        shares = [share for share in shares if share.queue in state.queues.by_id]
        state.do(_publish_in_steps(state, shares, positions, ids, messages, is_durable))
        return Reply(value=sum([share.length for share in shares]))
    batches = publish_at_once(state, shares, positions, ids, messages, is_durable)
    if state.listener is not None:
        for queue, given in batches:
            state.tell(state.listener.enqueued, queue, given)
    return Reply(value=sum(len(given) for _, given in batches))


def ids_of(index: LogIndex, ordinal: int, count: int) -> Sequence[MessageId]:
    """The ids of what a publish record brings. Of few, the same number objects serve everywhere."""
    ids = message_ids_from(index, ordinal, count)
    return ids if count >= RUN_MIN else list(ids)


def publish_at_once(
    state: SetState,
    shares: Sequence[Share],
    positions: Sequence[QueuePosition],
    ids: Sequence[MessageId],
    messages: Sequence[Message] | PackedMessages,
    is_durable: bool,
) -> Batches:
    """Put messages, which no transaction holds, into those of their queues that there are; answers what each queue got."""
    if len(shares) > 1 or len(ids) > FEW_MESSAGES:
        state.spread += spread_of(shares, messages)
    batches, references = enqueue(state, shares, positions, ids, is_durable)
    if batches:
        _keep(state, references, shares, ids, messages)
    return batches


def _publish_in_steps(
    state: SetState,
    shares: Sequence[Share],
    positions: Sequence[QueuePosition],
    ids: Sequence[MessageId],
    messages: Sequence[Message] | PackedMessages,
    is_durable: bool,
) -> Iterator[int]:
    """The same of many shares, whose queues there are, in steps that say what they cost (`Pieces`); the listener hears of it."""
    batches, references = yield from enqueue_in_steps(state, shares, positions, ids, is_durable)
    if batches:
        _keep(state, references, shares, ids, messages)
    if state.listener is not None:
        for queue, given in batches:
            state.tell(state.listener.enqueued, queue, given)
    yield len(ids)


def _keep(
    state: SetState,
    references: References,
    shares: Sequence[Share],
    ids: Sequence[MessageId],
    messages: Sequence[Message] | PackedMessages,
) -> None:
    """The contents of what has been put into queues."""
    if isinstance(references, tuple):
        durable, transient = references
        state.contents.add(ids, messages, durable, transient, _total_size(shares, messages))
        return
    assert not isinstance(messages, PackedMessages), "what is packed gets the same references"
    for message_id, message, counts in zip(ids, messages, references, strict=True):
        if counts != (0, 0):
            state.contents.add((message_id,), (message,), *counts, size_of(message))


def apply_dequeue(state: SetState, index: LogIndex, epoch: Epoch, record: Dequeue, is_durable: bool) -> Reply:
    queue = state.queues.by_id.get(record.queue)
    if record.transaction is not None:
        buffer = state.buffer_of(record.transaction, epoch)
        if buffer is None:
            return refused(state.outcome(record.transaction))
        if queue is not None:
            queue.lock(record.positions, buffer.key, is_durable)
        buffer.touched.add(record.queue)
        operation = DequeueOperation(
            index, record.ordinal, record.queue, record.positions, record.reason, is_durable
        )
        state.collect(buffer, operation)
        return Reply(value=len(record.positions))
    if queue is None:
        return DONE
    state.spread += len(record.positions) // POSITIONS_A_QUEUE
    removed = queue.remove(record.positions, is_durable)
    release(state.contents, removed)
    if state.listener is not None and removed.positions:
        state.tell(state.listener.dequeued, queue, removed.positions, record.reason, None)
    return Reply(value=len(removed.positions))


def apply_move(state: SetState, index: LogIndex, epoch: Epoch, record: Move, is_durable: bool) -> Reply:
    source = state.queues.by_id.get(record.queue)
    if source is None:
        return DONE
    work = _move_in_steps(state, index, source, record, is_durable)
    cost = moving_cost(len(record.positions), len(record.targets))
    if cost > MOVED_AT_ONCE or len(record.targets) > TARGETS_AT_ONCE:
        state.do(work)
        return DONE
    state.spread += cost
    for _ in work:
        pass
    return DONE


def moving_cost(positions: int, targets: int) -> int:
    """What it costs to move so many messages to so many targets, in queues that a publish goes to."""
    return positions * (MOVED_AS_TARGETS + targets)


def _move_in_steps(
    state: SetState, index: LogIndex, source: Queue, record: Move, is_durable: bool
) -> Iterator[int]:
    """Move some messages after the other, each to all of its targets, in steps that say what they cost (`Pieces`)."""
    first = place(index, record.ordinal)
    targets = [
        (target, record.expires_ms[number] if record.expires_ms else 0)
        for number, target_id in enumerate(record.targets)
        if (target := state.queues.by_id.get(target_id)) is not None
    ]
    yield len(targets)
    for begin in range(0, len(record.positions), MOVED_IN_ONE):
        positions = record.positions[begin : begin + MOVED_IN_ONE]
        moving = _Moving(state, source, record, positions, first + begin, is_durable)
        removed = source.remove(positions, is_durable)
        if state.listener is not None and removed.positions:
            state.tell(state.listener.dequeued, source, removed.positions, record.reason, None)
        cost = QUEUE_COST * MOVED_AS_TARGETS * len(positions)
        for target, expires_ms in targets if moving.ids else ():
            moving.put_into(target, expires_ms)
            cost += QUEUE_COST * len(moving.ids)
            if cost >= MOVING_COST_MAX:
                moving.hold()
                yield cost
                cost = 0
        moving.hold()
        release(state.contents, removed)
        yield cost


class _Moving:
    """Some of the messages that a record moves, from before they leave their queue until they are in all of the others."""

    def __init__(
        self,
        state: SetState,
        source: Queue,
        record: Move,
        positions: Sequence[QueuePosition],
        first: int,
        is_durable: bool,
    ) -> None:
        """`first`: the new position of the first one."""
        self._state = state
        self.ids: list[MessageId] = []
        self._positions: list[QueuePosition] = []
        self._are_durable: list[bool] = []
        self._levels: list[int] = []
        self._deaths: list[Deaths] = []
        self._annotations: dict[QueuePosition, bytes] = {}
        alike: dict[Deaths, Deaths] = {}
        """Those that are equal are one object."""
        for new, position in enumerate(positions, first):
            message_id = source.message_id(position)
            if message_id is None:
                continue
            is_entry_durable = source.is_entry_durable(position)
            if not is_durable and is_entry_durable:
                continue
            self.ids.append(message_id)
            self._positions.append(QueuePosition(new))
            self._are_durable.append(is_entry_durable)
            self._levels.append(source.priority(position))
            if record.time_ms:
                deaths = deaths_of(source, position, record.reason, record.time_ms)
                self._deaths.append(alike.setdefault(deaths, deaths))
            if position in source.annotations:
                self._annotations[QueuePosition(new)] = source.annotations[position]
        self._sizes = [state.contents.total_size((message_id,)) for message_id in self.ids]
        self._has_levels = self._levels.count(PRIORITY_DEFAULT) != len(self._levels)
        self._durable_targets = self._transient_targets = 0
        """That they were put into, and whose references are to be counted."""

    def put_into(self, target: Queue, expires_ms: int) -> None:
        """Put them to the end of one queue; they leave it at a time (TimeMs), 0: never. `hold` is behind it, in the same step."""
        state, positions = self._state, self._positions
        if target.is_durable:
            self._durable_targets += 1
        else:
            self._transient_targets += 1
        for position, message_id, size, is_entry_durable in zip(
            positions, self.ids, self._sizes, self._are_durable, strict=True
        ):
            target.append((position,), (message_id,), size, is_entry_durable)
            target.expiries[position] = expires_ms
        for position, deaths in zip(positions, self._deaths, strict=False):
            target.deaths[position] = deaths
        for position, said in self._annotations.items():
            target.annotations[position] = said
        if self._has_levels:
            target.prioritise(positions, self._levels)
        if state.listener is not None:
            state.tell(state.listener.enqueued, target, positions)

    def hold(self) -> None:
        """Count the references of all queues that they were put into since."""
        contents, durable, transient = self._state.contents, self._durable_targets, self._transient_targets
        if durable or transient:
            for message_id, is_entry_durable in zip(self.ids, self._are_durable, strict=True):
                if is_entry_durable:
                    contents.hold(message_id, durable, transient)
                else:
                    contents.hold(message_id, 0, durable + transient)
        self._durable_targets = self._transient_targets = 0


def apply_annotate(
    state: SetState, index: LogIndex, epoch: Epoch, record: Annotate, is_durable: bool
) -> Reply:
    queue = state.queues.by_id.get(record.queue)
    if queue is not None:
        queue.annotate(record.positions, record.annotations, is_durable)
    return DONE


def deaths_of(source: Queue, position: QueuePosition, reason: int, time_ms: int) -> Deaths:
    """Why a message will be a dead letter that leaves a queue at a time (TimeMs), for a `DequeueReason`."""
    if reason == DequeueReason.EXPIRED:
        died = DeathReason.EXPIRED
    else:
        died = DeathReason.DELIVERY_LIMIT if source.is_worn_out(position) else DeathReason.REJECTED
    return died_again(source.deaths.get(position, ()), source.name, died, time_ms)


def apply_requeue(state: SetState, index: LogIndex, epoch: Epoch, record: Requeue, is_durable: bool) -> Reply:
    queue = state.queues.by_id.get(record.queue)
    if queue is not None:
        state.spread += len(record.positions) // POSITIONS_A_QUEUE
        counted = queue.count_delivery(record.positions, is_durable)
        if state.listener is not None and counted:
            state.tell(state.listener.requeued, queue, counted)
    return DONE
