"""What all kinds of faults use: whom to hit, for how long, and whether it is still allowed."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.core.ids import BrokerId
from tests.simulation.loop import MS, SECOND

if TYPE_CHECKING:
    from tests.simulation.world import World


class FaultTools:
    """The part of `Faults` that its kinds share."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.counts: Counter[str] = Counter()
        self._is_active = False
        self._disks_lost = 0
        self._is_set_back = False
        """etcd was, or is about to be."""

    def _if_active(self, fault: Callable[..., None], *arguments: object) -> None:
        if self._is_active:
            fault(*arguments)

    def _some_broker(self) -> BrokerId:
        """Any broker; rather often one that is a primary."""
        world = self._world
        if world.random.random() < 0.5:
            primaries = world.primaries()
            if primaries:
                return world.random.choice(primaries)
        return world.random.choice(world.broker_ids)

    def _later(self, low_us: int, high_us: int) -> int:
        return self._world.random.randrange(low_us, high_us)

    def _down_us(self) -> int:
        """Short enough to return within its lease, or long enough to be replaced."""
        return (
            self._later(5 * MS, 500 * MS)
            if self._world.random.random() < 0.4
            else self._later(1 * SECOND, 9 * SECOND)
        )
