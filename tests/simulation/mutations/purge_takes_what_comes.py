"""A purge in parts takes what comes meanwhile, too: a queue that is published to is never done (R6)."""

from lockstep.core.ids import LogIndex, QueuePosition, place
from lockstep.core.queues import Queue
from services.primary.core.client_streams import ClientStream
from services.primary.core.primary import PrimaryCore
from services.primary.core.purging import LongPurges
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Endless(LongPurges):
    def begin(self, stream: ClientStream, number: int, queue: Queue) -> None:
        super().begin(stream, number, queue)
        self._waiting[-1].end = QueuePosition(place(LogIndex(1 << 40), 0))


class EndlessReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.client_hearing.clients.purges.__class__ = Endless


MUTATION = Mutation(
    "R6: what is purged was there when it was asked for",
    lambda: Parts(make_replica=EndlessReplica),
    ("purge_in_parts/undisturbed",),
)
