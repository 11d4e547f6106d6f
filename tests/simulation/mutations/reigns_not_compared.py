"""Logs agree where both have the same epoch from the same index on, whoever began it (R1, R8)."""

from msgspec.structs import replace

from lockstep.core.ids import LogIndex
from lockstep.core.replication import Subscribe
from services.primary.core.backups import Backups
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class ByNumberAndIndex(Backups):
    def agreed(self, message: Subscribe) -> LogIndex:
        return super().agreed(replace(message, reigns=()))


class Numbering(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.backups.__class__ = ByNumberAndIndex


MUTATION = Mutation(
    "R8: an epoch that has begun twice at one index is told by who began it",
    lambda: Parts(make_replica=Numbering),
    (
        "epoch_begun_twice_at_one_index/loss is accepted",
        "epoch_begun_twice_at_one_index/another epoch has begun since",
        "epoch_begun_twice_at_one_index/the disk remembers nothing",
    ),
)
