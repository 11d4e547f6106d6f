"""Brokers that want quiet moments for plans of committed events: now and then all coordinators are asked to hold their commits.

Law: it draws from a generator of its own. Some let go late, or never.
"""

from random import Random
from typing import TYPE_CHECKING

from services.coordinator.core.messages import HeldAnswer, HoldAsked, RequestId
from tests.simulation.loop import MS

if TYPE_CHECKING:
    from tests.simulation.coordinator import Coordinator
    from tests.simulation.world import World

GAP_US = 700 * MS
PATIENCE_US = 400 * MS


class QuietMoments:
    """Lives as long as its world."""

    def __init__(self, world: "World", running: "dict[str, Coordinator]") -> None:
        """`running`: by place; some of them are dead."""
        self._world = world
        self._running = running
        self._random = Random(f"quiet moments {world.options.seed}")
        if world.options.coordination is not None:
            world.loop.after(self._random.randrange(GAP_US), self._want)

    def _want(self) -> None:
        world = self._world
        world.loop.after(int(self._random.expovariate(1 / GAP_US)), self._want)
        broker = self._random.choice(world.broker_ids)
        waits_us = PATIENCE_US * self._random.choice((1, 1, 1, 20))
        for place in self._running:
            side = world.network.connect(world.host_of(broker), f"coordinator:{place}")
            side.on_message = self._heard
            side.send(HoldAsked(RequestId(0)))
            world.loop.after(self._random.randrange(waits_us), side.close)

    def _heard(self, answer: object) -> None:
        self._world.branches.reach(
            "commit hold: quiet" if isinstance(answer, HeldAnswer) else "commit hold: refused"
        )
