"""A successor takes no notice of how far the operations of open transactions were numbered (T1, T8)."""

from msgspec.structs import replace

from lockstep.core.effects import AnyEffect, TellBackup
from lockstep.core.replication import HandedOver
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Innumerate(WeakReplica):
    def said(self, effect: AnyEffect) -> AnyEffect:
        if isinstance(effect, TellBackup) and isinstance(effect.message, HandedOver):
            started_again = tuple(replace(one, sequences=(), ordinal=0) for one in effect.message.open)
            return replace(effect, message=replace(effect.message, open=started_again))
        return effect


MUTATION = Mutation(
    "T1: operations are numbered without gaps, over a hand-over too",
    lambda: Parts(make_replica=Innumerate),
    ("handed_over/once",),
)
