"""Expiry: which messages' time is up. The primary says so by records, so the log decides every race (DESIGN 3).

Law: nothing expires by itself, on any replica; a message that is held or locked waits until it is let go, and is
watched again then. What is there when the epoch begins is looked through in pieces, and until that is done any of it may be due.
Messages that left before their time are cleared away a few at a time, however many are watched.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

from lockstep.core.content_shelf import Shelf
from lockstep.core.ids import LogIndex, QueueId, QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.set_state import SetState
from lockstep.core.taking_apart import emptied

_Due = tuple[int, QueueId, QueuePosition]
"""When (TimeMs), and which message."""
_SLACK = 1024
"""Entries of messages that are gone, and that nobody has to clear away yet."""
LOOKED_AT_MAX = 4000
"""Messages that are watched, and looked at in one step for whether they are there still."""
QUEUES_LOOKED_AT = 2000
"""Queues that are looked at in one step for whether messages in them have an end."""
WATCH_COST = 3
"""Of a message that is begun to be watched, in the units of `Pieces`."""
WATCHED_MAX = 500
"""Messages that are begun to be watched in one step."""


class Expiry:
    """Lives as long as the epoch on its primary; driven by the primary core."""

    def __init__(self, state: SetState) -> None:
        self._queues = state.queues.by_id
        self._expecting: set[QueueId] = set()
        """Queues that ever got a message with an end: nobody looks at the messages of others."""
        self._due: list[_Due] = []
        """Heap; names messages that left long ago, too."""
        self._due_max = _SLACK
        """Beyond it all of them are looked at."""
        self._unsure: list[_Due] = []
        """Heap: those that are being looked at, from its end, which leaves it one; who is there goes to `_due`."""
        self._taken_to_ms = 0
        """Up to this time (TimeMs) those that were due have been taken."""
        self._state = state
        self.is_looking = True
        """There is more to be looked through of what was there when the epoch began."""

    def look_through(self) -> Iterator[int]:
        """Look through all of that, in steps that say what they cost (`Pieces`)."""
        found: set[QueueId] = set()
        there = list(self._queues)
        for begin in range(0, len(there), QUEUES_LOOKED_AT):
            some = there[begin : begin + QUEUES_LOOKED_AT]
            queues = map(self._queues.get, some)
            found.update(queue.id for queue in queues if queue is not None and queue.expiries.pages)
            yield len(some) // 4
        shelves = self._state.contents.shelves
        for number in sorted(shelves):
            shelf = shelves.get(number)
            yield 1 + (_find_queues(shelf, found) // 4 if shelf is not None else 0)
        self._expecting |= found
        for queue_id in sorted(found):
            queue, index = self._queues.get(queue_id), LogIndex(0)
            while queue is not None and self._queues.get(queue_id) is queue:
                pieces, following = queue.pieces_from(index, WATCHED_MAX, is_each_looked_at=True)
                for positions, _ in pieces:
                    self._watch(queue, positions)
                yield WATCH_COST * sum(len(positions) for positions, _ in pieces)
                if following is None:
                    break
                index = following
        self._due_max = 2 * len(self._due) + _SLACK
        self.is_looking = False

    def take_apart(self) -> Iterator[int]:
        """The epoch is over: nothing is watched, in steps that say what they cost (`taking_apart`)."""
        for due in (self._due, self._unsure):
            yield from emptied(due)

    def expect(self, queues: Iterable[QueueId]) -> None:
        """A message with an end goes to these queues, now or with its transaction."""
        self._expecting.update(queues)

    def is_expecting(self, queue: Queue) -> bool:
        """Whether a message with an end ever went to this queue, or goes."""
        return queue.id in self._expecting

    def watch(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        """Messages became visible in a queue that is expecting (`is_expecting`)."""
        self._watch(queue, positions)
        if self._unsure:
            self._forget_gone(2 * len(positions))
        elif len(self._due) > self._due_max and not self.is_looking:
            self._unsure, self._due = self._due, []

    def watch_again(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        """Messages were given back. Those whose time has not come are watched still."""
        if queue.id in self._expecting:
            self._watch(queue, positions, self._taken_to_ms)

    def _watch(self, queue: Queue, positions: Sequence[QueuePosition], until_ms: int | None = None) -> None:
        for position, expires_ms in queue.ends_of(positions):
            if until_ms is None or expires_ms <= until_ms:
                heappush(self._due, (expires_ms, queue.id, position))

    def _forget_gone(self, count: int) -> None:
        """Look at some whether they are there still."""
        unsure, queues = self._unsure, self._queues
        for _ in range(min(count, LOOKED_AT_MAX, len(unsure))):
            due = unsure.pop()
            if due[1] in queues and due[2] in queues[due[1]]:
                heappush(self._due, due)
        if not unsure:
            self._due_max = 2 * len(self._due) + _SLACK

    def is_due(self, wall_ms: int) -> bool:
        """Whether the time of some is up, as far as they are watched."""
        due, unsure = self._due, self._unsure
        return bool(due and due[0][0] <= wall_ms) or bool(unsure and unsure[0][0] <= wall_ms)

    def take_due(self, wall_ms: int, limit: int) -> dict[QueueId, list[QueuePosition]]:
        """Up to `limit` positions whose time is up, by queue, each once however often it was watched: moved twice, a message
        would be doubled. Some may have left meanwhile; nobody asks for them again."""
        due: dict[QueueId, dict[QueuePosition, None]] = {}
        taken = 0
        self._taken_to_ms = max(self._taken_to_ms, wall_ms)
        while self.is_due(wall_ms) and taken < limit:
            is_unsure = bool(self._unsure) and not (self._due and self._due[0] <= self._unsure[0])
            _, queue_id, position = heappop(self._unsure if is_unsure else self._due)
            due.setdefault(queue_id, {})[position] = None
            taken += 1
        return {queue_id: list(positions) for queue_id, positions in due.items()}


def _find_queues(shelf: Shelf, found: set[QueueId]) -> int:
    """Where messages with an end went, or will go with their transactions; answers how many contents were looked at."""
    looked = 0
    for content in shelf.single.values():
        if content.expires_ms:
            found.update(content.queues)
    for run in shelf.runs.values():
        if run.packed is None:
            looked += run.count
            found.update(
                queue
                for content in run.looked_at()
                if content is not None and content.expires_ms
                for queue in content.queues
            )
    return looked + len(shelf.single)
