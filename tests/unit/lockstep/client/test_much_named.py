"""A resumption that names very many deliveries: a thread says it in order, and nothing overtakes it."""

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import grpc.aio
import pytest

from lockstep.client.session_events import StreamLost
from lockstep.client.session_stream import NAMED_AT_ONCE, SessionStream
from lockstep.core.ids import Epoch, QueuePosition, SessionId, SessionKey, SetName
from lockstep.core.requests import AttachSession, Heartbeat, HeldDeliveries
from lockstep.runtime.session_codec import decode_request
from lockstep.runtime.wire import Serialized
from tests.unit.lockstep.client.fake_broker import eventually
from tests.unit.lockstep.runtime.serialized import whole

SET = SetName("one")


class Call:
    """Takes what is written, at once or not, until it is cancelled."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self._is_over = asyncio.Event()

    def __call__(self) -> "Call":
        return self

    def stream_stream(self, _method: str) -> "Call":
        return self

    def write_now(self, data: Serialized) -> bool:
        self.written.append(whole(data))
        return True

    async def write(self, data: Serialized) -> None:
        self.written.append(whole(data))

    async def hear(self, _: Callable[[bytes], bool]) -> bool:
        await self._is_over.wait()
        return True

    def cancel(self) -> None:
        self._is_over.set()


def attach(*positions: int) -> AttachSession:
    named = HeldDeliveries("q", Epoch(1), tuple(map(QueuePosition, positions)))
    return AttachSession(SET, SessionId("s"), SessionKey(1), Epoch(1), 1000, 0, (named,))


@pytest.fixture
async def call() -> Call:
    return Call()


async def test_much_is_said_in_order_by_a_thread_and_nothing_overtakes_it(call: Call) -> None:
    positions = list(range(1, NAMED_AT_ONCE + 2))
    random.Random(1).shuffle(positions)
    told: list[Any] = []
    stream = SessionStream(cast(grpc.aio.Channel, call), SET, 1, told.append, told.append)
    stream.write((attach(*positions),))
    assert not call.written, "by this step"
    stream.write((Heartbeat(),))
    await eventually(lambda: told == [1])
    assert [decode_request(data) for data in call.written] == [(SET, (attach(*sorted(positions)),))]
    stream.write((Heartbeat(),))
    assert len(call.written) == 2
    await stream.close()


async def test_nothing_overtakes_what_waits_for_a_thread(call: Call) -> None:
    told: list[Any] = []
    loop, is_free = asyncio.get_running_loop(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        loop.set_default_executor(threads)
        busy = loop.run_in_executor(None, is_free.wait)
        stream = SessionStream(cast(grpc.aio.Channel, call), SET, 1, told.append, told.append)
        stream.write((attach(*range(1, NAMED_AT_ONCE + 2)),))
        for _ in range(5):
            await asyncio.sleep(0)
            stream.write((Heartbeat(),))
        written = len(call.written)
        is_free.set()
        await eventually(lambda: told)
        assert (written, len(call.written), told) == (0, 1, [1])
        await stream.close()
        await busy


async def test_a_stream_that_is_dropped_meanwhile_says_nothing(call: Call) -> None:
    told: list[Any] = []
    stream = SessionStream(cast(grpc.aio.Channel, call), SET, 1, told.append, told.append)
    stream.write((attach(*range(1, NAMED_AT_ONCE + 2)),))
    await asyncio.sleep(0)
    await stream.close()
    await asyncio.get_running_loop().run_in_executor(None, int)
    await asyncio.sleep(0)
    assert not call.written and not told


async def test_little_is_said_at_once_as_it_is(call: Call) -> None:
    stream = SessionStream(cast(grpc.aio.Channel, call), SET, 1, lambda _: None, lambda _: None)
    stream.write((attach(2, 1),))
    assert [decode_request(data) for data in call.written] == [(SET, (attach(2, 1),))]
    await stream.close()


async def test_a_stream_ends_by_much_that_has_no_form(call: Call) -> None:
    told: list[Any] = []
    stream = SessionStream(cast(grpc.aio.Channel, call), SET, 1, told.append, told.append)
    stream.write((attach(*[7] * (NAMED_AT_ONCE + 1)),))
    await eventually(lambda: told)
    assert isinstance(told[0], StreamLost) and "named twice" in told[0].reason
    await stream.close()
