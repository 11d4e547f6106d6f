"""A client that takes nothing of one write loses its stream, and nobody else does (DESIGN 6)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lockstep.core.clock import Now
from lockstep.core.effects import AnyEffect, TellClient
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, SessionId, SessionKey, SetName
from lockstep.core.inputs import AnyInput, ClientSaid, ClientStreamClosed
from lockstep.core.requests import AttachSession
from lockstep.core.server_messages import HeartbeatAnswered
from lockstep.runtime.driver import Driver
from lockstep.runtime.serving import ServingRights
from lockstep.runtime.session_codec import encode_request
from services.primary.sessions import SessionsService

SET = SetName("orders")
ATTACH = AttachSession(SET, SessionId("s"), SessionKey(0), Epoch(0), 10_000, 0, ())


class Deaf:
    """A caller that attaches and then takes nothing, or everything, or everything slowly."""

    def __init__(self, takes: bool, seconds: float = 0) -> None:
        self.takes = takes
        self.taken = 0
        self.received_bytes = 0
        self._seconds = seconds
        self._said = [encode_request(SET, (ATTACH,))]

    async def read(self) -> Any:
        if self._said:
            return self._said.pop()
        return await asyncio.get_running_loop().create_future()

    async def hear(self, handle: Callable[[bytes], bool]) -> bool:
        await asyncio.get_running_loop().create_future()
        return False

    def write_now(self, data: bytes) -> bool:
        return False

    async def write(self, data: bytes) -> None:
        if not self.takes:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(self._seconds)
        self.taken += 1

    def has_moved(self) -> bool:
        return self.takes


class Core:
    def __init__(self) -> None:
        self.closed: list[int] = []
        self.heard = 0
        """How often a client was heard that said nothing whole."""

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        if isinstance(given, ClientStreamClosed):
            self.closed.append(given.stream)
            return []
        if isinstance(given, ClientSaid) and not given.messages:
            self.heard += 1
            return []
        stream: int = given.stream  # type: ignore[union-attr]
        return [TellClient(SET, stream, HeartbeatAnswered(Epoch(1), LogIndex(1)), 0)]


@contextlib.asynccontextmanager
async def served(core: Core, caller: Deaf) -> AsyncIterator[SessionsService]:
    driver = Driver()
    driver.host(SET, core)
    service = SessionsService(driver, ServingRights(), lambda _: (), stall_seconds=0.1)
    serving = asyncio.ensure_future(service._open(caller))  # type: ignore[arg-type]
    try:
        yield service
        assert not serving.done()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_write_that_is_taken_slowly_goes_on() -> None:
    """A big message on a slow link."""
    slow = Deaf(takes=True, seconds=0.5)
    async with served(Core(), slow):
        await asyncio.sleep(0.8)
    assert slow.taken == 1


async def test_who_says_much_slowly_is_heard() -> None:
    """Heartbeats wait behind a big message, and the set takes silence for a client that hangs."""
    core, caller = Core(), Deaf(takes=True)
    async with served(core, caller):
        for received in (10, 4096 + 10, 4096 + 20):
            caller.received_bytes = received
            await asyncio.sleep(0.06)
    assert core.heard == 1


async def test_a_write_that_is_not_taken_ends_its_stream_alone() -> None:
    driver, core = Driver(), Core()
    driver.host(SET, core)
    service = SessionsService(driver, ServingRights(), lambda _: (), stall_seconds=0.2)
    deaf, good = Deaf(takes=False), Deaf(takes=True)
    other = asyncio.ensure_future(service._open(good))  # type: ignore[arg-type]
    with pytest.raises(Rejected) as refused:
        await service._open(deaf)  # type: ignore[arg-type]
    assert refused.value.code is ErrorCode.UNAVAILABLE
    await asyncio.sleep(0)
    assert good.taken == 1
    assert not other.done()
    assert len(core.closed) == 1
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    assert service.streams == 0


async def test_a_stream_too_many_is_refused_and_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver()
    driver.host(SET, Core())
    service = SessionsService(driver, ServingRights(), lambda _: (), streams_max=1)
    first = asyncio.ensure_future(service._open(Deaf(takes=True)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(Rejected) as refused:
            await service._open(Deaf(takes=True))  # type: ignore[arg-type]
        assert refused.value.code is ErrorCode.UNAVAILABLE
    assert len([line for line in caplog.messages if "limit=client_streams_max " in line]) == 1
    assert service.streams == 1
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
