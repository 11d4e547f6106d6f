"""Expiry: which messages' time is up. The primary says so by records, so the log decides every race (DESIGN 3).

Law: nothing expires by itself, on any replica; a message that is held or locked waits until it is let go, and is
watched again then.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from lockstep.core.ids import QueueId, QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.set_state import SetState

_SLACK = 1024
"""Entries of messages that are gone, and that nobody has to clear away yet."""


class Expiry:
    """Lives as long as the epoch on its primary; driven by the primary core."""

    def __init__(self, state: SetState) -> None:
        self._queues = state.queues.by_id
        self._expecting: set[QueueId] = set()
        """Queues that ever got a message with an end: nobody looks at the messages of others."""
        self._due: list[tuple[int, QueueId, QueuePosition]] = []
        """Heap; names messages that left long ago, too."""
        self._expecting.update(state.contents.queues_of_expiring())
        self._expecting.update(queue.id for queue in self._queues.values() if queue.expiries)
        self._due_max = _SLACK
        for queue_id in sorted(self._expecting & self._queues.keys()):
            queue = self._queues[queue_id]
            self.watch(queue, queue.positions())

    def expect(self, queues: Iterable[QueueId]) -> None:
        """A message with an end goes to these queues, now or with its transaction."""
        self._expecting.update(queues)

    def watch(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        """Messages became visible or were given back."""
        if queue.id not in self._expecting:
            return
        for position in positions:
            expires_ms = queue.expires_ms(position) if position in queue else 0
            if expires_ms:
                heappush(self._due, (expires_ms, queue.id, position))
        if len(self._due) > self._due_max:
            self._forget_gone()

    def _forget_gone(self) -> None:
        queues = self._queues
        self._due = [due for due in set(self._due) if due[1] in queues and due[2] in queues[due[1]]]
        heapify(self._due)
        self._due_max = 2 * len(self._due) + _SLACK

    def is_due(self, wall_ms: int) -> bool:
        """Whether the time of some is up."""
        return bool(self._due) and self._due[0][0] <= wall_ms

    def take_due(self, wall_ms: int, limit: int) -> dict[QueueId, list[QueuePosition]]:
        """Up to `limit` positions whose time is up, by queue, each once however often it was watched: moved twice, a message
        would be doubled. Some may have left meanwhile; nobody asks for them again."""
        due: dict[QueueId, dict[QueuePosition, None]] = {}
        taken = 0
        while self.is_due(wall_ms) and taken < limit:
            _, queue_id, position = heappop(self._due)
            due.setdefault(queue_id, {})[position] = None
            taken += 1
        return {queue_id: list(positions) for queue_id, positions in due.items()}
