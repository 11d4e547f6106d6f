"""A member with another disk than the map names, an empty one perhaps, takes itself for the member (R1, R5, history 24)."""

from dataclasses import replace

from lockstep.core.cluster_map import Member, SetMap
from tests.simulation.doctored_map import DoctoredMap
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class AnyDisk(DoctoredMap):
    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        named = set_map.member(self.broker)
        if named is None:
            return set_map
        others = [member for member in set_map.in_sync if member.broker != self.broker]
        return replace(set_map, in_sync=tuple(sorted((*others, named._replace(disk=own.disk)))))


def _aim(options: Options) -> None:
    options.faults = ("restart with a lost disk", "full restart", "kill broker")
    options.fault_gap_us = 2 * SECOND


MUTATION = Mutation(
    "R1, R5: a directory with another disk than the map names is a learner",
    lambda: Parts(make_replica=AnyDisk),
    ("history_24_empty_disk_first",),
    seeds=range(10, 27),
    aim=_aim,
)
