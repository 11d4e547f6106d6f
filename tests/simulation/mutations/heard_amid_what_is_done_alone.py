"""A primary hears its clients while it does what nothing may come between (`services/primary/core/alone.py`)."""

from lockstep.core.clock import Now
from lockstep.core.inputs import AnyInput, ClientSaid
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.tiny_steps import draw_tiny_steps
from tests.simulation.weak_replica import WeakReplica


class Interrupted(PrimaryCore):
    def _hear_in_turn(self, given: AnyInput, now: Now) -> None:
        if isinstance(given, ClientSaid):
            self._take(given, now)
        else:
            super()._hear_in_turn(given, now)


class InterruptedReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.__class__ = Interrupted


def _aim(options: Options) -> None:
    options.tiny_steps = draw_tiny_steps(options.seed)


MUTATION = Mutation(
    "ARCHITECTURE, Decisions: what nothing may come between goes in pieces, and alone",
    lambda: Parts(make_replica=InterruptedReplica),
    seeds=range(2, 3),
    aim=_aim,
)
