"""A primary delivers in the order of positions, whatever the priorities (AMQP 1.0, 3.2.1)."""

from collections.abc import Collection

from lockstep.core.ids import MessageId, QueuePosition
from services.primary.core.dispatch import Dispatch
from services.primary.core.primary import PrimaryCore
from services.primary.core.queue_dispatch import Consumer
from services.primary.core.queue_view import STEP, Offered, QueueView
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class FlatView(QueueView):
    __slots__ = ()

    def take(self, limit: int, bytes_max: int, end: int, look_max: int) -> Offered:
        taken: Offered = []
        self.is_stalled = self.is_barred = False
        self._take(taken, limit, bytes_max, end)
        self.looked = len(taken)
        self.is_at_end = not (taken or self.is_stalled or self.is_barred)
        return taken

    def come_back(self, positions: Collection[QueuePosition]) -> None:
        for position in positions:
            self.take_back(position)

    def ahead(self) -> dict[MessageId, QueuePosition]:
        positions = self.queue.present([*sorted(self.back), *self.queue.positions(self.cursor + 1, STEP)])
        return dict(zip(self.queue.message_ids(positions), positions, strict=True))


class Flat(Dispatch):
    def add_consumer(self, consumer: Consumer) -> None:
        super().add_consumer(consumer)
        if type(consumer.view) is QueueView:
            consumer.view.__class__ = FlatView


class FlatReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.dispatch.__class__ = Flat


def _aim(options: Options) -> None:
    options.has_priorities = True


MUTATION = Mutation(
    "AMQP 1.0, 3.2.1: messages of higher priority are delivered first",
    lambda: Parts(make_replica=FlatReplica),
    scenarios=("priorities/failover",),
    seeds=range(1),
    aim=_aim,
)
