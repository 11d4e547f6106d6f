"""A store acknowledges what it has not synced (DESIGN 5): its disk's syncs do nothing."""

from tests.simulation.disk import VirtualDisk
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts


def lying_disk(name: str) -> VirtualDisk:
    disk = VirtualDisk(name)
    disk.is_syncing = False
    return disk


def _aim(options: Options) -> None:
    options.faults = ("power loss", "power loss of all", "kill broker")
    options.fault_gap_us = 2 * SECOND


MUTATION = Mutation(
    "DESIGN 5: an answer leaves after the sync that it reports",
    lambda: Parts(make_disk=lying_disk),
    ("history_16_full_restart",),
    aim=_aim,
)
