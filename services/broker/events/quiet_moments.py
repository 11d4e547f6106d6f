"""Quiet moments: all coordinators hold their commits at once, so that every transaction over several sets has ended in all of
them or in none (DESIGN 7). A cut at the commit indexes of such a moment is closed.

Law: a moment is made for plans and nothing rests on it: whether a cut is closed is asked of the sets themselves. Whoever comes
while one is being made shares it, and coordinators are let go as soon as it has been.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc.aio

from lockstep.runtime.channels import Channels
from lockstep.runtime.etcd import EtcdInDoubt, EtcdRejected
from lockstep.runtime.process import spawn
from lockstep.runtime.status import is_ours
from lockstep.wire.v1 import coordinator_pb2 as pb

_log = logging.getLogger("lockstep.events")

MOMENT_SECONDS = 1.0
"""For one: above any hold. Coordinators that do not answer let go by themselves."""
PAUSE_SECONDS = 0.25
"""After one: plans that it did not help are held by what no coordinator can hurry, such as a set that is away."""
_HOLD = "/lockstep.wire.v1.Coordinator/HoldCommits"
_END: Any = grpc.aio.EOF


class QuietMoments:
    """Lives as long as the process."""

    def __init__(
        self,
        find: Callable[[], Awaitable[Sequence[str]]],
        channels: Channels,
        seconds: float = MOMENT_SECONDS,
    ) -> None:
        """`find`: addresses of all coordinators that are there; raises `EtcdRejected`, `EtcdInDoubt`. `seconds`: for one
        moment.
        """
        self._seconds = seconds
        self._find = find
        self._channels = channels
        self._making: asyncio.Future[bool] | None = None
        self._again_at = 0.0
        """By the loop's clock."""
        self.made_total = 0
        self.missed_total = 0
        """A coordinator had held its commits just before, or a set was slow to answer one."""

    async def make(self) -> bool:
        """Whether there was one since this was called. Returns soon, and raises nothing."""
        if self._making is None:
            if asyncio.get_running_loop().time() < self._again_at:
                return False
            self._making = asyncio.get_running_loop().create_future()
            spawn(self._make(self._making), "quiet moment")
        return await asyncio.shield(self._making)

    async def _make(self, done: asyncio.Future[bool]) -> None:
        is_made = False
        try:
            async with asyncio.timeout(self._seconds):
                is_made = await self._hold_all(await self._find())
        except (EtcdRejected, EtcdInDoubt, TimeoutError) as error:
            _log.debug("event=no_quiet_moment %r", error)
        self._making = None
        if is_made:
            self._again_at = asyncio.get_running_loop().time() + PAUSE_SECONDS
        self.made_total += is_made
        self.missed_total += not is_made
        done.set_result(is_made)

    async def _hold_all(self, addresses: Sequence[str]) -> bool:
        request = pb.HoldCommitsRequest().SerializeToString()
        with contextlib.ExitStack() as cleanup:
            holds = []
            for address in addresses:
                call: Any = self._channels.to(address).unary_stream(_HOLD)
                holds.append(_Hold(call(request)))
                cleanup.callback(holds[-1].end)
            for answered in asyncio.as_completed([hold.is_quiet for hold in holds]):
                if not await answered:
                    return False
            # A hold that ran out while others were still waited for was not at their time.
            return bool(holds) and all(hold.lasts for hold in holds)


class _Hold:
    """Of one coordinator; ended by whoever asked for it."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._is_there = True
        self.is_quiet = asyncio.ensure_future(self._hear())
        """Its result: nothing is being committed there."""

    @property
    def lasts(self) -> bool:
        return not self._is_there or not self._call.done()

    def end(self) -> None:
        self.is_quiet.cancel()
        self._call.cancel()

    async def _hear(self) -> bool:
        try:
            return await self._call.read() is not _END
        except grpc.aio.AioRpcError as error:
            # Who is not there commits nothing; others take up what it began.
            self._is_there = is_ours(error)
            return not self._is_there
