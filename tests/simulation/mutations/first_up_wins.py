"""Whoever is there first makes the set anew from its own disk, whoever was in it (R9)."""

from dataclasses import replace

from lockstep.core.cluster_map import Member, SetMap
from tests.simulation.doctored_map import DoctoredMap
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class FirstUpWins(DoctoredMap):
    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        return replace(set_map, in_sync=(own,), min_in_sync=1)


MUTATION = Mutation(
    "R9: a set starts with a disk of its last in-sync set, and nobody else is cleared",
    lambda: Parts(make_replica=FirstUpWins),
    ("history_24_empty_disk_first",),
)
