"""A consumer's own view of a queue: it is offered only what its selector matches and what it is not excluded from.

Law: what it is not offered stays for others, in its place. What it was not offered once is looked at again only when it came
back: nothing else about a message changes that a selector can see.
"""

from collections.abc import Collection
from heapq import heappop, heappush

from lockstep.core.amqp.selector import Selector
from lockstep.core.ids import QueuePosition
from lockstep.core.records import Message
from services.primary.core.queue_view import SLACK, STEP, Hands, Offered, QueueView
from services.primary.core.selecting import Look, look


def look_at(selector: Selector, hands: Hands, position: QueuePosition, message: Message) -> Look:
    """Whether the selector matches the message at a position of the queue."""
    queue = hands.queue
    count = queue.delivery_count(position)
    found = look(selector, message.properties, count, queue.is_entry_durable(position))
    hands.too_costly += found.is_too_costly
    return found


class ChoosingView(QueueView):
    """One consumer's own view: it leaves messages to others. Lives as long as its consumer."""

    __slots__ = ("_excluded_max", "_selector", "excluded")

    def __init__(self, hands: Hands, selector: Selector | None) -> None:
        super().__init__(hands)
        self._selector = selector
        self.excluded: set[QueuePosition] = set()
        """Never offered (again); may name some that left meanwhile."""
        self._excluded_max = SLACK

    def begin_at(self, view: QueueView) -> None:
        """Offer what `view` would."""
        self.cursor = view.cursor
        self.back = list(view.back)

    def exclude(self, positions: Collection[QueuePosition]) -> None:
        """Never offer these again."""
        self.excluded.update(positions)
        if len(self.excluded) > self._excluded_max:
            self.excluded = set(self.queue.present(self.excluded))
            self._excluded_max = 2 * len(self.excluded) + SLACK

    def take(self, limit: int, bytes_max: int, end: int, look_max: int) -> Offered:
        """As of any view: what came back first, then along the queue."""
        self.is_stalled = self.is_barred = self.is_at_end = False
        self.looked = 0
        taken: Offered = []
        bytes_left = self._take_again(taken, limit, bytes_max, look_max)
        while len(taken) < limit and bytes_left > 0 and self.looked < look_max:
            found = self.queue.positions(self.cursor + 1, min(look_max - self.looked, STEP))
            if not found or found[0] >= end:
                self.is_at_end = True
                break
            for position in found:
                is_enough = len(taken) == limit or bytes_left <= 0 or self.looked >= look_max
                if position >= end or is_enough:
                    break
                if self._is_barred(position):
                    bytes_left = 0
                    break
                size = self._look(position, taken)
                if size is None:
                    self.is_stalled = True
                    bytes_left = 0
                    break
                bytes_left -= size
                self.cursor = position
        if taken:
            self.hands.held_to = max(self.hands.held_to, self.cursor)
        return taken

    def _take_again(self, taken: Offered, limit: int, bytes_max: int, look_max: int) -> int:
        """What came back; answers how many bytes more are to be taken."""
        back, bytes_left = self.back, bytes_max
        while back and len(taken) < limit and bytes_left > 0 and self.looked < look_max:
            if self._is_barred(back[0]):
                return 0
            position = heappop(back)
            if taken and taken[-1][0] == position:
                continue
            size = self._look(position, taken)
            if size is None:
                heappush(back, position)
                self.is_stalled = True
                return 0
            bytes_left -= size
        return bytes_left

    def _is_barred(self, position: QueuePosition) -> bool:
        """Whether to wait for one that is coming back: perhaps it is chosen."""
        self.is_barred = position >= self.hands.barrier
        return self.is_barred

    def _look(self, position: QueuePosition, taken: Offered) -> int | None:
        """Take the message if it is offered; answers its bytes, or None if that cannot be told: its body is away."""
        self.looked += 1
        if position in self.excluded or not self.hands.is_free(position):
            return 0
        message = self.queue.message(position)
        if message is None:
            return None
        if self._selector is not None:
            found = look_at(self._selector, self.hands, position, message)
            self.looked += found.looked
            if not found.is_selected:
                return 0
        taken.append((position, message))
        return len(message.body) + len(message.properties)
