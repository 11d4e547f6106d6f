"""A store acknowledges what it has not synced (DESIGN 5): its disk's syncs do nothing."""

from tests.simulation.disk import VirtualDisk
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


def lying_disk(name: str) -> VirtualDisk:
    disk = VirtualDisk(name)
    disk.is_syncing = False
    return disk


MUTATION = Mutation(
    "DESIGN 5: an answer leaves after the sync that it reports",
    lambda: Parts(make_disk=lying_disk),
    ("history_16_full_restart",),
)
