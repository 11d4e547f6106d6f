"""A learner takes itself for a member of the in-sync set and is promoted (R5)."""

from dataclasses import replace

from lockstep.core.cluster_map import Member, SetMap
from tests.simulation.doctored_map import DoctoredMap
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class OutsideTheSet(DoctoredMap):
    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        if set_map.member(self.broker) is not None:
            return set_map
        return replace(set_map, in_sync=tuple(sorted((*set_map.in_sync, own))))


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
    "R5: only a broker whose disk an in-sync entry names is promoted",
    lambda: Parts(make_replica=OutsideTheSet),
    ("history_04_swap_in_doubt",),
    seeds=range(10),
    aim=_aim,
)
