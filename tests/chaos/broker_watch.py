"""A client that speaks to one broker only, and writes down when it was answered by which epoch.

Law: it never goes elsewhere, whatever it is told, and keeps listening to a broker that has fallen silent: so what a deposed
primary still says is heard here, and nowhere else is it (DESIGN R6, P8).
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from lockstep.client.session_events import Received, StreamLost
from lockstep.client.session_stream import SessionStream
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, SessionId, SessionKey, SetName
from lockstep.runtime.channels import Channels

PACE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer to a publish: it is committed, says this broker."""

    at: float
    """time.monotonic()"""
    broker: str
    epoch: Epoch
    body: bytes


class BrokerWatch:
    """Publishes to `queue`, one message at a time, while `run` runs."""

    def __init__(
        self, channels: Channels, broker: str, address: str, set_name: str, queue: str, heard: list[Heard]
    ) -> None:
        self.broker = broker
        self._channels, self._address = channels, address
        self._set_name, self._queue = SetName(set_name), queue
        self._heard = heard
        self._said: asyncio.Queue[Received | StreamLost] = asyncio.Queue()
        self._streams = 0
        self._bodies = 0

    async def run(self) -> None:
        while True:
            self._streams += 1
            stream = SessionStream(
                self._channels.to(self._address),
                self._set_name,
                self._streams,
                self._said.put_nowait,
                lambda _: None,
            )
            try:
                await self._speak(stream)
            finally:
                await stream.close()
            await asyncio.sleep(0.1)

    async def _speak(self, stream: SessionStream) -> None:
        """Until the stream is over."""
        session_id = SessionId(str(uuid.uuid4()))
        stream.write((rq.AttachSession(self._set_name, session_id, SessionKey(0), Epoch(0), 5000, 0),))
        number, body = 0, b""
        while True:
            said = await self._said.get()
            if said.stream != stream.number:
                continue
            if isinstance(said, StreamLost):
                return
            for message in said.messages:
                match message:
                    case sm.AttachRefused():
                        return
                    case sm.SessionAttached():
                        number, body = 1, self._publish(stream, 1)
                    case sm.PushedBack():
                        await asyncio.sleep(PACE_SECONDS)
                        self._publish(stream, number, body)
                    case sm.Answers(answers=answers) if any(one.code is ErrorCode.NONE for one in answers):
                        self._heard.append(Heard(time.monotonic(), self.broker, message.epoch, body))
                        await asyncio.sleep(PACE_SECONDS)
                        number += 1
                        body = self._publish(stream, number)
                    case _:
                        pass

    def _publish(self, stream: SessionStream, number: int, body: bytes = b"") -> bytes:
        self._bodies += not body
        body = body or b"%s/%d/%d" % (self.broker.encode(), stream.number, self._bodies)
        message = c.OutgoingMessage(b"", body, True, 0, ())
        stream.write((c.PublishCommand(number, "", self._queue, (message,)),))
        return body


@contextlib.asynccontextmanager
async def watching(addresses: dict[str, str], set_name: str, queue: str) -> AsyncIterator[list[Heard]]:
    """All brokers are watched inside the block; the list grows in the order of hearing."""
    heard: list[Heard] = []
    channels = Channels()
    tasks = [
        asyncio.create_task(BrokerWatch(channels, broker, address, set_name, queue, heard).run())
        for broker, address in addresses.items()
    ]
    try:
        yield heard
        for task in tasks:
            assert not task.done(), f"a watch ended: {task.exception()!r}"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await channels.close()


def check_fenced(heard: Sequence[Heard]) -> None:
    """Once anybody was answered by an epoch, nobody is by an earlier one: not even who listens to its primary only."""
    highest: Heard | None = None
    for one in heard:
        if highest is not None and one.epoch < highest.epoch:
            raise AssertionError(f"{one} came {one.at - highest.at:.3f} s after {highest}")
        if highest is None or one.epoch > highest.epoch:
            highest = one
