"""Handing over: a process that stops gives each set that it leads to a backup in sync (DESIGN 2).

Law: it waits until they have it, and not for longer than it was told: a set that nobody takes is found by its lease's end.
"""

import asyncio

from lockstep.core.ids import BrokerId, SetName
from lockstep.core.inputs import HandOver
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from services.broker.core.succession import successor

LOOK_SECONDS = 0.02
"""Between looks at who leads."""


async def hand_over(broker: BrokerId, driver: Driver, view: ClusterView, seconds_max: float) -> None:
    """Gives each set that `broker` leads to the first in its order that may lead it, and waits until they are led, or for
    `seconds_max`.
    """
    waiting: list[SetName] = []
    for set_name in driver.set_names:
        set_map = view.set_map(set_name)
        if set_map is None or set_map.primary != broker:
            continue
        to = successor(set_map, broker, view.whole_members(set_name))
        if to is not None:
            driver.feed(HandOver(set_name, to))
            waiting.append(set_name)
    deadline = asyncio.get_running_loop().time() + seconds_max
    while waiting and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(LOOK_SECONDS)
        waiting = [name for name in waiting if _leads(broker, view, name)]


def _leads(broker: BrokerId, view: ClusterView, set_name: SetName) -> bool:
    set_map = view.set_map(set_name)
    return set_map is not None and set_map.primary == broker
