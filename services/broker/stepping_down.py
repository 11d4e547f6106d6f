"""Stepping down: before a broker is stopped on purpose, its sets are handed over, and those that stay are enough (DESIGN 2, R3).

Law: one broker of a cluster at a time, by a `Turn`; otherwise two that look at the same moment would count on each other. Nothing
is refused: a broker that is stopped all the same is one that died.
"""

import asyncio
import logging

from lockstep.core.errors import LockstepError
from lockstep.core.ids import BrokerId
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import EtcdClient
from lockstep.wire.v1 import cluster_pb2 as pb
from services.broker.core.obstacles import obstacle
from services.broker.handing_over import hand_over
from services.broker.status_report import StatusReport
from services.broker.turn import Turn

LOOK_SECONDS = 0.2
"""Between looks at who is in sync."""
HAND_OVER_SECONDS = 3.0
"""For each try to hand the sets over: a promotion takes a few tenths."""
SECONDS_MAX = 24 * 3600.0
"""Longest wait that may be asked for."""

_log = logging.getLogger("lockstep.stepping_down")


class SteppingDown:
    """Lives as long as the broker process; part of the Cluster service."""

    def __init__(
        self, broker: BrokerId, etcd: EtcdClient, view: ClusterView, driver: Driver, report: StatusReport
    ) -> None:
        self._broker = broker
        self._etcd = etcd
        self._view = view
        self._driver = driver
        self._report = report
        self._turn: Turn | None = None
        """Of a broker that may stop now."""

    async def stopped(self) -> None:
        """This broker stops, and its lease is gone: whoever looks now does not count on it, and may take the turn."""
        if self._turn is not None:
            await self._turn.end()

    async def step_down(self, request: pb.StepDownRequest) -> pb.StepDownResponse:
        """Returns when this broker may stop, or, with what stands against it, after `seconds_max`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.seconds_max, SECONDS_MAX)
        turn, may_stop = Turn(self._etcd, self._view.keys.prefix, self._broker), False
        _log.info("broker=%s event=stepping_down", self._broker)
        try:
            while True:
                obstacles = await self._try(turn)
                may_stop = not obstacles
                if may_stop:
                    self._turn = turn
                if may_stop or loop.time() >= deadline:
                    _log.info("broker=%s event=stepped_down obstacles=%s", self._broker, obstacles)
                    return pb.StepDownResponse(obstacles=obstacles)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if not may_stop:
                await turn.end()

    async def _try(self, turn: Turn) -> list[str]:
        try:
            other = await turn.take()
            if turn.is_new:
                # Whoever had it last may have stopped this moment: the watch is to show it.
                await asyncio.sleep(LOOK_SECONDS)
        except LockstepError as error:
            return [f"etcd: {error.message}"]
        if other:
            return [other]
        obstacles = self._obstacles()
        if not obstacles:
            await hand_over(self._broker, self._driver, self._view, HAND_OVER_SECONDS)
            # Meanwhile somebody may have been lost, or have got no primary yet.
            obstacles = self._obstacles() + self._led()
        return obstacles

    def _obstacles(self) -> list[str]:
        found = []
        for set_name in self._driver.set_names:
            set_map = self._view.set_map(set_name)
            if set_map is None:
                continue
            whole = self._view.whole_members(set_name)
            prepared = self._report.replica(set_name).prepared_transactions
            if why := obstacle(set_map, self._broker, whole, prepared):
                found.append(f"set {set_name}: {why}")
        return found

    def _led(self) -> list[str]:
        """Sets that this broker leads though others could, or that nobody leads yet."""
        found = []
        for set_name in self._driver.set_names:
            set_map = self._view.set_map(set_name)
            if set_map is None or not set_map.primary or len(set_map.brokers) == 1:
                continue
            if set_map.primary == self._broker:
                found.append(f"set {set_name}: it is not handed over")
            elif self._view.sets[set_name].lease_holder is None:
                found.append(f"set {set_name}: nobody leads it")
        return found
