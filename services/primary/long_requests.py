"""Long requests: what clients say in one go that is too long for one step of the event loop, or too much for one turn.

Law: of all streams with much to say one has its turn at a time. It is decoded by a short step, or the cores are fed one part of
its messages and have handled that; so whoever else speaks waits for one part, however many such streams there are.
"""

import asyncio
import logging
import time
from collections.abc import Generator
from dataclasses import dataclass

from lockstep.core.ids import SetName
from lockstep.core.inputs import ClientSaid
from lockstep.core.requests import ClientMessage
from lockstep.runtime.driver import Driver
from lockstep.runtime.session_codec import decode_in_steps
from lockstep.runtime.turns import LeftToThread, give_way

STEP_SECONDS = 0.005
"""Of decoding."""
SAID_MAX = 500
"""Messages of a client in one input of the core: a few milliseconds' work; where each of them is much the core takes fewer in one
step. Behind so many it waits until they are handled."""
HELD_BACK_SECONDS = 0.005
"""Between two looks whether a core is through with what nothing may come between."""
UNHEARD_BYTES_MAX = 64 * 1024 * 1024
"""Of requests of all clients of a set that were fed and may not be heard yet: one command of the largest size. A core keeps what
it is fed while it is amid something that nothing may come between; beyond this nothing more is read from clients before that is
done, and waits where they have it."""

Request = tuple[SetName, tuple[ClientMessage, ...]]
_log = logging.getLogger("lockstep.sessions")


@dataclass(slots=True)
class Unheard:
    """What clients have said to one set since all of it was known to be heard. Lives as long as their service."""

    bytes: int = 0
    """Of requests, as they came."""


class RequestDecoding:
    """A request of a client's stream on its way from bytes to messages, step by step."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._steps: Generator[LeftToThread, None, Request] = decode_in_steps(data)
        self.decoded: Request | None = None
        """Once it is."""
        self.left: LeftToThread = None
        """What the last step left to a thread, if anything: the next one is behind its end."""

    def go_on(self) -> bool:
        """One step; answers whether it is decoded now. Raises `Rejected` for what is no request."""
        until = time.monotonic() + STEP_SECONDS
        self.left = None
        try:
            while self.left is None and time.monotonic() < until:
                self.left = next(self._steps)
        except StopIteration as end:
            self.decoded = end.value
            return True
        return False


class LongRequests:
    """Lives as long as the service of client streams, whose readers drive it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._turn = asyncio.Lock()
        self._unheard: dict[SetName, Unheard] = {}
        self._heard: dict[SetName, asyncio.Event] = {}
        """Whoever waits for a core that keeps what it is fed waits for this."""

    def unheard(self, set_name: SetName) -> Unheard:
        """Of a set that has a core here; whoever feeds what its clients say counts it."""
        return self._unheard.setdefault(set_name, Unheard())

    async def decode(self, decoding: RequestDecoding) -> Request:
        """Goes on with it, at once and in turns, until it is decoded. Raises `Rejected`."""
        if decoding.left is None:
            decoding.go_on()
        while decoding.decoded is None:
            if decoding.left is not None:
                await give_way(decoding.left)
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
        self.unheard(set_name).bytes = 0

    async def _until_heard(self, set_name: SetName) -> None:
        """Its core hears what is said, and does not keep it for later."""
        while self._driver.holds_back(set_name):
            if set_name not in self._heard:
                self._heard[set_name] = asyncio.Event()
                self._look_later(set_name, is_told=False)
            await self._heard[set_name].wait()

    def _look_later(self, set_name: SetName, is_told: bool) -> None:
        """One look for all who wait. `is_told`: it was logged that clients have to."""
        unheard = self.unheard(set_name).bytes
        if unheard >= UNHEARD_BYTES_MAX and not is_told:
            is_told = True
            text = "set=%s event=clients_wait bytes=%d unheard_bytes_max=%d"
            _log.warning(text, set_name, unheard, UNHEARD_BYTES_MAX)
        asyncio.get_running_loop().call_later(HELD_BACK_SECONDS, self._look, set_name, is_told)

    def _look(self, set_name: SetName, is_told: bool) -> None:
        if self._driver.holds_back(set_name):
            self._look_later(set_name, is_told)
        else:
            self._heard.pop(set_name).set()
