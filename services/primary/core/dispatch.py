"""Deliveries: which messages may go out, to whom, and who holds them. Nothing of it is in the log (DESIGN 3).

Law: a message goes out only when the commit index covers the record that made it visible, when no transaction has it locked, and
while nobody else holds it. What is held belongs to a session, not to its stream, until it is settled or the session ends. (A
browser takes nothing: what it is shown is told when all that it was read from is committed.)
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from lockstep.core.ids import LogIndex, MessageId, QueueId, QueuePosition, SessionKey, place
from lockstep.core.queues import Queue
from lockstep.core.taking_apart import emptied, length_of
from services.primary.core.queue_dispatch import Consumer, Delivery, Drained, QueueDispatch
from services.primary.core.queue_view import QueueView
from services.primary.core.read_back import Wanted
from services.primary.core.settings import PrimarySettings

RETURNED_IN_ONE = 1000
"""Messages that were given back and may go out from one moment on: a millisecond's work, or two."""
_APPENDED_AS_ONE = 4
"""What came to so many queues costs as much as a message that was given back."""


class _Dispatches(dict[QueueId, QueueDispatch]):
    """Made as they are needed: of many queues a new primary hears nothing for long."""

    def __init__(self, make: Callable[[QueueId], QueueDispatch]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, queue_id: QueueId) -> QueueDispatch:
        dispatch = self[queue_id] = self._make(queue_id)
        return dispatch


