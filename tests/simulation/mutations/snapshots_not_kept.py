"""What changes while a snapshot is read is not copied before (R8, R12)."""

from lockstep.core.set_state import SetState
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Forgetful(WeakReplica):
    def weaken_state(self, state: SetState) -> None:
        captures = state.changes.captures
        captures.of_contents, captures.of_entries = [], []


def _aim(options: Options) -> None:
    options.faults = ("restart with a lost disk", "full restart", "kill broker", "rolling kill")
    options.fault_gap_us = 2 * SECOND
    options.small_limits = True


MUTATION = Mutation(
    "R8: a snapshot is of one moment, however much is applied while it is read",
    lambda: Parts(make_replica=Forgetful),
    seeds=range(19, 29),
    aim=_aim,
)
