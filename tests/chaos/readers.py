"""A client that looks on while others work in transactions: it browses their queues, and takes, locks and gives back messages.

Law: it writes down everything that it is shown, with the commit index of the response that brought it, and settles nothing
for good. So the checkers of P1 and P3 can judge it by the committed log: whether anything was part of a transaction, of an
open one, or locked by another.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence

from lockstep.client import session_events as e
from lockstep.client.session_settings import SessionSettings
from lockstep.client.set_session import SetSession
from lockstep.core.commands import BeginCommand, Disposition, RollbackCommand, SettleCommand
from lockstep.core.errors import ErrorCode, LockstepError
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SetName
from lockstep.core.requests import Browse
from lockstep.core.server_messages import BrowseAnswer, DeliveredMessage
from lockstep.runtime.channels import Channels
from tests.simulation.history import Browsed, Delivered, Seen

CREDIT = 4
"""Messages that a reader holds at a time: few, because nobody else gets them meanwhile."""
BROWSE_MAX = 1000
PACE_SECONDS = 0.02
HOLD_SECONDS = 0.05


class ListeningSession(SetSession):
    """As its base; it knows the commit index of the response whose messages are being handled."""

    commit_index = LogIndex(0)

    def feed(self, event: e.Input) -> None:
        if isinstance(event, e.Received) and event.messages:
            self.commit_index = event.messages[-1].commit_index
        super().feed(event)


class Reader:
    """Lives for one workload: `reading` runs it. A consumer's port, too."""

    def __init__(
        self, name: str, channels: Channels, set_name: str, addresses: Sequence[str], queues: Sequence[str]
    ) -> None:
        """It takes messages of the first of `queues`, and browses all of them."""
        self.name = name
        self.browses: list[Browsed] = []
        self.deliveries: list[Delivered] = []
        self.locked = 0
        """Messages that it had in a transaction of its own, for a moment."""
        self._set_name, self._queues = SetName(set_name), queues
        self._session = ListeningSession(channels, self._set_name, addresses, SessionSettings())
        self._consumer = 0
        self._in_hand: dict[QueuePosition, Epoch] = {}
        self._stopped = ""
        self._began = time.monotonic()

    def _now_us(self) -> int:
        return int((time.monotonic() - self._began) * 1e6)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Reads inside the block; behind it nothing is held any more."""
        self._consumer = self._session.consume(self, self._queues[0], CREDIT, False)
        tasks = [asyncio.create_task(self._browse()), asyncio.create_task(self._give_back())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            self._session.stop_consuming(self._consumer)
            await self._session.close()
        failed = [one for one in done if isinstance(one, Exception)]
        assert not failed, f"{self.name}: {failed}"
        assert not self._stopped, f"{self.name}'s consumer ended: {self._stopped}"

    async def until_shown(self, seconds: float = 60.0) -> None:
        """Returns when it has browsed and taken something: only then can harm meet it at work."""
        async with asyncio.timeout(seconds):
            while not (self.browses and self.deliveries):
                await asyncio.sleep(0.01)

    # --- what it is shown ---

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]) -> None:
        self.deliveries.append(
            Delivered(
                self._now_us(),
                self.name,
                self._set_name,
                queue,
                epoch,
                self._session.commit_index,
                _seen(messages),
            )
        )
        self._in_hand.update({message.position: epoch for message in messages})

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> None:
        for position in positions:
            self._in_hand.pop(position, None)

    def drained(self) -> None:
        """Nobody drains it."""

    def stop(self, code: ErrorCode, message: str) -> None:
        self._stopped = f"{code.name} {message}"

    async def _browse(self) -> None:
        while True:
            for queue in self._queues:
                asked_us = self._now_us()
                with contextlib.suppress(LockstepError):
                    answer = await self._session.ask(Browse(0, queue, QueuePosition(0), BROWSE_MAX))
                    assert isinstance(answer, BrowseAnswer), answer
                    if answer.code is ErrorCode.NONE:
                        self.browses.append(self._browsed(queue, asked_us, answer))
                await asyncio.sleep(PACE_SECONDS)

    def _browsed(self, queue: str, asked_us: int, answer: BrowseAnswer) -> Browsed:
        return Browsed(
            self._now_us(),
            self.name,
            self._set_name,
            queue,
            answer.epoch,
            answer.commit_index,
            asked_us,
            QueuePosition(0),
            BROWSE_MAX,
            _seen(answer.messages),
            answer.is_end,
        )

    # --- what it does ---

    async def _give_back(self) -> None:
        """Release what it holds, or lock it in a transaction that is rolled back."""
        while True:
            await asyncio.sleep(HOLD_SECONDS)
            by_epoch: dict[Epoch, list[QueuePosition]] = {}
            for position, epoch in self._in_hand.items():
                by_epoch.setdefault(epoch, []).append(position)
            for epoch, positions in by_epoch.items():
                self.void(epoch, tuple(positions))
                with contextlib.suppress(LockstepError):
                    await self._return(epoch, tuple(positions))
                    self._session.grant(self._consumer, len(positions))

    async def _return(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> None:
        queue = self._queues[0]
        if random.random() < 0.5:
            await self._session.submit(SettleCommand(0, queue, epoch, positions, Disposition.RELEASE))
            return
        begun = await self._session.submit(BeginCommand(0))
        assert begun.transaction is not None, begun
        accept = SettleCommand(0, queue, epoch, positions, Disposition.ACCEPT, begun.transaction)
        try:
            await self._session.submit(accept)
            self.locked += len(positions)
            await asyncio.sleep(HOLD_SECONDS)
        finally:
            # Not awaited here: its error would take a cancellation's place, and the reader would go on for ever.
            ended = self._session.submit(RollbackCommand(0, begun.transaction))
        await ended


def _seen(messages: tuple[DeliveredMessage, ...]) -> tuple[Seen, ...]:
    return tuple(Seen(one.position, one.body, one.delivery_count, one.is_durable) for one in messages)
