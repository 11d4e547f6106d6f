"""The delivery side of one queue: its consumers, and the views through which they look at it.

Law: consumers have their turns one after the other, and each message goes to whose turn it is when it is free. A consumer that
chooses (by a selector, or because it was excluded from messages) has a view of its own, as has a browser; all others share one.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from lockstep.core.amqp.selector import Selector
from lockstep.core.asides import PLAIN, Aside
from lockstep.core.ids import QueueId, QueuePosition, SessionKey
from lockstep.core.position_sets import PositionSet
from lockstep.core.queues import Queue
from lockstep.core.records import Message
from lockstep.core.server_messages import DeliveredMessage
from lockstep.core.taking_apart import emptied
from services.primary.core.browsing_view import BrowsingView
from services.primary.core.choosing_view import ChoosingView
from services.primary.core.hands import Hands
from services.primary.core.queue_view import Offered, QueueView
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
    selector: Selector | None = None
    """None: all messages."""
    is_browser: bool = False
    """It is shown copies and takes nothing."""
    after: QueuePosition | None = None
    """Behind which position a browser begins; None: at the head."""
    is_awaiting: bool = False
    """What a browser is shown next waits to be committed, and nothing more is read for it meanwhile."""
    drains: int = 0
    """Drains that are not answered."""
    view: QueueView | None = None
    """From `add_consumer` on."""


@dataclass(slots=True)
class Delivery:
    """What goes to one consumer in one message."""

    consumer: Consumer
    queue: Queue
    messages: tuple[DeliveredMessage, ...]


@dataclass(slots=True)
class Drained:
    """A consumer got what it could, and lost the rest of its credit, `credit`; in answer to so many drains."""

    consumer: Consumer
    credit: int
    drains: int


class QueueDispatch:
    """Lives as long as the queue, within an epoch; driven by `Dispatch`."""

    __slots__ = (
        "_draining",
        "_holders",
        "_main",
        "_own_views",
        "_settings",
        "consumers",
        "hands",
        "hungry",
        "queue",
        "taking",
    )

    def __init__(
        self, queue: Queue, settings: PrimarySettings, holders: dict[SessionKey, dict[QueueId, None]]
    ) -> None:
        """`holders`: of which queues a session holds messages, or did; it is told."""
        self._settings = settings
        self._holders = holders
        self.queue = queue
        self.hands = Hands(queue)
        self._main = QueueView(self.hands)
        self._own_views: dict[QueueView, None] = {}
        """Of consumers that have one."""
        self.consumers: OrderedDict[Consumer, None] = OrderedDict()
        """In the order of their turns."""
        self.taking = 0
        """Of them, those that are no browsers."""
        self._draining: dict[Consumer, None] = {}
        self.hungry: dict[QueueView, None] = {}
        """Views that wait for bodies, or soon will, and are not reading."""

    # --- consumers ---

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        self.taking += not consumer.is_browser
        consumer.view = self._main
        if consumer.is_browser:
            self._give_view(consumer, BrowsingView(self.hands, consumer.selector, consumer.after))
        elif consumer.selector is not None:
            self._give_view(consumer, ChoosingView(self.hands, consumer.selector))

    def _give_view(self, consumer: Consumer, view: QueueView) -> None:
        consumer.view = view
        self._own_views[view] = None

    def remove_consumer(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            del self.consumers[consumer]
            self.taking -= not consumer.is_browser
            self._draining.pop(consumer, None)
            view = consumer.view
            if view is not None and view is not self._main:
                view.is_gone = True
                self.hungry.pop(view, None)
                self._own_views.pop(view, None)

    def end(self) -> None:
        """The queue is gone."""
        for view in (self._main, *self._own_views):
            view.is_gone = True

    def take_apart(self) -> Iterator[int]:
        """The epoch is over: leave nothing that is big, in steps that say what they cost (`taking_apart`)."""
        yield from self.hands.take_apart()
        for view in (self._main, *self._own_views):
            yield from view.take_apart()
        yield from emptied(self.consumers)

    @property
    def is_draining(self) -> bool:
        """Whether a drain is not answered."""
        return bool(self._draining)

    def drain(self, consumer: Consumer) -> None:
        """Tell with the next delivery that can be, when all of it was delivered that its credit allows."""
        consumer.drains += 1
        self._draining[consumer] = None

    def exclude(self, session: SessionKey, number: int, positions: Collection[QueuePosition]) -> None:
        """Never offer these to that consumer again."""
        for consumer in self.consumers:
            if consumer.session == session and consumer.number == number and not consumer.is_browser:
                view = consumer.view
                if not isinstance(view, ChoosingView):
                    view = ChoosingView(self.hands, None)
                    view.begin_as(self._main)
                    self._give_view(consumer, view)
                view.exclude(positions)

    # --- messages ---

    def returned(self, positions: Collection[QueuePosition]) -> None:
        """They are free (again)."""
        self._main.come_back(positions)
        for view in self._own_views:
            view.come_back(positions)

    def deliver(
        self,
        turn_max: int,
        end: int,
        is_all_committed: bool,
        ended_ms: int,
        out: list[Delivery | Drained],
        may_end_drains: bool,
    ) -> int:
        """Hand out about as many messages below position `end` as `turn_max`; answers what it cost, in messages.

        `is_all_committed`: `end` is the log's; otherwise a browser awaits what it gets. `may_end_drains`: nothing that is
        committed is yet to come back.
        `ended_ms`: whose time was up by then (TimeMs) goes to nobody; 0: of nobody it is.
        """
        settings, consumers = self._settings, self.consumers
        spent: set[QueueView] = set()
        idle = cost = 0
        while idle < len(consumers) and cost < turn_max and len(out) < settings.deliveries_max:
            consumer = next(iter(consumers))
            consumers.move_to_end(consumer)
            view = consumer.view
            assert view is not None, "a consumer has a view from its first moment on"
            if consumer.credit <= 0 or consumer.is_paused or consumer.is_awaiting or view in spent:
                idle += 1
                continue
            limit = min(consumer.credit, settings.delivery_batch_max)
            taken = view.take(limit, settings.delivery_bytes_max, end, turn_max - cost)
            cost += view.looked
            if (view.is_stalled or view.read_from) and view.is_hungry and not view.is_reading:
                self.hungry[view] = None
            if ended_ms and not consumer.is_browser:
                taken = self._still_going(taken, ended_ms)
            if taken:
                idle = 0
                consumer.credit -= len(taken)
                if consumer.is_browser:
                    consumer.is_awaiting = not is_all_committed
                else:
                    self._hold(consumer.session, [position for position, _ in taken])
                out.append(Delivery(consumer, self.queue, delivered_messages(self.queue, taken)))
            elif view.is_at_end or view.is_stalled or view.is_barred:
                spent.add(view)
                if not self._own_views:
                    break
                idle += 1
        if self._draining and may_end_drains:
            self._finish_drains(spent, out)
        return cost

    def _still_going(self, taken: Offered, ended_ms: int) -> Offered:
        """Those whose time is not up: the others are passed by, and wait for nothing but their expiry."""
        moved = self.queue.expiries
        return [
            (position, message)
            for position, message in taken
            if not 0 < moved.get(position, message.expires_ms) <= ended_ms
        ]

    def hold(self, session: SessionKey, positions: Collection[QueuePosition]) -> None:
        """A session holds these, which no view has come to yet."""
        self._hold(session, positions)
        self.hands.held_to = max(self.hands.held_to, max(positions, default=0))

    def _hold(self, session: SessionKey, positions: Collection[QueuePosition]) -> None:
        hands = self.hands
        if session not in hands.by_session:
            hands.by_session[session] = PositionSet()
            self._holders.setdefault(session, {})[self.queue.id] = None
        hands.hold(session, positions)

    def _finish_drains(self, spent: set[QueueView], out: list[Delivery | Drained]) -> None:
        """Those that have no credit, or whose view has nothing more for them."""
        for consumer in list(self._draining):
            view = consumer.view
            is_done = consumer.credit <= 0 or (view in spent and view is not None and view.is_at_end)
            if is_done and not consumer.is_paused and not consumer.is_awaiting:
                out.append(Drained(consumer, consumer.credit, consumer.drains))
                consumer.credit = consumer.drains = 0
                del self._draining[consumer]


def delivered_messages(
    queue: Queue, messages: Iterable[tuple[QueuePosition, Message]]
) -> tuple[DeliveredMessage, ...]:
    """Messages that are there as clients get them."""
    is_all_durable = queue.is_durable and not queue.transient_positions.pages
    is_any_moved = bool(queue.expiries.pages)
    counts = queue.delivery_counts
    has_asides = queue.deaths.pages or queue.annotations.pages or queue.priorities is not None
    if is_all_durable and not (is_any_moved or counts.pages or has_asides):
        # Nearly always.
        return tuple(
            [
                DeliveredMessage(position, message.properties, message.body, 0, message.expires_ms, True)
                for position, message in messages
            ]
        )
    found = [
        DeliveredMessage(
            position,
            message.properties,
            message.body,
            counts.get(position, 0) if counts.pages else 0,
            queue.expires_ms(position) if is_any_moved else message.expires_ms,
            is_all_durable or queue.is_entry_durable(position),
        )
        for position, message in messages
    ]
    if has_asides:
        asides = [_aside(queue, each.position) for each in found]
        found = [
            replace(each, aside=aside) if aside != PLAIN else each
            for each, aside in zip(found, asides, strict=True)
        ]
    return tuple(found)


def _aside(queue: Queue, position: QueuePosition) -> Aside:
    deaths, annotations = queue.deaths.get(position, ()), queue.annotations.get(position, b"")
    return Aside(deaths, annotations, queue.priority(position))
