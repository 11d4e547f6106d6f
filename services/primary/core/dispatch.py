"""Deliveries: which messages may go out, to whom, and who holds them. Nothing of it is in the log (DESIGN 3).

Law: a message goes out only when the commit index covers the record that made it visible, when no transaction has it locked, and
while nobody else holds it. What is held belongs to a session, not to its stream, until it is settled or the session ends.

Nothing is kept for a message that waits: a cursor goes along the queue, and only what came back behind it is remembered. It stops
at a message whose body is away, so that none overtakes it, until the queue is fed.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, nsmallest

from lockstep.core.ids import LogIndex, MessageId, QueueId, QueuePosition, SessionKey, place
from lockstep.core.queues import Queue
from lockstep.core.records import Message
from lockstep.core.server_messages import DeliveredMessage
from services.primary.core.read_back import Wanted
from services.primary.core.settings import PrimarySettings


@dataclass(slots=True, eq=False)
class Consumer:
    """One consumer of one client stream; ends with it."""

    stream: int
    number: int
    """The client's name for it."""
    session: SessionKey
    queue: QueueId
    credit: int
    is_exclusive: bool
    is_paused: bool = False
    """Its stream has enough to write: it gets nothing, whatever its credit."""


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
    cursor: int = 0
    """The highest position that was looked at."""
    back: list[QueuePosition] = field(default_factory=list)
    """Heap of positions up to the cursor that may go out again; may name some that left meanwhile, or one twice."""
    coming_back: set[QueuePosition] = field(default_factory=set)
    """Given back by records that are not committed: a successor without them may still have them locked (P3)."""
    held: dict[QueuePosition, SessionKey] = field(default_factory=dict)
    consumers: deque[Consumer] = field(default_factory=deque)
    is_stalled: bool = False
    """The last `take` ended at a message whose body is away."""
    is_reading: bool = False
    """Bodies are being read back for it."""
    read_from: int = 0
    """From here on bodies were read back the last time: when this is reached, the next ones are asked for. 0: none were."""

    def take(self, limit: int, bytes_max: int, end: int) -> list[tuple[QueuePosition, Message]]:
        """The next messages below `end` that are free, at most `limit`, cut behind `bytes_max`; they are nobody's yet."""
        queue, back, locks, coming_back = self.queue, self.back, self.queue.locks, self.coming_back
        taken: list[tuple[QueuePosition, Message]] = []
        size = 0
        self.is_stalled = False
        while back and len(taken) < limit and size < bytes_max:
            position = heappop(back)
            is_repeated = bool(taken) and taken[-1][0] == position
            is_taken = position in self.held or position in locks or position in coming_back or is_repeated
            if position in queue.entries and not is_taken:
                message = queue.message(position)
                if message is None:
                    heappush(back, position)
                    self.is_stalled = True
                    return taken
                taken.append((position, message))
                size += len(message.body) + len(message.properties)
        while len(taken) < limit and size < bytes_max:
            found = queue.positions(self.cursor + 1, limit - len(taken))
            messages = queue.messages(found)
            for position, message in zip(found, messages, strict=False):
                if position >= end or size >= bytes_max:
                    return taken
                self.cursor = position
                if position not in locks and position not in coming_back:
                    taken.append((position, message))
                    size += len(message.body) + len(message.properties)
            if len(messages) < len(found):
                position = found[len(messages)]
                if position >= end:
                    break
                if position not in locks and position not in coming_back:
                    self.is_stalled = True
                    break
                self.cursor = position
            elif not found:
                break
        return taken

    def ahead(self) -> dict[MessageId, QueuePosition]:
        """What will go out next, in that order, as far as it is worth looking."""
        entries, locks, coming_back = self.queue.entries, self.queue.locks, self.coming_back
        back = nsmallest(_LOOK_AHEAD, self.back)
        return {
            entries[position]: position
            for position in (*back, *self.queue.positions(self.cursor + 1, _LOOK_AHEAD))
            if position in entries and position not in locks and position not in coming_back
        }


