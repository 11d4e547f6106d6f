"""Giving back: a set that a stopped broker has handed over is led by its first broker again when that has come back (DESIGN C4).

Law: one set of the cluster at a time, and none while a broker is about to stop: both take the same `Turn`. It is given by an
orderly hand-over, as before a broker is stopped, and the next one waits until this one lacks no member again.
"""

import asyncio
import logging

from lockstep.core.errors import LockstepError
from lockstep.core.ids import BrokerId, SetName
from lockstep.core.inputs import HandOver
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import EtcdClient
from services.broker.core.replica import Replica
from services.broker.core.succession import GivingBack
from services.broker.turn import Turn

LOOK_SECONDS = 0.5
"""Between looks at who is in sync."""
WATCH_SECONDS = 0.2
"""Behind a turn that is new: whoever had it last may have done something this moment, and the watch is to show it."""
RETRY_SECONDS = 3.0
"""Behind a look that found somebody else's turn, or no etcd: each costs several calls, and a broker may take long to stop."""
WHOLE_SECONDS = 10.0
"""How long the others wait for a set that was given back, until it lacks no member again: below the turn's own time."""

_log = logging.getLogger("lockstep.giving_back")


class GivesBack:
    """Lives as long as the broker process; `run` is a task of it."""

    def __init__(
        self, broker: BrokerId, etcd: EtcdClient, view: ClusterView, driver: Driver, wait_seconds: float
    ) -> None:
        """`wait_seconds`: how long a set lacks no member before it is given back."""
        self._broker = broker
        self._etcd = etcd
        self._view = view
        self._driver = driver
        self._core = GivingBack(broker, round(wait_seconds * 1000))

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for set_name in sorted(self._driver.set_names):
                to = self._due(set_name)
                if to is not None and not await self._give(set_name, to):
                    await asyncio.sleep(RETRY_SECONDS)

    def _due(self, set_name: SetName) -> BrokerId | None:
        set_map, replica = self._view.set_map(set_name), self._driver.core(set_name)
        if set_map is None or not isinstance(replica, Replica):
            return None
        whole = self._view.whole_members(set_name)
        return self._core.due(set_map, whole, replica.is_serving, replica.is_chosen, boottime_ms())

    async def _give(self, set_name: SetName, to: BrokerId) -> bool:
        """Answers whether the turn was to be had."""
        turn = Turn(self._etcd, self._view.keys.prefix, self._broker, is_giving_back=True)
        try:
            if await turn.take():
                return False
            if turn.is_new:
                await asyncio.sleep(WATCH_SECONDS)
            if self._due(set_name) != to:
                return True
            self._core.given(set_name, boottime_ms())
            _log.info("set=%s event=given_back to=%s", set_name, to)
            self._driver.feed(HandOver(set_name, to))
            if not await self._is_whole_again(set_name, to):
                _log.warning("set=%s event=given_back_in_vain to=%s", set_name, to)
            return True
        except LockstepError as error:
            _log.info("set=%s event=not_given_back %s", set_name, error.message)
            return False
        finally:
            await turn.end()

    async def _is_whole_again(self, set_name: SetName, to: BrokerId) -> bool:
        """Waits until `to` leads and all are in sync, this broker too, or for `WHOLE_SECONDS`."""
        try:
            async with asyncio.timeout(WHOLE_SECONDS):
                while True:
                    set_map, whole = self._view.set_map(set_name), self._view.whole_members(set_name)
                    if set_map is None:
                        return False
                    if set_map.primary == to and all(broker in whole for broker in set_map.brokers):
                        return True
                    await asyncio.sleep(WATCH_SECONDS)
        except TimeoutError:
            return False
