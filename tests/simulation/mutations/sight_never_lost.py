"""A coordinator takes for seen whatever was begun in its life, though it had nothing of etcd meanwhile (R1, T3, history 26)."""

from lockstep.core.clock import Now
from lockstep.core.ids import Incarnation
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.log_sight import LogSight
from services.coordinator.core.settings import CoordinatorLimits
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class _NeverLost(LogSight):
    def _is_lost(self, now: Now) -> bool:
        return False


class SeesAll(Coordinator):
    def __init__(self, process: Incarnation, limits: CoordinatorLimits) -> None:
        super().__init__(process, limits)
        self._sight = _NeverLost(limits)


MUTATION = Mutation(
    "R1, T3: what was begun while a coordinator had nothing of etcd is decided only when a roll call was answered",
    lambda: Parts(make_coordinator=SeesAll),
    (
        "ended_where_etcd_was_out_of_sight/begun elsewhere",
        "ended_where_etcd_was_out_of_sight/enlisted here",
        "ended_where_etcd_was_out_of_sight/a commit that comes late",
    ),
)
