"""What an actor waits for: the end of a command, an answer, an arrival."""

from collections.abc import Callable, Generator, Iterable

from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.ids import Epoch, QueuePosition
from tests.simulation.history import Operation


class Promise:
    """Something that an actor can wait for: a command's end, an answer. Done once."""

    __slots__ = ("_waiter", "asked_us", "brought", "is_done", "operation", "question", "value")

    def __init__(
        self, operation: Operation | None = None, asked_us: int = 0, brought: Operation | None = None
    ) -> None:
        """`brought`: what a commit brings; it ends as that does."""
        self.is_done = False
        self.operation = operation
        self.brought = brought
        self.asked_us = asked_us
        self.question: rq.Question | None = None
        self.value: object = None
        self._waiter: Callable[[], None] | None = None

    def resolve(self, value: object = None) -> None:
        self.is_done = True
        self.value = value
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            waiter()

    def give_up(self) -> None:
        if not self.is_done:
            self.resolve()

    def when_done(self, waiter: Callable[[], None]) -> None:
        self._waiter = waiter


Wait = int | Promise
"""What an actor yields: microseconds to pause, or a promise to wait for."""
Actor = Generator[Wait, None, None]


class Inbox:
    """Deliveries of one consumer that its actor has not looked at yet."""

    def __init__(self, selector: str = "", is_browser: bool = False) -> None:
        self.selector = selector
        self.is_browser = is_browser
        self.after = QueuePosition(0)
        """What a browser was shown last."""
        self.waiting: list[tuple[Epoch, sm.DeliveredMessage]] = []
        self.drains: list[Promise] = []
        """Not answered, in their order."""
        self.is_open = True
        self._promise: Promise | None = None

    def put(self, epoch: Epoch, messages: Iterable[sm.DeliveredMessage]) -> None:
        self.waiting.extend((epoch, message) for message in messages)
        self.wake()

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> None:
        gone = frozenset(positions)
        self.waiting = [held for held in self.waiting if held[0] != epoch or held[1].position not in gone]

    def wake(self) -> None:
        if self._promise is not None:
            promise, self._promise = self._promise, None
            if not promise.is_done:
                promise.resolve()

    def drained(self) -> None:
        """The oldest drain is answered."""
        self.drains.pop(0).resolve(tuple(message.body for _, message in self.waiting))

    def end_drains(self) -> None:
        """Nobody will answer them any more."""
        drains, self.drains = self.drains, []
        for promise in drains:
            promise.resolve()

    def close(self) -> None:
        """The consumer has ended."""
        self.is_open = False
        self.wake()
        self.end_drains()

    def arrival(self) -> Promise:
        """Done when something waits here, or the consumer has ended."""
        promise = Promise()
        if self.waiting or not self.is_open:
            promise.is_done = True
        else:
            self._promise = promise
        return promise
