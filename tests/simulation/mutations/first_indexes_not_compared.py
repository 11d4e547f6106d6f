"""Logs agree wherever both have the same epoch, whether it may have begun twice, and began at another index, or not (R1, R8)."""

from msgspec.structs import replace

from lockstep.core.ids import BrokerId, Incarnation, LogIndex, SetName
from lockstep.core.replication import Subscribe
from lockstep.core.store_protocol import SetOpened
from services.backup.core.backup_memory import LogStanding
from services.broker.core.set_facts import SetFacts
from services.broker.core.settings import ReplicaSettings
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


class OneHistory(SetFacts):
    def standing(self, opened: SetOpened) -> LogStanding:
        standing = super().standing(opened)
        return LogStanding.OURS if standing is LogStanding.LEFT_OUT else standing


class Numbering(WeakReplica):
    def __init__(
        self, set_name: SetName, broker: BrokerId, incarnation: Incarnation, settings: ReplicaSettings
    ) -> None:
        super().__init__(set_name, broker, incarnation, settings)
        self._facts.__class__ = OneHistory

    def promoted(self, primary: PrimaryCore) -> None:
        primary.backups.__class__ = ByNumber


MUTATION = Mutation(
    "R8: where an epoch may have begun twice, its number alone says of no two logs that they agree",
    lambda: Parts(make_replica=Numbering),
    ("epoch_begun_twice",),
)
