"""Quiet moments over real calls: coordinators hold together, and are let go."""

import asyncio
from collections.abc import AsyncGenerator

import pytest_asyncio

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.channels import Channels, make_server
from lockstep.runtime.etcd import EtcdInDoubt
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.rpc import Context, service, unary_stream
from lockstep.wire.v1 import coordinator_pb2 as pb
from services.broker.events.quiet_moments import QuietMoments


class FakeCoordinator:
    """Holds as it is told to."""

    def __init__(self) -> None:
        self.refuses = False
        self.runs_out = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = 0
        self.holding = 0
        self.address = ""
        self._server = make_server()

    async def start(self) -> None:
        handler = unary_stream(self._hold)
        self._server.add_generic_rpc_handlers((service("Coordinator", {"HoldCommits": handler}),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def _hold(self, _data: bytes, context: Context) -> None:
        self.asked += 1
        if self.refuses:
            raise Rejected(ErrorCode.UNAVAILABLE, "commits were held just now")
        self.holding += 1
        try:
            await self.may_answer.wait()
            await context.write(pb.HoldCommitsResponse(left_ms=60_000).SerializeToString())
            if not self.runs_out:
                await asyncio.sleep(60)
        finally:
            self.holding -= 1


class Rig:
    def __init__(self) -> None:
        self.coordinators = [FakeCoordinator(), FakeCoordinator()]
        self.addresses: list[str] = []
        self.channels = Channels()
        self.moments = QuietMoments(self._find, self.channels, seconds=20.0)
        self.is_etcd_silent = False

    async def _find(self) -> list[str]:
        if self.is_etcd_silent:
            raise EtcdInDoubt(ErrorCode.UNAVAILABLE, "silent")
        return self.addresses

    async def until_let_go(self) -> None:
        async with asyncio.timeout(20):
            while any(one.holding for one in self.coordinators):
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def rig() -> AsyncGenerator[Rig]:
    rig = Rig()
    for one in rig.coordinators:
        await one.start()
        rig.addresses.append(one.address)
    yield rig
    await rig.channels.close()
    for one in rig.coordinators:
        await one.stop()


async def test_a_moment_is_made_when_all_hold_at_once_and_then_they_are_let_go(rig: Rig) -> None:
    late = rig.coordinators[1]
    late.may_answer.clear()
    making = asyncio.create_task(rig.moments.make())
    async with asyncio.timeout(20):
        while not all(one.holding for one in rig.coordinators):
            await asyncio.sleep(0.01)
    assert not making.done()
    late.may_answer.set()
    assert await making
    await rig.until_let_go()
    assert (rig.moments.made_total, rig.moments.missed_total) == (1, 0)


async def test_one_that_refuses_spoils_it_and_the_others_are_let_go(rig: Rig) -> None:
    rig.coordinators[0].refuses = True
    assert not await rig.moments.make()
    await rig.until_let_go()
    assert (rig.moments.made_total, rig.moments.missed_total) == (0, 1)


async def test_a_hold_that_ran_out_before_the_others_were_quiet_does_not_count(rig: Rig) -> None:
    first, late = rig.coordinators
    first.runs_out = True
    late.may_answer.clear()
    making = asyncio.create_task(rig.moments.make())
    async with asyncio.timeout(20):
        while not (first.asked and not first.holding and late.holding):
            await asyncio.sleep(0.01)
        # Its end has to reach the broker, too.
        await asyncio.sleep(0.2)
    late.may_answer.set()
    assert not await making


async def test_one_that_is_not_there_commits_nothing(rig: Rig) -> None:
    (port,) = choose_ports(1)
    rig.addresses.append(f"127.0.0.1:{port}")
    assert await rig.moments.make()


async def test_without_coordinators_or_etcd_there_is_none(rig: Rig) -> None:
    rig.addresses.clear()
    assert not await rig.moments.make()
    rig.is_etcd_silent = True
    assert not await rig.moments.make()


async def test_a_moment_is_shared_and_none_follows_at_once(rig: Rig) -> None:
    assert all(await asyncio.gather(rig.moments.make(), rig.moments.make()))
    assert not await rig.moments.make()
    assert [one.asked for one in rig.coordinators] == [1, 1]
