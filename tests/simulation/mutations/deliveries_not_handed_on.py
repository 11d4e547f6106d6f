"""A primary that hands its set over forgets who has which message in hand, and the epoch says that it was handed over (T6)."""

from msgspec.structs import replace

from lockstep.core.effects import AnyEffect, TellBackup
from lockstep.core.replication import HandedOver
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Forgetful(WeakReplica):
    def said(self, effect: AnyEffect) -> AnyEffect:
        if isinstance(effect, TellBackup) and isinstance(effect.message, HandedOver):
            return replace(effect, message=replace(effect.message, held=()))
        return effect


MUTATION = Mutation(
    "T6: deliveries stay in hand where the set is handed over",
    lambda: Parts(make_replica=Forgetful),
    ("handed_over/once",),
)
