"""A primary hands its set over only when nothing waits to be heard, however long that takes (DESIGN 2, T8)."""

from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Patient(PrimaryCore):
    @property
    def is_amid(self) -> bool:
        return self.is_alone and not self.is_leaving


class PatientReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.__class__ = Patient


MUTATION = Mutation(
    "ARCHITECTURE, Decisions: a primary leaves between two things that nothing may come between",
    lambda: Parts(make_replica=PatientReplica),
    ("one_thing_behind_another/it is handed over",),
)
