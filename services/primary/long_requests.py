"""Long requests: what clients say in one go that is too long for one step of the event loop, or too much for one turn.

Law: of all streams with much to say one has its turn at a time. It is decoded by a short step, or the cores are fed one part of
its messages and have handled that; so whoever else speaks waits for one part, however many such streams there are.
"""

import asyncio
import time
from collections.abc import Generator

from lockstep.core.ids import SetName
from lockstep.core.inputs import ClientSaid
from lockstep.core.requests import ClientMessage
from lockstep.runtime.driver import Driver
from lockstep.runtime.session_codec import decode_in_steps

STEP_SECONDS = 0.005
"""Of decoding."""
SAID_MAX = 500
"""Messages of a client in one input of the core: a few milliseconds' work, unless each of them is much. Behind so many it waits
until they are handled."""
HELD_BACK_SECONDS = 0.005
"""Between two looks whether a core is through with what nothing may come between."""

Request = tuple[SetName, tuple[ClientMessage, ...]]


class RequestDecoding:
    """A request of a client's stream on its way from bytes to messages, step by step."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._steps: Generator[None, None, Request] = decode_in_steps(data)
        self.decoded: Request | None = None
        """Once it is."""

    def go_on(self) -> bool:
        """One step; answers whether it is decoded now. Raises `Rejected` for what is no request."""
        until = time.monotonic() + STEP_SECONDS
        try:
            while time.monotonic() < until:
                next(self._steps)
        except StopIteration as end:
            self.decoded = end.value
            return True
        return False


class LongRequests:
    """Lives as long as the service of client streams, whose readers drive it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._turn = asyncio.Lock()

    async def decode(self, decoding: RequestDecoding) -> Request:
        """Goes on with it, at once and in turns, until it is decoded. Raises `Rejected`."""
        decoding.go_on()
        while decoding.decoded is None:
            async with self._turn:
                await asyncio.sleep(0)
                decoding.go_on()
        return decoding.decoded

    async def say(self, set_name: SetName, stream: int, messages: tuple[ClientMessage, ...]) -> None:
        """Feeds one part after the other; returns when the last is handled."""
        for begin in range(0, len(messages), SAID_MAX):
            await self._until_heard(set_name)
            async with self._turn:
                self._driver.feed(ClientSaid(set_name, stream, messages[begin : begin + SAID_MAX]))
                await self._driver.handled()

    async def wait(self, set_name: SetName) -> None:
        """Returns when what was fed to that set before is handled, and others who wait for that had their turn."""
        async with self._turn:
            await self._driver.handled()
        await self._until_heard(set_name)

    async def _until_heard(self, set_name: SetName) -> None:
        """Its core hears what is said, and does not keep it for later."""
        while self._driver.holds_back(set_name):
            await asyncio.sleep(HELD_BACK_SECONDS)
