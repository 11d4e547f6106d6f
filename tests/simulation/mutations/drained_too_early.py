"""A drain is answered before the consumer's view has come to its end (AMQP 1.0, 2.6.7)."""

from services.primary.core.dispatch import Dispatch
from services.primary.core.primary import PrimaryCore
from services.primary.core.queue_dispatch import Consumer
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Impatient(Dispatch):
    def drain(self, consumer: Consumer) -> None:
        consumer.credit = 0
        super().drain(consumer)


class ImpatientReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.dispatch.__class__ = Impatient


def _aim(options: Options) -> None:
    options.has_choosers = True
    options.resident_bytes_max = 1


MUTATION = Mutation(
    "AMQP 1.0, 2.6.7: a drained consumer has got what was there",
    lambda: Parts(make_replica=ImpatientReplica),
    seeds=range(1),
    aim=_aim,
)
