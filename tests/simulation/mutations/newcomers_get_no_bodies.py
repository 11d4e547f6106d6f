"""A snapshot leaves as it is: a newcomer gets messages without the bodies that are away on the primary (R8, DESIGN 5)."""

from collections.abc import Callable

from lockstep.core.items import Item
from services.primary.core.backups import Backups, ReplicatingSubscription
from services.primary.core.primary import PrimaryCore
from services.primary.core.snapshot_sending import SnapshotSending
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class AsItIs(SnapshotSending):
    def next(self, go_on: Callable[[], None]) -> Item | None:
        return next(self._items, None)


class Careless(Backups):
    def _send_snapshot(self, subscription: ReplicatingSubscription, chunks_max: int) -> None:
        assert subscription.snapshot is not None
        subscription.snapshot.__class__ = AsItIs
        super()._send_snapshot(subscription, chunks_max)


class CarelessReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.backups.__class__ = Careless


MUTATION = Mutation(
    "R8: a newcomer's disk gets every body, whether or not the primary has it in memory",
    lambda: Parts(make_replica=CarelessReplica),
    ("queue_longer_than_memory/newcomer leads",),
)