class Dispatch:
    """Lives as long as the epoch on its primary; driven by the primary core."""

    def __init__(self, queues: Mapping[QueueId, Queue], settings: PrimarySettings) -> None:
        """`queues`: those of the state, as they come and go."""
        self._settings = settings
        self._queues = _Dispatches(lambda queue_id: QueueDispatch(queues[queue_id], settings, self._holders))
        self._commit_index = LogIndex(0)
        self._invisible: deque[tuple[LogIndex, QueueId, Collection[QueuePosition]]] = deque()
        """Appended but not committed: (index of the record, queue, what it gave back)."""
        self._ready: dict[QueueId, None] = {}
        """Queues that may have something to deliver, in the order in which they got it."""
        self._hungry: dict[QueueId, None] = {}
        """Queues with views that wait for bodies, or soon will."""
        self._holders: dict[SessionKey, dict[QueueId, None]] = {}
        """Queues of which a session holds messages, or did."""
        self._exclusive: dict[SessionKey, dict[QueueId, None]] = {}
        """Queues that only one session may use."""
        self.too_costly: dict[str, int] = {}
        """By queue: how often a consumer's selector was not asked about a message to its end. Whoever tells of it clears it."""
        self.is_behind = False
        """Whether the last delivery went to so many consumers that others have their turn before it goes on."""
        self.is_returning = False
        """More is committed that came or was given back: `return_committed` goes on with it."""
        self._draining: dict[QueueId, None] = {}
        """Queues with drains that end behind that: what comes back may be for them."""
        for queue in queues.values():
            if queue.definition.exclusive_session:
                self.add_queue(queue)

    # --- queues and messages ---

    def add_queue(self, queue: Queue) -> None:
        """A queue is there."""
        owner = queue.definition.exclusive_session
        if owner:
            self._exclusive.setdefault(owner, {})[queue.id] = None

    def remove_queue(self, queue: Queue) -> list[Consumer]:
        """A queue is gone; answers the consumers that it had."""
        owner = queue.definition.exclusive_session
        if owner:
            # Its session may have ended before it.
            self._exclusive.get(owner, {}).pop(queue.id, None)
        dispatch = self._queues.pop(queue.id, None)
        if dispatch is None:
            return []
        for waiting in (self._ready, self._hungry, self._draining):
            waiting.pop(queue.id, None)
        dispatch.end()
        for session in dispatch.hands.by_session:
            del self._holders[session][queue.id]
        return list(dispatch.consumers)

    def appended(self, index: LogIndex, queue_id: QueueId) -> None:
        """The record at `index` made messages visible: from its commit on they may go out."""
        self._invisible.append((index, queue_id, ()))

    def gave_back(self, index: LogIndex, queue_id: QueueId, positions: Collection[QueuePosition]) -> None:
        """Records up to `index` gave messages back: from their commit on they may go out again, each in its old place."""
        self._queues[queue_id].hands.begin_return(positions)
        self._invisible.append((index, queue_id, positions))

    def committed(self, commit_index: LogIndex) -> None:
        """The commit index moved. What `is_returning` goes on by itself: one step does so much once."""
        self._commit_index = commit_index
        if self._invisible and not self.is_returning and self._invisible[0][0] <= commit_index:
            self.return_committed()

    def return_committed(self) -> None:
        """Some of what is committed, and came or was given back, may go out now; what lies behind the others waits for them."""
        commit_index, left = self._commit_index, RETURNED_IN_ONE * _APPENDED_AS_ONE
        self.is_returning = False
        # Of each queue at once: many sessions that end together give back what may be one queue's.
        visible: dict[QueueId, list[QueuePosition]] = {}
        while self._invisible and self._invisible[0][0] <= commit_index:
            if left <= 0:
                self.is_returning = True
                break
            _, queue_id, positions = self._invisible.popleft()
            visible.setdefault(queue_id, []).extend(positions)
            left -= 1 + len(positions) * _APPENDED_AS_ONE
        for queue_id, came_back in visible.items():
            dispatch = self._queues.get(queue_id)
            if dispatch is not None:
                dispatch.hands.end_return(came_back)
                self.returned(queue_id, came_back)
        if self._draining and not self.is_returning:
            self._ready.update(self._draining)
            self._draining.clear()

    def returned(self, queue_id: QueueId, positions: Collection[QueuePosition]) -> None:
        """Positions may go out (again); they take their old place in the queue."""
        dispatch = self._queues[queue_id]
        dispatch.returned(positions)
        if dispatch.consumers:
            self._ready[queue_id] = None

    # --- consumers ---

    def add_consumer(self, consumer: Consumer) -> None:
        self._queues[consumer.queue].add_consumer(consumer)
        self._ready[consumer.queue] = None

    def remove_consumer(self, consumer: Consumer) -> None:
        dispatch = self._queues.get(consumer.queue)
        if dispatch is not None:
            dispatch.remove_consumer(consumer)

    def consumer_count(self, queue_id: QueueId) -> int:
        """Of those that take messages: nobody minds a browser."""
        dispatch = self._queues.get(queue_id)
        return dispatch.taking if dispatch is not None else 0

    def consumer(self, queue_id: QueueId) -> Consumer | None:
        """The first of those, however many they are; None: there is none."""
        dispatch = self._queues.get(queue_id)
        consumers = dispatch.consumers if dispatch is not None else ()
        return next((consumer for consumer in consumers if not consumer.is_browser), None)

    def grant(self, consumer: Consumer, credit: int) -> None:
        """The client takes `credit` more messages."""
        consumer.credit = min(consumer.credit + credit, self._settings.consumer_credit_max)
        self._ready[consumer.queue] = None

    def drain(self, consumer: Consumer) -> None:
        """When its credit allows no more, or there is no more for it, what is left of it is taken back and told."""
        dispatch = self._queues.get(consumer.queue)
        if dispatch is not None:
            dispatch.drain(consumer)
            self._ready[consumer.queue] = None

    def pause(self, consumer: Consumer) -> None:
        """Nothing is delivered to it until `resume`."""
        consumer.is_paused = True

    def resume(self, consumer: Consumer) -> None:
        consumer.is_paused = False
        self._ready[consumer.queue] = None

    def exclude(
        self, session: SessionKey, number: int, queue_id: QueueId, positions: Collection[QueuePosition]
    ) -> None:
        """The session's consumer of that number is never offered these again; nothing if it has none (any more)."""
        self._queues[queue_id].exclude(session, number, positions)

    def was_shown(self, consumer: Consumer) -> None:
        """What waited for this browser is committed: it may be shown more."""
        consumer.is_awaiting = False
        if consumer.queue in self._queues:
            self._ready[consumer.queue] = None

    # --- holding ---

    def is_held_by(self, session: SessionKey, queue_id: QueueId, positions: Iterable[QueuePosition]) -> bool:
        """Whether the session holds all of these."""
        return self._queues[queue_id].hands.of(session).has_all(positions)

    def hold(self, session: SessionKey, queue_id: QueueId, positions: Collection[QueuePosition]) -> None:
        """The session held these when the epoch began: the last primary delivered them."""
        self._queues[queue_id].hold(session, positions)

    def is_held(self, queue_id: QueueId, position: QueuePosition) -> bool:
        dispatch = self._queues.get(queue_id)
        return dispatch is not None and position in dispatch.hands.held

    def held_count(self, queue_id: QueueId) -> int:
        dispatch = self._queues.get(queue_id)
        return len(dispatch.hands.held) if dispatch is not None else 0

    def let_go(self, session: SessionKey, queue_id: QueueId, positions: Collection[QueuePosition]) -> None:
        """The session does not hold these any more: they were settled, or its transaction locks them. Nobody is offered them."""
        self._queues[queue_id].hands.let_go(session, positions)

    def held_by(self, session: SessionKey) -> dict[QueueId, list[QueuePosition]]:
        """What a session holds, by queue, ascending."""
        return {
            queue_id: list(self._queues[queue_id].hands.of(session)) for queue_id in self.holds_in(session)
        }

    def held_in(self, session: SessionKey, queue_id: QueueId) -> Iterator[list[QueuePosition]]:
        """What a session holds of a queue, ascending and a few at a time; it may let go of those meanwhile."""
        return self._queues[queue_id].hands.of(session).parts()

    def holds_in(self, session: SessionKey) -> list[QueueId]:
        """Queues of which a session holds messages, by id."""
        return [
            queue_id for queue_id in self.held_once_in(session) if self._queues[queue_id].hands.of(session)
        ]

    def held_once_in(self, session: SessionKey) -> list[QueueId]:
        """The same, and those of which it did hold something and does not now."""
        return sorted(self._holders.get(session, ()))

    def held(self) -> Iterator[tuple[SessionKey, QueueId, Collection[QueuePosition]]]:
        """What sessions hold of which queues, by session and queue, each ascending; of some they did hold something, and do not
        now. Nobody changes it meanwhile.
        """
        for session in sorted(self._holders):
            for queue_id in sorted(self._holders[session]):
                yield session, queue_id, self._queues[queue_id].hands.of(session)

    def forget_session(self, session: SessionKey) -> None:
        """The session ended and holds nothing any more."""
        for queue_id in self._holders.pop(session, ()):
            left = self._queues[queue_id].hands.by_session.pop(session)
            assert not left, "an ended session holds messages"
        self._exclusive.pop(session, None)

    def exclusive_queues(self, session: SessionKey) -> list[QueueId]:
        """The queues that end with a session, ascending."""
        return sorted(self._exclusive.get(session, ()))

    def begin_leaving(self, queue_id: QueueId, positions: Collection[QueuePosition]) -> None:
        """These are about to leave the queue, and go to nobody, until `end_leaving`."""
        self._queues[queue_id].hands.leaving.update(positions)

    def not_leaving(self, queue_id: QueueId, positions: Sequence[QueuePosition]) -> Sequence[QueuePosition]:
        """Those of these that are not about to leave."""
        dispatch = self._queues.get(queue_id)
        if dispatch is None or not dispatch.hands.leaving:
            return positions
        leaving = dispatch.hands.leaving
        return [position for position in positions if position not in leaving]

    def end_leaving(self, queue_id: QueueId, positions: Collection[QueuePosition]) -> None:
        """They leave now, or are gone."""
        self._queues[queue_id].hands.leaving.difference_update(positions)

    def take_apart(self) -> Iterator[int]:
        """The epoch is over: leave nothing that is big, in steps that say what they cost (`taking_apart`)."""
        while self._queues:
            _, dispatch = self._queues.popitem()
            yield from dispatch.take_apart()
        yield from emptied(self._invisible, lambda made: len(made[2]) + 1)
        for each in (self._holders, self._exclusive):
            yield from emptied(each, length_of)

    # --- bodies that are away ---

    def take_hungry(self) -> list[QueueView]:
        """Views for which bodies are to be read back now; each is reading until it is `fed`."""
        if not self._hungry:
            return []
        hungry, self._hungry = self._hungry, {}
        found: list[QueueView] = []
        for queue_id in hungry:
            dispatch = self._queues[queue_id]
            found += dispatch.hungry
            dispatch.hungry = {}
        for view in found:
            view.is_reading = True
        return found

    def wanted(self, view: QueueView, select: Callable[[Iterable[MessageId]], Wanted]) -> Wanted:
        """What a hungry view wants, of which `select` takes as much as one request brings."""
        if view.is_gone:
            return {}
        ahead = view.ahead()
        wanted = select(ahead)
        view.reads_from(ahead[next(iter(wanted))] if wanted else None)
        return wanted

    def fed(self, view: QueueView) -> None:
        """What it wanted is here."""
        view.is_reading = False
        if not view.is_gone:
            self._ready[view.queue.id] = None

    # --- delivering ---

    def deliver(self, log_end: LogIndex, ended_ms: int) -> list[Delivery | Drained]:
        """Hand out what can go out now: every ready queue, round robin over its consumers with credit; some, if it is much.

        `ended_ms`: messages may be there whose time was up by then (TimeMs); 0: there are none.
        """
        is_all_committed = log_end <= self._commit_index
        out: list[Delivery | Drained] = []
        left = self._settings.delivery_turn_max
        end = place(self._commit_index + 1, 0)
        most = self._settings.deliveries_max
        while self._ready and left > 0 and len(out) < most:
            queue_id = next(iter(self._ready))
            dispatch = self._queues[queue_id]
            left -= dispatch.deliver(left, end, is_all_committed, ended_ms, out, not self.is_returning)
            if self.is_returning and dispatch.is_draining:
                self._draining[queue_id] = None
            if dispatch.hands.too_costly:
                name = dispatch.queue.name
                self.too_costly[name] = self.too_costly.get(name, 0) + dispatch.hands.too_costly
                dispatch.hands.too_costly = 0
            if dispatch.hungry:
                self._hungry[queue_id] = None
            del self._ready[queue_id]
            if left <= 0 or len(out) >= most:
                # Not done perhaps: others first, the next time.
                self._ready[queue_id] = None
        self.is_behind = len(out) >= most
        return out
