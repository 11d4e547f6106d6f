"""Deliveries: which messages may go out, to whom, and who holds them. Nothing of it is in the log (DESIGN 3).

Law: a message goes out only when the commit index covers the record that made it visible, when no transaction has it locked, and
while nobody else holds it. What is held belongs to a session, not to its stream, until it is settled or the session ends.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from lockstep.core.commands import DeliveredMessage
from lockstep.core.ids import LogIndex, QueueId, QueuePosition, SessionKey
from lockstep.core.queues import Queue


@dataclass(slots=True)
class Consumer:
    """One consumer of one client stream; ends with it."""

    stream: int
    number: int
    """The client's name for it."""
    session: SessionKey
    queue: QueueId
    credit: int
    is_exclusive: bool


@dataclass(slots=True)
class Delivery:
    """What goes to one consumer in one message."""

    consumer: Consumer
    queue: Queue
    messages: tuple[DeliveredMessage, ...]


@dataclass(slots=True)
class _QueueDispatch:
    """The delivery side of one queue."""

    queue: Queue
    available: list[QueuePosition]
    """Heap of positions that may go out; may name some that left or are held meanwhile: checked when taken."""
    held: dict[QueuePosition, SessionKey] = field(default_factory=dict)
    consumers: deque[Consumer] = field(default_factory=deque)


