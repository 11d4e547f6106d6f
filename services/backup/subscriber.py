"""Subscriber: the backup's end of its streams to primaries (DESIGN 3, 8): Subscribe, Acknowledge, Refuse.

Law: a stream is closed for the replica once, whatever ended it; nothing of a stream is heard after that. Refusals and
acknowledgements leave in the order in which the replica gave them.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from lockstep.core.effects import CloseSubscription, OpenSubscription, TellPrimary
from lockstep.core.errors import Rejected
from lockstep.core.ids import BrokerId, SetName
from lockstep.core.inputs import PrimarySaid, PrimaryStreamClosed
from lockstep.core.replication import Acknowledge, Refuse, Subscribe, ToBackup, ToPrimary
from lockstep.runtime.big_bytes import BIG_BYTES
from lockstep.runtime.channels import WRITE_BYTES_MAX, Channels
from lockstep.runtime.driver import Driver
from lockstep.runtime.handed_over_codec import decode_handed_over, is_handed_over
from lockstep.runtime.outbox import Outbox
from lockstep.runtime.process import spawn
from lockstep.runtime.replication_codec import (
    decode_long_to_backup,
    decode_to_backup,
    encode_acknowledge,
    encode_refuse,
    encode_subscribe,
)
from lockstep.runtime.turns import in_turns
from lockstep.runtime.wire import PIECES_BYTES_MIN

_log = logging.getLogger("lockstep.backup")

_SERVICE = "/lockstep.wire.v1.Primary/"


@dataclass(slots=True)
class _Subscription:
    """One subscription, from `OpenSubscription` to its end."""

    stream: int
    broker: BrokerId
    subscribe: Subscribe
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    outbox: Outbox[ToPrimary] = field(default_factory=Outbox)
    task: asyncio.Task[None] | None = None
    acknowledging: Any = None
    """The call that carries acknowledgements; None before the first."""

    def write(self) -> None:
        """What waits, at once if it can be."""
        self.outbox.write_now(WRITE_BYTES_MAX, self._write_now)

    def _write_now(self, messages: list[ToPrimary]) -> bool:
        (*others, message) = _latest(messages)
        return (
            not others
            and isinstance(message, Acknowledge)
            and self.acknowledging is not None
            and self.acknowledging.write_now(encode_acknowledge(message, self.uuid))
        )


class Subscriber:
    """Lives as long as the process; driven by effects from the driver. `address_of` knows where brokers listen."""

    def __init__(
        self,
        driver: Driver,
        channels: Channels,
        address_of: Callable[[BrokerId], str | None],
    ) -> None:
        self._driver = driver
        self._channels = channels
        self._address_of = address_of
        self._by_set: dict[SetName, _Subscription] = {}
        driver.on(OpenSubscription, self._open)
        driver.on(TellPrimary, self._tell)
        driver.on(CloseSubscription, self._close)

    async def close(self) -> None:
        """Ends all subscriptions; the process is about to end."""
        tasks = [subscription.task for subscription in self._by_set.values() if subscription.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Effects

    def _open(self, effect: OpenSubscription) -> None:
        earlier = self._by_set.pop(effect.set_name, None)
        if earlier is not None:
            self._abandon(earlier)
        subscription = _Subscription(effect.stream, effect.broker, effect.subscribe)
        self._by_set[effect.set_name] = subscription
        name = f"subscription {effect.stream} of {effect.set_name}"
        subscription.task = spawn(self._run(subscription), name)

    def _tell(self, effect: TellPrimary) -> None:
        subscription = self._by_set.get(effect.set_name)
        if subscription is None or subscription.stream != effect.stream:
            return
        subscription.outbox.put(effect.message, wakes=False)
        self._driver.write_later(subscription.outbox, subscription.write)

    def _close(self, effect: CloseSubscription) -> None:
        subscription = self._by_set.get(effect.set_name)
        if subscription is not None and subscription.stream == effect.stream:
            del self._by_set[effect.set_name]
            self._abandon(subscription)

    # One subscription

    async def _run(self, subscription: _Subscription) -> None:
        address = self._address_of(subscription.broker)
        try:
            if address is None:
                # Nobody knows it yet: a pause, so that the replica does not ask again in the same millisecond.
                await asyncio.sleep(0.1)
                return
            channel = self._channels.to(address)
            reading = asyncio.ensure_future(self._read(channel, subscription))
            writing = asyncio.ensure_future(self._write(channel, subscription))
            try:
                await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for half in (reading, writing):
                    half.cancel()
                results = await asyncio.gather(reading, writing, return_exceptions=True)
            self._explain(subscription, results)
        finally:
            subscription.outbox.abort()
            set_name = subscription.subscribe.set_name
            if self._by_set.get(set_name) is subscription:
                del self._by_set[set_name]
                self._driver.feed(PrimaryStreamClosed(set_name, subscription.stream))

    async def _read(self, channel: grpc.aio.Channel, subscription: _Subscription) -> None:
        subscribe: Any = channel.unary_stream(f"{_SERVICE}Subscribe")
        call = subscribe(encode_subscribe(subscription.subscribe, subscription.uuid))
        set_name = subscription.subscribe.set_name
        last_word: bytes | memoryview | None = None
        long: list[bytes | memoryview] = []

        def take(data: bytes | memoryview) -> bool:
            nonlocal last_word
            if len(data) >= PIECES_BYTES_MIN and is_handed_over(data):
                last_word = data
                return False
            if len(data) >= BIG_BYTES:
                long.append(data)
                return False
            return said(decode_to_backup(data))

        def said(message: ToBackup) -> bool:
            if self._by_set.get(set_name) is not subscription:
                return False
            self._driver.feed(PrimarySaid(set_name, subscription.stream, message))
            return True

        try:
            while await call.hear(take) and long:
                if not said(await in_turns(decode_long_to_backup(long.pop()))):
                    break
            if last_word is not None:
                # Its end says to the primary that it was heard.
                said(await in_turns(decode_handed_over(last_word)))
        finally:
            call.cancel()

    async def _write(self, channel: grpc.aio.Channel, subscription: _Subscription) -> None:
        try:
            while messages := await subscription.outbox.take(WRITE_BYTES_MAX):
                for message in _latest(messages):
                    if isinstance(message, Refuse):
                        refuse: Any = channel.unary_unary(f"{_SERVICE}Refuse")
                        await refuse(encode_refuse(message, subscription.uuid))
                        continue
                    if not isinstance(message, Acknowledge):
                        continue
                    if subscription.acknowledging is None:
                        subscription.acknowledging = channel.stream_unary(f"{_SERVICE}Acknowledge")()
                    await subscription.acknowledging.write(encode_acknowledge(message, subscription.uuid))
        finally:
            if subscription.acknowledging is not None:
                subscription.acknowledging.cancel()

    def _abandon(self, subscription: _Subscription) -> None:
        """Ends one that the replica has closed or replaced: it hears nothing more of it."""
        if subscription.task is not None:
            subscription.task.cancel()

    @staticmethod
    def _explain(subscription: _Subscription, results: Sequence[object]) -> None:
        """Logs why a stream ended; lets our own bugs through."""
        for result in results:
            if isinstance(result, grpc.aio.AioRpcError | Rejected | asyncio.InvalidStateError):
                text = result.details() if isinstance(result, grpc.aio.AioRpcError) else str(result)
                level = logging.WARNING if isinstance(result, Rejected) else logging.INFO
                _log.log(
                    level,
                    "set=%s primary=%s event=subscription_ended %s",
                    subscription.subscribe.set_name,
                    subscription.broker,
                    text,
                )
                return
            if isinstance(result, BaseException) and not isinstance(
                result, asyncio.CancelledError | grpc.aio.UsageError
            ):
                raise result


def _latest(messages: Sequence[ToPrimary]) -> list[ToPrimary]:
    """Without acknowledgements that the next message, an acknowledgement of the same epoch, says again."""
    kept: list[ToPrimary] = []
    for message in messages:
        if (
            kept
            and isinstance(message, Acknowledge)
            and isinstance(previous := kept[-1], Acknowledge)
            and previous.epoch == message.epoch
        ):
            kept.pop()
        kept.append(message)
    return kept
