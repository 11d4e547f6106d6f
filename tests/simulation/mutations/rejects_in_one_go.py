"""A reject is done in one go, however much its dead letters bring: in a frame that no stream carries (DESIGN 5)."""

from collections.abc import Sequence

from lockstep.core.ids import QueuePosition
from lockstep.core.queues import Queue
from services.primary.core.dead_letter_routes import Routes
from services.primary.core.primary import PrimaryCore
from services.primary.core.waiting_rejects import WaitingRejects
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Whole(WaitingRejects):
    def part(self, queue: Queue, left: Sequence[QueuePosition], routes: Routes) -> Sequence[QueuePosition]:
        return left


class WholeReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.client_hearing.clients.rejects.__class__ = Whole


MUTATION = Mutation(
    "DESIGN 5: a frame has a size that every stream carries",
    lambda: Parts(make_replica=WholeReplica),
    ("dead_letters_in_parts/rejected",),
)
