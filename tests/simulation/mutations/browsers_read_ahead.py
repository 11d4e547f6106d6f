"""A browser is shown at once what it was read at the log's end (P1, R11)."""

from lockstep.core.ids import LogIndex
from services.primary.core.dispatch import Dispatch
from services.primary.core.primary import PrimaryCore
from services.primary.core.queue_dispatch import Delivery, Drained
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Hasty(Dispatch):
    def deliver(self, log_end: LogIndex, ended_ms: int) -> list[Delivery | Drained]:
        return super().deliver(LogIndex(0), ended_ms)


class HastyReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.dispatch.__class__ = Hasty


def _aim(options: Options) -> None:
    options.has_choosers = True


MUTATION = Mutation(
    "R11: what a browser is shown is committed",
    lambda: Parts(make_replica=HastyReplica),
    seeds=range(1, 2),
    aim=_aim,
)
