"""A member does not count any more once its removal, or its replacement, is asked for (R3, R4, histories 21, 22)."""

from lockstep.core.cluster_map import Member
from services.primary.core.membership import Membership
from services.primary.core.primary import PrimaryCore
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class EagerMembership(Membership):
    def counted(self) -> set[Member]:
        return set(self._targets[-1].in_sync if self._targets else self.set_map.in_sync)


class Eager(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.membership.__class__ = EagerMembership


def _aim(options: Options) -> None:
    options.faults = ("kill broker", "power loss", "partition", "isolate machine", "cut off from etcd")
    options.fault_gap_us = 2 * SECOND


MUTATION = Mutation(
    "R4: what waited for a lost backup completes only after the swap succeeded",
    lambda: Parts(make_replica=Eager),
    ("history_22_lone_disk",),
    seeds=range(26, 46),
    aim=_aim,
)
