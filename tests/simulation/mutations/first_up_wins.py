"""Whoever is there first makes the set anew from its own disk, whoever was in it (R9)."""

from dataclasses import replace

from lockstep.core.cluster_map import Member, SetMap
from tests.simulation.doctored_map import DoctoredMap
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class FirstUpWins(DoctoredMap):
    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        return replace(set_map, in_sync=(own,), min_in_sync=1)


def _aim(options: Options) -> None:
    options.faults = (
        "kill broker",
        "rolling kill",
        "isolate machine",
        "partition",
        "power loss",
        "full restart",
    )
    options.fault_gap_us = 2 * SECOND


MUTATION = Mutation(
    "R9: a set starts with a disk of its last in-sync set, and nobody else is cleared",
    lambda: Parts(make_replica=FirstUpWins),
    ("history_24_empty_disk_first",),
    seeds=range(2, 12),
    aim=_aim,
)
