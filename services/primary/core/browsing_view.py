"""A browser's view of a queue: what is in it, whoever has it.

Law: it shows what `Browse` shows, at the log's end: each batch is everything (that its selector matches) that the queue held at
one log index between the position shown last and the batch's own last one. So it is told when that index is committed (P1, R11).
A message keeps its position and none is ever added behind the cursor, so each is shown once.
"""

from collections.abc import Collection

from lockstep.core.amqp.selector import Selector
from lockstep.core.ids import MessageId, QueuePosition
from services.primary.core.choosing_view import look_at
from services.primary.core.hands import Hands
from services.primary.core.lane import Lane
from services.primary.core.queue_view import LOOK_AHEAD, STEP, Offered, QueueView


class BrowsingView(QueueView):
    """Lives as long as its consumer."""

    __slots__ = ("_selector",)

    def __init__(self, hands: Hands, selector: Selector | None, after: QueuePosition | None) -> None:
        super().__init__(hands)
        self.cursor = after or 0
        self._selector = selector

    def take(self, limit: int, bytes_max: int, end: int, look_max: int) -> Offered:
        """As of any view, but for `end`: it looks up to the log's end."""
        queue, selector, taken = self.queue, self._selector, Offered()
        self.is_stalled = self.is_barred = self.is_at_end = False
        self.looked = size = 0
        while len(taken) < limit and size < bytes_max and self.looked < look_max:
            found = queue.positions(self.cursor + 1, min(look_max - self.looked, STEP))
            if not found:
                self.is_at_end = True
                break
            for position in found:
                if len(taken) == limit or size >= bytes_max or self.looked >= look_max:
                    break
                message = queue.message(position)
                if message is None:
                    self.is_stalled = True
                    return taken
                self.cursor = position
                self.looked += 1
                is_selected = True
                if selector is not None:
                    asked = look_at(selector, self.hands, position, message)
                    is_selected = asked.is_selected
                    self.looked += asked.looked
                if is_selected:
                    taken.append((position, message))
                    size += len(message.body) + len(message.properties)
        return taken

    def come_back(self, positions: Collection[QueuePosition]) -> None:
        """They were shown."""

    def _lane_of(self, position: QueuePosition) -> Lane:
        """It goes along the queue, whatever the priorities."""
        return self

    def ahead(self) -> dict[MessageId, QueuePosition]:
        positions = self.queue.positions(self.cursor + 1, LOOK_AHEAD)
        return dict(zip(self.queue.message_ids(positions), positions, strict=True))