class Dispatch:
    """Lives as long as the epoch on its primary; driven by the primary core."""

    def __init__(self, queues: Iterable[Queue], delivery_batch_max: int, delivery_bytes_max: int) -> None:
        self._batch_max = delivery_batch_max
        self._bytes_max = delivery_bytes_max
        self._queues: dict[QueueId, _QueueDispatch] = {}
        self._invisible: deque[tuple[LogIndex, QueueId, Sequence[QueuePosition]]] = deque()
        """Appended but not committed: (index of the record, queue, positions)."""
        self._ready: dict[QueueId, None] = {}
        """Queues that may have something to deliver, in the order in which they got it."""
        self._held_by: dict[SessionKey, dict[tuple[QueueId, QueuePosition], None]] = {}
        for queue in queues:
            self.add_queue(queue, queue.positions())

    # --- queues and messages ---

    def add_queue(self, queue: Queue, positions: Sequence[QueuePosition] = ()) -> None:
        """A queue is there, with messages that are visible already."""
        self._queues[queue.id] = _QueueDispatch(queue, list(positions))

    def remove_queue(self, queue_id: QueueId) -> list[Consumer]:
        """A queue is gone; answers the consumers that it had."""
        dispatch = self._queues.pop(queue_id)
        self._ready.pop(queue_id, None)
        for position, session in dispatch.held.items():
            self._held_by[session].pop((queue_id, position), None)
        return list(dispatch.consumers)

    def appended(self, index: LogIndex, queue_id: QueueId, positions: Sequence[QueuePosition]) -> None:
        """A record made messages visible: from its commit on they may go out."""
        self._invisible.append((index, queue_id, positions))

    def committed(self, commit_index: LogIndex) -> None:
        """The commit index moved."""
        while self._invisible and self._invisible[0][0] <= commit_index:
            _, queue_id, positions = self._invisible.popleft()
            self.returned(queue_id, positions)

    def returned(self, queue_id: QueueId, positions: Sequence[QueuePosition]) -> None:
        """Positions may go out (again); they take their old place in the queue."""
        dispatch = self._queues.get(queue_id)
        if dispatch is None or not positions:
            return
        if dispatch.available:
            for position in positions:
                heappush(dispatch.available, position)
        else:
            dispatch.available = list(positions)
            heapify(dispatch.available)
        if dispatch.consumers:
            self._ready[queue_id] = None

    # --- consumers ---

    def add_consumer(self, consumer: Consumer) -> None:
        self._queues[consumer.queue].consumers.append(consumer)
        self._ready[consumer.queue] = None

    def remove_consumer(self, consumer: Consumer) -> None:
        dispatch = self._queues.get(consumer.queue)
        if dispatch is not None and consumer in dispatch.consumers:
            dispatch.consumers.remove(consumer)

    def consumers(self, queue_id: QueueId) -> Sequence[Consumer]:
        return tuple(self._queues[queue_id].consumers)

    def grant(self, consumer: Consumer, credit: int) -> None:
        """The client takes `credit` more messages."""
        consumer.credit += credit
        self._ready[consumer.queue] = None

    # --- holding ---

    def is_held_by(self, session: SessionKey, queue_id: QueueId, positions: Iterable[QueuePosition]) -> bool:
        """Whether the session holds all of these."""
        held = self._queues[queue_id].held
        return all(held.get(position) == session for position in positions)

    def is_held(self, queue_id: QueueId, position: QueuePosition) -> bool:
        return position in self._queues[queue_id].held

    def held_count(self, queue_id: QueueId) -> int:
        return len(self._queues[queue_id].held)

    def let_go(self, session: SessionKey, queue_id: QueueId, positions: Iterable[QueuePosition]) -> None:
        """The session no longer holds these: they were settled, or are locked by its transaction. They are not offered again."""
        held, mine = self._queues[queue_id].held, self._held_by.get(session, {})
        for position in positions:
            del held[position], mine[queue_id, position]

    def held_by(self, session: SessionKey) -> dict[QueueId, list[QueuePosition]]:
        """What a session holds, by queue, ascending."""
        found: dict[QueueId, list[QueuePosition]] = {}
        for queue_id, position in sorted(self._held_by.get(session, ())):
            found.setdefault(queue_id, []).append(position)
        return found

    def forget_session(self, session: SessionKey) -> None:
        """The session ended and holds nothing any more."""
        assert not self._held_by.pop(session, None), "an ended session holds messages"

    # --- delivering ---

    def deliver(self) -> list[Delivery]:
        """Hand out what can go out now: every ready queue, round robin over its consumers with credit."""
        deliveries: list[Delivery] = []
        for queue_id in list(self._ready):
            del self._ready[queue_id]
            dispatch = self._queues.get(queue_id)
            if dispatch is not None:
                self._deliver_queue(dispatch, deliveries)
        return deliveries

    def _deliver_queue(self, dispatch: _QueueDispatch, deliveries: list[Delivery]) -> None:
        idle = 0
        while dispatch.available and idle < len(dispatch.consumers):
            consumer = dispatch.consumers[0]
            dispatch.consumers.rotate(-1)
            if consumer.credit <= 0:
                idle += 1
                continue
            messages = self._take(dispatch, consumer)
            if not messages:
                return
            idle = 0
            deliveries.append(Delivery(consumer, dispatch.queue, messages))

    def _take(self, dispatch: _QueueDispatch, consumer: Consumer) -> tuple[DeliveredMessage, ...]:
        queue, available, held = dispatch.queue, dispatch.available, dispatch.held
        mine = self._held_by.setdefault(consumer.session, {})
        taken: list[DeliveredMessage] = []
        size = 0
        limit = min(consumer.credit, self._batch_max)
        while available and len(taken) < limit and size < self._bytes_max:
            position = heappop(available)
            message = queue.message(position)
            if message is None or position in held or position in queue.locks:
                continue
            held[position] = consumer.session
            mine[(queue.id, position)] = None
            size += len(message.body) + len(message.properties)
            taken.append(delivered(queue, position))
        consumer.credit -= len(taken)
        return tuple(taken)


def delivered(queue: Queue, position: QueuePosition) -> DeliveredMessage:
    """A message as clients get it."""
    message = queue.message(position)
    assert message is not None, (queue, position)
    return DeliveredMessage(
        position,
        message.properties,
        message.body,
        queue.delivery_count(position),
        queue.expires_ms(position),
        queue.is_entry_durable(position),
    )
