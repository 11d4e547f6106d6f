"""Endpoints of etcd: what a caller who is told to stop meanwhile makes of a wait for one of them."""

import asyncio
from typing import cast

import pytest

from lockstep.runtime.etcd_endpoints import Endpoint, Endpoints


class Unreachable:
    """In the place of an endpoint and its channel; who stops waiting for it is let go a moment later."""

    def __init__(self) -> None:
        self.channel = self
        self.is_given_up = asyncio.Event()

    async def channel_ready(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            self.is_given_up.set()
            await asyncio.sleep(0.05)


async def test_whoever_is_cancelled_while_it_stops_waiting_for_a_connection_ends() -> None:
    endpoint = Unreachable()
    waiting = asyncio.ensure_future(Endpoints._first_to_connect([cast(Endpoint, endpoint)], 0.01))
    await endpoint.is_given_up.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
