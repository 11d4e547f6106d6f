"""A restarted member says that its memory is whole, and counts without the non-durable state (R12, histories 3 and 23)."""

from msgspec.structs import replace

from lockstep.core.effects import AnyEffect, OpenSubscription
from lockstep.core.set_state import SetState
from services.backup.core.backup_memory import BackupState
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Complacent(WeakReplica):
    def said(self, effect: AnyEffect) -> AnyEffect:
        if isinstance(effect, OpenSubscription):
            return replace(effect, subscribe=replace(effect.subscribe, is_memory_whole=True))
        return effect

    def weaken_state(self, state: SetState) -> None:
        if self.backup is not None and self.backup.state is BackupState.FOLLOWING:
            self.backup.memory.is_whole = True


def _aim(options: Options) -> None:
    options.faults = ("full restart", "kill broker", "rolling kill")
    options.fault_gap_us = 2 * SECOND


MUTATION = Mutation(
    "R12: a restarted broker lacks the non-durable state, and is not in sync until it has got it",
    lambda: Parts(make_replica=Complacent),
    ("history_03_transients_and_positions/plain", "history_23_restart_patterns/backup"),
    seeds=range(10),
    aim=_aim,
)
