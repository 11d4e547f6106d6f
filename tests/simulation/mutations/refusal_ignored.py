"""A backup's "no" to an open transaction is taken for a sign of life (DESIGN 3)."""

from msgspec.structs import replace

from lockstep.core.clock import Now
from lockstep.core.ids import LogIndex
from lockstep.core.inputs import AnyInput, BackupSaid
from lockstep.core.replication import Acknowledge, Refuse
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Deaf(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, BackupSaid) and isinstance(given.message, Refuse):
            refuse = given.message
            alive = Acknowledge(refuse.set_name, refuse.epoch, refuse.broker, refuse.incarnation, LogIndex(0))
            return replace(given, message=alive)
        return given


def _aim(options: Options) -> None:
    options.faults = ("disk reserve low", "kill broker", "pause broker")
    options.fault_gap_us = 2 * SECOND


MUTATION = Mutation(
    "DESIGN 3: a transaction that was refused while open is rolled back",
    lambda: Parts(make_replica=Deaf),
    ("refusal_then_crash",),
    seeds=range(10),
    aim=_aim,
)
