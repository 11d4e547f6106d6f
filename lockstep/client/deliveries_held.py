"""Consumers of one session and the deliveries in its hands.

Law: a delivery is named by (queue, epoch, position) and held from its arrival until a settle names it; it is void when its epoch
is over, unless that was handed over (DESIGN T6). A consumer's credit is what was granted less what arrived.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from lockstep.client.session_events import AllVoided, Effect, HeldByQueue
from lockstep.core.commands import SettleCommand
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.requests import (
    AnyRequest,
    DrainConsumer,
    HeldDeliveries,
    OpenConsumer,
    UnansweredSettle,
)
from lockstep.core.server_messages import DeliveredMessage, Deliveries


@dataclass(slots=True)
class Consumer:
    """From `StartConsuming` to its end, over any number of streams."""

    queue: str
    credit: int
    is_exclusive: bool
    selector: str = ""
    is_browser: bool = False
    after: QueuePosition | None = None
    """What a browser was shown last."""
    drains: int = 0
    """Drains that are not answered."""

    def opening(self, number: int) -> OpenConsumer:
        """What opens it, with the credit that it has."""
        return OpenConsumer(
            number,
            self.queue,
            self.credit,
            self.is_exclusive,
            self.selector,
            self.is_browser,
            self.after or QueuePosition(0),
        )


class DeliveriesHeld:
    """Lives as long as the session core, which drives it."""

    def __init__(self) -> None:
        self.consumers: dict[int, Consumer] = {}
        self.epoch = Epoch(0)
        """Of what arrives."""
        self.kept_from = Epoch(0)
        """What arrived in epochs before it is void."""
        self._held: HeldByQueue = {}
        """What has arrived in this epoch."""
        self._earlier: dict[Epoch, HeldByQueue] = {}
        """What has arrived in epochs before and was handed over, by epoch. Nothing is held twice."""

    def openings(self) -> list[AnyRequest]:
        """What opens the consumers again, with the credit that they still have."""
        return [consumer.opening(number) for number, consumer in sorted(self.consumers.items())]

    def drains(self) -> list[AnyRequest]:
        """What drains those again that were to be drained: behind what was given back before."""
        requests: list[AnyRequest] = []
        for number, consumer in sorted(self.consumers.items()):
            requests += [DrainConsumer(number)] * consumer.drains
        return requests

    def deliver(self, deliveries: Deliveries) -> bool:
        """Takes deliveries in; False: nobody wants them any more, and they are not held."""
        consumer = self.consumers.get(deliveries.consumer)
        if consumer is None:
            return False
        consumer.credit = max(0, consumer.credit - len(deliveries.messages))
        if deliveries.are_copies:
            consumer.after = deliveries.messages[-1].position
            return True
        held = self._held.setdefault(deliveries.queue, {})
        number = deliveries.consumer
        for message in deliveries.messages:
            held[message.position] = number
        return True

    def drained(self, number: int, credit: int) -> bool:
        """Takes in that a consumer lost `credit`; False: nobody waits for it."""
        consumer = self.consumers.get(number)
        if consumer is None or not consumer.drains:
            return False
        consumer.drains -= 1
        consumer.credit = max(0, consumer.credit - credit)
        return True

    def settle(self, command: SettleCommand) -> None:
        """A settle was submitted: what it names is no longer in hand."""
        epoch = command.delivery_epoch
        arrived = self._held if epoch == self.epoch else self._earlier.get(epoch, {})
        if (held := arrived.get(command.queue)) is not None:
            for position in command.positions:
                held.pop(position, None)
            if not held:
                del arrived[command.queue]
                if not arrived:
                    self._earlier.pop(epoch, None)

    def take_back(self, command: SettleCommand) -> None:
        """A settle was rejected, or left these to be said again: none of what it names is settled."""
        epoch = command.delivery_epoch
        if epoch >= self.kept_from and (taken_back := self._not_held(command)):
            arrived = self._held if epoch == self.epoch else self._earlier.setdefault(epoch, {})
            arrived.setdefault(command.queue, {}).update(dict.fromkeys(taken_back, 0))

    def of_consumer(
        self, number: int, queue: str, epoch: Epoch, messages: Iterable[DeliveredMessage]
    ) -> tuple[QueuePosition, ...]:
        """Positions of those that are held as this consumer's, from that epoch: a browser's copies are not."""
        arrived = self._held if epoch == self.epoch else self._earlier.get(epoch, {})
        held = arrived.get(queue, {})
        return tuple(message.position for message in messages if held.get(message.position) == number)

    def by_queue(self) -> dict[str, set[QueuePosition]]:
        """All that is held."""
        return {queue: set().union(*self._of_queue(queue)) for queue in self._queues()}

    def _queues(self) -> set[str]:
        """Those of which something is held."""
        return set(self._held).union(*self._earlier.values())

    def _of_queue(self, queue: str) -> list[dict[QueuePosition, int]]:
        """What is held of it, by epoch."""
        return [held[queue] for held in (*self._earlier.values(), self._held) if queue in held]

    def in_hand(self, unsettled: Iterable[SettleCommand]) -> tuple[HeldDeliveries, ...]:
        """What a resumption names: all that is held, and what settles without an answer name. In no order: hundreds of
        thousands are not sorted in one step."""
        more: defaultdict[str, set[QueuePosition]] = defaultdict(set)
        for command in unsettled:
            # A set of all that is held would cost more than the rest.
            more[command.queue].update(self._not_held(command))
        found = []
        for queue in sorted(self._queues().union(more)):
            positions = chain(sorted(more.get(queue, ())), *self._of_queue(queue))
            found.append(HeldDeliveries(queue, self.epoch, tuple(positions)))
        return tuple(found)

    def _not_held(self, command: SettleCommand) -> list[QueuePosition]:
        """What it names beyond what is held."""
        layers = self._of_queue(command.queue)
        return [position for position in command.positions if not any(position in held for held in layers)]

    def settling(self, unsettled: Iterable[SettleCommand]) -> tuple[UnansweredSettle, ...]:
        """What a resumption says of settles without an answer: what they name beyond all that is held."""
        found = []
        for command in unsettled:
            if positions := tuple(self._not_held(command)):
                found.append(UnansweredSettle(command.number, command.queue, positions))
        return tuple(found)

    def enter(self, epoch: Epoch, kept_from: Epoch) -> list[Effect]:
        """What comes next is of `epoch`; what is held of one before `kept_from` is void from now on."""
        if kept_from > self.epoch:
            return self.void(epoch)
        if self._held:
            self._earlier[self.epoch], self._held = self._held, {}
        self.epoch = epoch
        return []

    def void(self, epoch: Epoch) -> list[Effect]:
        """Everything held is void from now on, and its credit is with the consumers; `epoch` is that of what comes next."""
        effects: list[Effect] = []
        all_held = self._earlier
        if self._held:
            all_held[self.epoch] = self._held
        for held in chain.from_iterable(arrived.values() for arrived in all_held.values()):
            # Of hundreds of thousands, credit is all that is counted at once.
            for number, count in Counter(held.values()).items():
                if (consumer := self.consumers.get(number)) is not None:
                    consumer.credit += count
        if all_held:
            effects.append(AllVoided(all_held))
        self._held, self._earlier = {}, {}
        self.epoch = self.kept_from = epoch
        return effects
