"""A learner takes itself for a member of the in-sync set and is promoted (R5)."""

from dataclasses import replace

from lockstep.core.cluster_map import Member, SetMap
from tests.simulation.doctored_map import DoctoredMap
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class OutsideTheSet(DoctoredMap):
    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        if set_map.member(self.broker) is not None:
            return set_map
        return replace(set_map, in_sync=tuple(sorted((*set_map.in_sync, own))))


MUTATION = Mutation(
    "R5: only a broker whose disk an in-sync entry names is promoted",
    lambda: Parts(make_replica=OutsideTheSet),
    ("history_04_swap_in_doubt",),
)
