"""A watch over a stream that says nothing: how it ends."""

import asyncio
from typing import cast

import pytest

from lockstep.runtime.etcd_endpoints import Endpoint
from lockstep.runtime.etcd_values import WatchLost
from lockstep.runtime.etcd_watch import watch


class Silent:
    """In the place of an endpoint, its stub and its stream: it takes everything and says nothing."""

    def __init__(self) -> None:
        self.watch, self.address = self, "silent:2379"
        self.Watch = self._open
        self.is_given_up = asyncio.Event()
        self.abandoned: list[object] = []

    def _open(self, **_: object) -> "Silent":
        return self

    async def write(self, request: object) -> None:
        pass

    async def read(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            self.is_given_up.set()
            await asyncio.sleep(0.05)

    def cancel(self) -> None:
        pass

    async def connect(self) -> Endpoint:
        return cast(Endpoint, self)

    async def first(self) -> None:
        async for _ in watch(self.connect, self.abandoned.append, "prefix", 1, 0.01):
            pass


async def test_silence_ends_it_and_its_endpoint_is_abandoned() -> None:
    etcd = Silent()
    with pytest.raises(WatchLost):
        await etcd.first()
    assert etcd.abandoned == [etcd]


async def test_whoever_is_cancelled_while_it_gives_its_stream_up_ends() -> None:
    etcd = Silent()
    watching = asyncio.ensure_future(etcd.first())
    await etcd.is_given_up.wait()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
