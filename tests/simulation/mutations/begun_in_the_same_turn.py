"""A primary that has done something alone begins the next thing like it before that leaves (`services/primary/core/alone.py`)."""

from lockstep.core.clock import Now
from lockstep.core.inputs import AnyInput
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Restless(PrimaryCore):
    def _hear_in_turn(self, given: AnyInput, now: Now) -> None:
        super()._hear_in_turn(given, now)
        if self._has_just_ended:
            self._has_just_ended = False
            self._take_held_back(now)


class RestlessReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.__class__ = Restless


MUTATION = Mutation(
    "ARCHITECTURE, Decisions: behind what nothing may come between lies a turn in which it leaves",
    lambda: Parts(make_replica=RestlessReplica),
    ("one_thing_behind_another/each is answered",),
)