class Dispatch:
    """Lives as long as the epoch on its primary; driven by the primary core."""

    def __init__(self, queues: Iterable[Queue], settings: PrimarySettings) -> None:
        self._settings = settings
        self._queues: dict[QueueId, _QueueDispatch] = {}
        self._commit_index = LogIndex(0)
        self._invisible: deque[tuple[LogIndex, QueueId, Collection[QueuePosition]]] = deque()
        """Appended but not committed: (index of the record, queue, what it gave back)."""
        self._ready: dict[QueueId, None] = {}
        """Queues that may have something to deliver, in the order in which they got it."""
        self._hungry: dict[QueueId, None] = {}
        """Queues that wait for bodies, or soon will."""
        self._holders: dict[SessionKey, dict[QueueId, None]] = {}
        """Queues of which a session holds messages, or did."""
        for queue in queues:
            self.add_queue(queue)

    # --- queues and messages ---

    def add_queue(self, queue: Queue) -> None:
        """A queue is there."""
        self._queues[queue.id] = _QueueDispatch(queue)

    def remove_queue(self, queue_id: QueueId) -> list[Consumer]:
        """A queue is gone; answers the consumers that it had."""
        dispatch = self._queues.pop(queue_id)
        self._ready.pop(queue_id, None)
        self._hungry.pop(queue_id, None)
        return list(dispatch.consumers)

    def appended(self, index: LogIndex, queue_id: QueueId) -> None:
        """The record at `index` made messages visible: from its commit on they may go out."""
        self._invisible.append((index, queue_id, ()))

    def gave_back(self, index: LogIndex, queue_id: QueueId, positions: Collection[QueuePosition]) -> None:
        """Records up to `index` gave messages back: from their commit on they may go out again, each in its old place."""
        self._queues[queue_id].coming_back.update(positions)
        self._invisible.append((index, queue_id, positions))

    def committed(self, commit_index: LogIndex) -> None:
        """The commit index moved."""
        self._commit_index = commit_index
        while self._invisible and self._invisible[0][0] <= commit_index:
            _, queue_id, positions = self._invisible.popleft()
            dispatch = self._queues.get(queue_id)
            if dispatch is not None:
                dispatch.coming_back.difference_update(positions)
                self.returned(queue_id, positions)

    def returned(self, queue_id: QueueId, positions: Iterable[QueuePosition]) -> None:
        """Positions may go out (again); they take their old place in the queue."""
        dispatch = self._queues[queue_id]
        for position in positions:
            if position <= dispatch.cursor:
                heappush(dispatch.back, position)
        if dispatch.consumers:
            self._ready[queue_id] = None
        if len(dispatch.back) > 2 * dispatch.queue.length + _SLACK:
            dispatch.back = sorted(dispatch.queue.entries.keys() & set(dispatch.back))

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
        consumer.credit = min(consumer.credit + credit, self._settings.consumer_credit_max)
        self._ready[consumer.queue] = None

    def pause(self, consumer: Consumer) -> None:
        """Nothing is delivered to it until `resume`."""
        consumer.is_paused = True

    def resume(self, consumer: Consumer) -> None:
        consumer.is_paused = False
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

    def let_go(self, queue_id: QueueId, positions: Iterable[QueuePosition]) -> None:
        """Whoever holds these no longer does: they were settled, or are locked by its transaction. They are not offered again."""
        held = self._queues[queue_id].held
        for position in positions:
            del held[position]

    def held_by(self, session: SessionKey) -> dict[QueueId, list[QueuePosition]]:
        """What a session holds, by queue, ascending."""
        found = {}
        for queue_id in sorted(self._holders.get(session, ())):
            dispatch = self._queues.get(queue_id)
            held = dispatch.held.items() if dispatch is not None else ()
            positions = sorted(position for position, holder in held if holder == session)
            if positions:
                found[queue_id] = positions
        return found

    def holders(self) -> list[SessionKey]:
        """Sessions that hold messages."""
        return sorted({session for dispatch in self._queues.values() for session in dispatch.held.values()})

    def forget_session(self, session: SessionKey) -> None:
        """The session ended and holds nothing any more."""
        assert not self.held_by(session), "an ended session holds messages"
        self._holders.pop(session, None)

    # --- bodies that are away ---

    def take_hungry(self) -> list[QueueId]:
        """Queues for which bodies are to be read back now; each is reading until it is `fed`."""
        if not self._hungry:
            return []
        hungry, self._hungry = self._hungry, {}
        found = [queue_id for queue_id in hungry if not self._queues[queue_id].is_reading]
        for queue_id in found:
            self._queues[queue_id].is_reading = True
        return found

    def wanted(self, queue_id: QueueId, select: Callable[[Iterable[MessageId]], Wanted]) -> Wanted:
        """What a hungry queue wants, of which `select` takes as much as one request brings."""
        dispatch = self._queues.get(queue_id)
        if dispatch is None:
            return {}
        ahead = dispatch.ahead()
        wanted = select(ahead)
        dispatch.read_from = ahead[next(iter(wanted))] if wanted else 0
        return wanted

    def fed(self, queue_id: QueueId) -> None:
        """What it wanted is here."""
        dispatch = self._queues.get(queue_id)
        if dispatch is not None:
            dispatch.is_reading = False
            self._ready[queue_id] = None

    # --- delivering ---

    def deliver(self) -> list[Delivery]:
        """Hand out what can go out now: every ready queue, round robin over its consumers with credit; some, if it is much."""
        deliveries: list[Delivery] = []
        left = self._settings.delivery_turn_max
        while self._ready and left > 0:
            queue_id = next(iter(self._ready))
            left -= self._deliver_queue(self._queues[queue_id], left, deliveries)
            del self._ready[queue_id]
            if left <= 0:
                # Not done perhaps: others first, the next time.
                self._ready[queue_id] = None
        return deliveries

    def _deliver_queue(self, dispatch: _QueueDispatch, turn_max: int, deliveries: list[Delivery]) -> int:
        """Deliver of one queue about as many messages as `turn_max`; answers how many."""
        settings = self._settings
        end = place(self._commit_index + 1, 0)
        idle = delivered = 0
        while idle < len(dispatch.consumers) and delivered < turn_max:
            consumer = dispatch.consumers[0]
            dispatch.consumers.rotate(-1)
            if consumer.credit <= 0 or consumer.is_paused:
                idle += 1
                continue
            limit = min(consumer.credit, settings.delivery_batch_max)
            taken = dispatch.take(limit, settings.delivery_bytes_max, end)
            if dispatch.is_stalled or (dispatch.read_from and dispatch.cursor >= dispatch.read_from):
                self._hungry[dispatch.queue.id] = None
            if not taken:
                break
            idle = 0
            delivered += len(taken)
            consumer.credit -= len(taken)
            session, queue = consumer.session, dispatch.queue
            dispatch.held.update(dict.fromkeys([position for position, _ in taken], session))
            self._holders.setdefault(session, {})[queue.id] = None
            deliveries.append(Delivery(consumer, queue, delivered_messages(queue, taken)))
        return delivered


_LOOK_AHEAD = 4096
"""Positions ahead of the consumers that are looked through for bodies to read back: some batches."""
_SLACK = 64
"""Positions that came back and left since, and that nobody has to clear away yet."""


def delivered_messages(
    queue: Queue, messages: Iterable[tuple[QueuePosition, Message]]
) -> tuple[DeliveredMessage, ...]:
    """Messages that are there as clients get them."""
    counts, is_all_durable = queue.delivery_counts, queue.is_durable and not queue.transient_positions
    return tuple(
        [
            DeliveredMessage(
                position,
                message.properties,
                message.body,
                counts.get(position, 0) if counts else 0,
                queue.expires_ms(position) if queue.expiries else message.expires_ms,
                is_all_durable or queue.is_entry_durable(position),
            )
            for position, message in messages
        ]
    )
