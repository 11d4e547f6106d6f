"""A store acknowledges what it has not synced (DESIGN 5): its disk's syncs do nothing, and power takes it all."""

from random import Random

from tests.simulation.disk import VirtualDisk
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class LyingDisk(VirtualDisk):
    def __init__(self, name: str = "disk") -> None:
        super().__init__(name)
        self.is_syncing = False

    def lose_power(self, chance: Random) -> None:
        for directory in self.directories.values():
            for file in directory.segments.values():
                file.cached[:] = file.durable
                file.dirty.clear()
        super().lose_power(chance)


def _aim(options: Options) -> None:
    options.faults = ("power loss", "power loss of all", "kill broker")
    options.fault_gap_us = 2 * SECOND


MUTATION = Mutation(
    "DESIGN 5: an answer leaves after the sync that it reports",
    lambda: Parts(make_disk=LyingDisk),
    ("history_16_full_restart",),
    seeds=range(10),
    aim=_aim,
)
