"""Expiry: which messages' time is up. The primary says so by records, so the log decides every race (DESIGN 3).

Law: nothing expires by itself, on any replica; a message that is held or locked waits until it is let go.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from lockstep.core.ids import QueueId, QueuePosition
from lockstep.core.queues import Queue


class Expiry:
    """Lives as long as the epoch on its primary; driven by the primary core."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self._due: list[tuple[int, QueueId, QueuePosition]] = []
        for queue in queues:
            for position in queue.positions():
                expires_ms = queue.expires_ms(position)
                if expires_ms:
                    self._due.append((expires_ms, queue.id, position))
        heapify(self._due)

    def watch(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        """Messages became visible or were given back."""
        for position in positions:
            expires_ms = queue.expires_ms(position) if position in queue.entries else 0
            if expires_ms:
                heappush(self._due, (expires_ms, queue.id, position))

    def take_due(self, wall_ms: int, limit: int) -> dict[QueueId, list[QueuePosition]]:
        """Up to `limit` positions whose time is up, by queue, each once however often it was watched: moved twice, a message
        would be doubled. Some may have left meanwhile; nobody asks for them again."""
        due: dict[QueueId, dict[QueuePosition, None]] = {}
        taken = 0
        while self._due and self._due[0][0] <= wall_ms and taken < limit:
            _, queue_id, position = heappop(self._due)
            due.setdefault(queue_id, {})[position] = None
            taken += 1
        return {queue_id: list(positions) for queue_id, positions in due.items()}

    def watch_again(self, wall_ms: int, queue_id: QueueId, positions: Sequence[QueuePosition]) -> None:
        """These are due but somebody has them: look again at `wall_ms`."""
        for position in positions:
            heappush(self._due, (wall_ms, queue_id, position))
