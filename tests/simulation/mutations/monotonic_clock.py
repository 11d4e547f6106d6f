"""The lease is measured on a clock that stands still while the machine sleeps (R6, history 10d)."""

from tests.simulation.clocks import Clocks
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.world import World


class MonotonicClocks(Clocks):
    __slots__ = ()

    def slept(self, duration_ms: int) -> None:
        self._offset_ms -= duration_ms


def _exchange(world: World) -> None:
    for clocks in world.clocks.values():
        clocks.__class__ = MonotonicClocks


MUTATION = Mutation(
    "R6: leases are measured on CLOCK_BOOTTIME",
    lambda: Parts(prepare=_exchange),
    ("history_10d_machine_sleeps",),
)
