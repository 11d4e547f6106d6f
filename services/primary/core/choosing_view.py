"""A consumer's own view of a queue: it is offered only what its selector matches and what it is not excluded from.

Law: what it is not offered stays for others, in its place. What it was not offered once is looked at again only when it came
back: nothing else about a message changes that a selector can see.
"""

from collections.abc import Collection, Iterator

from lockstep.core.amqp.selector import Selector
from lockstep.core.ids import QueuePosition
from lockstep.core.records import Message
from lockstep.core.taking_apart import emptied
from services.primary.core.hands import Hands
from services.primary.core.lane import SLACK
from services.primary.core.queue_view import Offered, QueueView
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

    def exclude(self, positions: Collection[QueuePosition]) -> None:
        """Never offer these again."""
        self.excluded.update(positions)
        if len(self.excluded) > self._excluded_max:
            self.excluded = set(self.queue.present(self.excluded))
            self._excluded_max = 2 * len(self.excluded) + SLACK

    def take_apart(self) -> Iterator[int]:
        yield from super().take_apart()
        yield from emptied(self.excluded)

    def take(self, limit: int, bytes_max: int, end: int, look_max: int) -> Offered:
        """As of any view: what came back first, then along the queue."""
        self.is_stalled = self.is_barred = False
        taken: Offered = []
        self._take_by_level(taken, limit, bytes_max, end, look_max)
        if taken:
            self.hands.held_to = max(self.hands.held_to, self.cursor)
        return taken

    def _look(self, position: QueuePosition, taken: Offered) -> int | None:
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
