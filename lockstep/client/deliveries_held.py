"""Consumers of one session and the deliveries in its hands.

Law: a delivery is named by (queue, epoch, position) and held from its arrival until a settle names it; it is void when its epoch
is over, unless that was handed over (DESIGN T6). A consumer's credit is what was granted less what arrived.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from lockstep.client.session_events import AllVoided, Effect
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
        self._held: dict[str, dict[QueuePosition, int]] = {}
        """Queue -> position -> consumer."""
        self._earlier: dict[tuple[str, QueuePosition], Epoch] = {}
        """Epochs of what is held of another one than the present one."""

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
        if command.delivery_epoch >= self.kept_from and (held := self._held.get(command.queue)) is not None:
            for position in command.positions:
                held.pop(position, None)
                if self._earlier:
                    self._earlier.pop((command.queue, position), None)
            if not held:
                del self._held[command.queue]

    def take_back(self, command: SettleCommand) -> None:
        """A settle was rejected, or left these to be said again: none of what it names is settled."""
        if command.positions and command.delivery_epoch >= self.kept_from:
            held = self._held.setdefault(command.queue, {})
            for position in command.positions:
                held.setdefault(position, 0)
                if command.delivery_epoch != self.epoch:
                    self._earlier[command.queue, position] = command.delivery_epoch

    def of_consumer(
        self, number: int, queue: str, messages: Iterable[DeliveredMessage]
    ) -> tuple[QueuePosition, ...]:
        """Positions of those that are held as this consumer's: a browser's copies are not."""
        held = self._held.get(queue, {})
        return tuple(message.position for message in messages if held.get(message.position) == number)

    def by_queue(self) -> dict[str, set[QueuePosition]]:
        """All that is held."""
        return {queue: set(held) for queue, held in self._held.items()}

    def in_hand(self, unsettled: Iterable[SettleCommand]) -> tuple[HeldDeliveries, ...]:
        """What a resumption names: all that is held, and what settles without an answer name. In no order: hundreds of
        thousands are not sorted in one step."""
        more: defaultdict[str, set[QueuePosition]] = defaultdict(set)
        for command in unsettled:
            # A set of all that is held would cost more than the rest.
            held = self._held.get(command.queue, {})
            more[command.queue].update([position for position in command.positions if position not in held])
        found = []
        for queue in sorted({*self._held, *more}):
            positions = (*sorted(more.get(queue, ())), *self._held.get(queue, ()))
            found.append(HeldDeliveries(queue, self.epoch, positions))
        return tuple(found)

    def settling(self, unsettled: Iterable[SettleCommand]) -> tuple[UnansweredSettle, ...]:
        """What a resumption says of settles without an answer: what they name beyond all that is held."""
        found = []
        for command in unsettled:
            held = self._held.get(command.queue, {})
            positions = tuple(position for position in command.positions if position not in held)
            if positions:
                found.append(UnansweredSettle(command.number, command.queue, positions))
        return tuple(found)

    def enter(self, epoch: Epoch, kept_from: Epoch) -> list[Effect]:
        """What comes next is of `epoch`; what is held of one before `kept_from` is void from now on."""
        if kept_from > self.epoch:
            return self.void(epoch)
        for queue, held in self._held.items():
            for position in held:
                self._earlier.setdefault((queue, position), self.epoch)
        self.epoch = epoch
        return []

    def void(self, epoch: Epoch) -> list[Effect]:
        """Everything held is void from now on, and its credit is with the consumers; `epoch` is that of what comes next."""
        effects: list[Effect] = []
        for held in self._held.values():
            # Of hundreds of thousands, credit is all that is counted at once.
            for number, count in Counter(held.values()).items():
                if (consumer := self.consumers.get(number)) is not None:
                    consumer.credit += count
        if self._held:
            effects.append(AllVoided(self._held, self._earlier, self.epoch))
        self._held, self._earlier = {}, {}
        self.epoch = self.kept_from = epoch
        return effects
