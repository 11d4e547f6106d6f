"""Acquisitions: what one caller session takes out of queues by single calls, each by a consumer that lasts as long as its call.

Law: every message that was delivered to the session is in an answer, or was released. An answer has all that its credit allows
of what is in the queue, though a body may have to be read back first: its consumer is drained before it ends, unless an answer
has no room for more.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from lockstep.core.commands import AnyCommand, Disposition, SettleCommand
from lockstep.core.errors import InDoubt, LockstepError, Rejected
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SetName
from lockstep.core.requests import CloseConsumer, DrainConsumer, OpenConsumer
from lockstep.core.server_messages import (
    ConsumerClosed,
    ConsumerDrained,
    ConsumerOpened,
    DeliveredMessage,
    Deliveries,
    Told,
)
from services.broker.caller_limits import CallerLimits

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Acquired:
    """Messages that the session holds now."""

    messages: tuple[DeliveredMessage, ...]
    epoch: Epoch
    commit_index: LogIndex


class Session(Protocol):
    """The session that holds what is acquired."""

    set_name: SetName
    ended: "asyncio.Future[LockstepError]"

    @property
    def head(self) -> tuple[Epoch, LogIndex]: ...
    def submit_until_taken(self, command: AnyCommand) -> None: ...
    async def answered(self, waited: "asyncio.Future[_Value]") -> _Value: ...
    def check_right(self) -> None: ...


@dataclass(slots=True)
class _Acquiring:
    """A consumer, while its Acquire lasts."""

    opened: "asyncio.Future[None]"
    first: "asyncio.Future[None]"
    drained: "asyncio.Future[None]"
    messages: list[DeliveredMessage] = field(default_factory=list)
    bytes: int = 0
    """Of the messages."""

    def end(self, reason: LockstepError) -> None:
        """Nothing comes any more."""
        _resolve(self.opened, reason)
        _resolve(self.first)
        _resolve(self.drained)


class Acquisitions:
    """Lives as long as its session, which tells it what it hears."""

    def __init__(self, session: Session, say: Callable[..., None], limits: CallerLimits) -> None:
        self._session = session
        self._say = say
        self._limits = limits
        self._acquiring: dict[int, _Acquiring] = {}
        self._last_consumer = 0

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._acquiring)

    async def acquire(self, queue: str, messages_max: int, wait_seconds: float) -> Acquired:
        """Messages of a queue, none if none came in time. Raises `Rejected`, or `InDoubt` when the session ended meanwhile."""
        acquiring = asyncio.ensure_future(self._acquire(queue, messages_max, wait_seconds))
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            # The caller has gone: nobody will settle what still comes.
            acquiring.add_done_callback(lambda done: self._release_unheard(queue, done))
            raise

    def hear(self, message: Told) -> None:
        """Takes in what the set says of consumers; everything else is ignored."""
        match message:
            case Deliveries():
                acquiring = self._acquiring.get(message.consumer)
                if acquiring is None:
                    self._release(message.queue, message.messages)
                else:
                    self._take(message.consumer, acquiring, message.messages)
            case ConsumerOpened():
                if (acquiring := self._acquiring.get(message.consumer)) is not None:
                    _resolve(acquiring.opened)
            case ConsumerClosed():
                if (acquiring := self._acquiring.get(message.consumer)) is not None:
                    error = Rejected(message.code, message.message, set_name=self._session.set_name)
                    acquiring.end(error)
            case ConsumerDrained():
                if (acquiring := self._acquiring.get(message.consumer)) is not None:
                    _resolve(acquiring.drained)
            case _:
                pass

    def _take(self, number: int, acquiring: _Acquiring, messages: Sequence[DeliveredMessage]) -> None:
        acquiring.messages += messages
        acquiring.bytes += sum(map(_size_of, messages))
        _resolve(acquiring.first)
        if acquiring.bytes > self._limits.acquired_bytes_max and not acquiring.drained.done():
            # The rest of its credit would bring what is only released again, and may be more than there is memory for.
            self._say(CloseConsumer(number))
            _resolve(acquiring.drained)

    def end(self, reason: LockstepError) -> None:
        """The session is over."""
        for acquiring in self._acquiring.values():
            acquiring.end(reason)

    async def _acquire(self, queue: str, messages_max: int, wait_seconds: float) -> Acquired:
        loop = asyncio.get_running_loop()
        self._last_consumer += 1
        number = self._last_consumer
        acquiring = _Acquiring(loop.create_future(), loop.create_future(), loop.create_future())
        self._acquiring[number] = acquiring
        acquiring.opened.add_done_callback(hear_out)
        is_answer = False
        try:
            await self._session.answered(self._open_consumer(number, queue, messages_max, acquiring))
            if wait_seconds > 0:
                await asyncio.wait({acquiring.first}, timeout=wait_seconds)
            self._say(DrainConsumer(number))
            await self._drained(acquiring)
            if self._session.ended.done():
                raise self._session.ended.result()
            # What came in time may have waited long for the rest, and a successor may have given it to others.
            self._session.check_right()
            is_answer = True
        finally:
            self._say(CloseConsumer(number))
            del self._acquiring[number]
            if not is_answer:
                self._release(queue, acquiring.messages)
        return Acquired(self._cut(queue, acquiring.messages), *self._session.head)

    async def _drained(self, acquiring: _Acquiring) -> None:
        """All is here that can be. Raises `InDoubt` if the set does not say so in time and nothing is."""
        try:
            await self._session.answered(acquiring.drained)
        except InDoubt:
            if not acquiring.messages:
                raise

    def _open_consumer(
        self, number: int, queue: str, messages_max: int, acquiring: _Acquiring
    ) -> "asyncio.Future[None]":
        if self._session.ended.done():
            acquiring.opened.set_exception(self._session.ended.result())
        else:
            # Said before the session is attached it waits at the replica, like everything behind an attachment.
            self._say(OpenConsumer(number, queue, messages_max))
        return acquiring.opened

    def _cut(self, queue: str, messages: Sequence[DeliveredMessage]) -> tuple[DeliveredMessage, ...]:
        """As many as an answer may have, at least one; the others are released."""
        size = count = 0
        for message in messages:
            size += _size_of(message)
            if count and size > self._limits.acquired_bytes_max:
                break
            count += 1
        self._release(queue, messages[count:])
        return tuple(messages[:count])

    def _release(self, queue: str, messages: Sequence[DeliveredMessage]) -> None:
        if messages:
            positions = tuple(QueuePosition(message.position) for message in messages)
            self._session.submit_until_taken(
                SettleCommand(0, queue, self._session.head[0], positions, Disposition.RELEASE)
            )

    def _release_unheard(self, queue: str, acquiring: "asyncio.Task[Acquired]") -> None:
        if not acquiring.cancelled() and acquiring.exception() is None:
            self._release(queue, acquiring.result().messages)


def hear_out(done: "asyncio.Future[_Value]") -> None:
    """Its caller may have gone."""
    if not done.cancelled():
        done.exception()


def _size_of(message: DeliveredMessage) -> int:
    return len(message.body) + len(message.properties)


def _resolve(waited: "asyncio.Future[None]", error: LockstepError | None = None) -> None:
    if waited.done():
        return
    if error is None:
        waited.set_result(None)
    else:
        waited.set_exception(error)
