"""Waiting letters: dead letters that are on their way out, and have to wait for their turn or for their bodies.

Law: those of one queue go in the order in which they came, and queues take turns. What is moved in one step of the core, whoever
moves it, has a limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.core.apply_messages import MOVED_AT_ONCE
from lockstep.core.clock import Now
from lockstep.core.ids import QueueId, QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.records import DequeueReason
from services.primary.core.read_back import Found

_REASONS = DequeueReason.EXPIRED, DequeueReason.REJECTED
_Key = tuple[QueueId, int]
"""A queue, and the reason of its dead letters (`DequeueReason`)."""


@dataclass(slots=True, eq=False)
class Waiting:
    """Dead letters of one queue, for one reason, until all have been moved."""

    queue: Queue
    reason: int
    positions: list[QueuePosition]
    done: int = 0
    """So many of the first ones have been moved: less than half of them, unless nothing is left."""
    found: Found = field(default_factory=dict)
    """Bodies of the next ones."""

    @property
    def key(self) -> _Key:
        return self.queue.id, self.reason

    def went(self, count: int) -> bool:
        """So many more of the first ones have been moved; answers whether others are left. Those that went are soon forgotten: a
        queue that more come from may never be through.
        """
        self.done += count
        if 2 * self.done >= len(self.positions):
            del self.positions[: self.done]
            self.done = 0
        return bool(self.positions)


class WaitingLetters:
    """Lives as long as the epoch; driven by whoever moves dead letters."""

    def __init__(self) -> None:
        self.ready: dict[_Key, Waiting] = {}
        """Those that can go on, in the order of their turns."""
        self._reading: dict[_Key, Waiting] = {}
        """Those for which bodies are being read."""
        self.through: list[QueueId] = []
        """Queues whose dead letters for one reason have all gone since somebody looked (`AutoDeletion`)."""
        self._left = 0
        self._now: Now | None = None
        """Of the input in which so much was left."""
        self.others_selected = False
        """Selections that waited have had their share of the time since dead letters last had theirs."""
        self.are_next = False
        """Dead letters found nothing of that share, and it is their turn."""
        self.are_before_rejects = False
        """A part of a reject was moved while some were ready here: it is their turn."""

    def left(self, now: Now) -> int:
        """What may still be moved in this step (`moving_cost`); the part that is begun with that may be longer."""
        if now is not self._now:
            self._left, self._now = MOVED_AT_ONCE, now
        return self._left

    def pay(self, cost: int) -> None:
        """So much is moved."""
        self._left -= cost

    def ask_share(self, is_there: bool) -> bool:
        """Whether something may be moved, for `is_there` a share of the time that selectors have. They take turns for it with
        selections that wait, which else would leave them nothing.
        """
        self.are_next = not is_there and self.others_selected
        self.others_selected = self.others_selected and not is_there
        return is_there

    def is_reading(self, queue: Queue, reason: int) -> bool:
        """Whether others of this queue wait for their bodies."""
        return (queue.id, reason) in self._reading

    def has(self, queue: QueueId) -> bool:
        """Whether some of this queue wait."""
        return any((queue, reason) in self.ready or (queue, reason) in self._reading for reason in _REASONS)

    def add(self, queue: Queue, positions: Sequence[QueuePosition], reason: int) -> None:
        """These wait behind others of their queue, or of all queues."""
        key = queue.id, reason
        waiting = self.ready.get(key) or self._reading.get(key)
        if waiting is None:
            self.ready[key] = Waiting(queue, reason, list(positions))
        else:
            waiting.positions += positions

    def take(self) -> Waiting:
        """Those whose turn it is; they wait no more."""
        return self.ready.pop(next(iter(self.ready)))

    def put_back(self, waiting: Waiting) -> None:
        """There is more of them: others have their turn first."""
        self.ready[waiting.key] = waiting

    def begin_reading(self, waiting: Waiting) -> None:
        """They wait for bodies."""
        self._reading[waiting.key] = waiting

    def end_reading(self, waiting: Waiting) -> None:
        """These have been read."""
        del self._reading[waiting.key]
        self.ready[waiting.key] = waiting
