"""Whoever finds etcd set back starts nothing, and leaves others to presume what they like (R1, T3, history 26)."""

from lockstep.core.effects import AnyEffect, MarkSetBack, Note
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Silent(WeakReplica):
    def said(self, effect: AnyEffect) -> AnyEffect:
        return Note(effect.set_name, "set back", "") if isinstance(effect, MarkSetBack) else effect


MUTATION = Mutation(
    "R1, T3: no branch presumes an abort while a disk of the cluster has seen more of etcd",
    lambda: Parts(make_replica=Silent),
    ("history_26_decision_lost/noticed late",),
)
