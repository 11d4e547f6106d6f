"""Logs agree wherever both have the same epoch, whether it began at the same index in both or not (R1, R8)."""

from msgspec.structs import replace

from lockstep.core.ids import LogIndex
from lockstep.core.replication import Subscribe
from services.primary.core.backups import Backups
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class ByNumber(Backups):
    def agreed(self, message: Subscribe) -> LogIndex:
        ours = dict(self._context.state.epochs.entries)
        theirs = tuple((epoch, ours.get(epoch, first)) for epoch, first in message.epochs)
        return super().agreed(replace(message, epochs=theirs))


class Numbering(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.backups.__class__ = ByNumber


MUTATION = Mutation(
    "R8: logs agree in an epoch that began at the same index in both, for it may have begun twice",
    lambda: Parts(make_replica=Numbering),
    ("epoch_begun_twice",),
)
