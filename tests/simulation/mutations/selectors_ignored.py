"""A consumer with a selector is offered everything (AMQP 1.0, 3.5.3)."""

from services.primary.core.dispatch import Dispatch
from services.primary.core.primary import PrimaryCore
from services.primary.core.queue_dispatch import Consumer
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Unselective(Dispatch):
    def add_consumer(self, consumer: Consumer) -> None:
        consumer.selector = None
        super().add_consumer(consumer)


class UnselectiveReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.dispatch.__class__ = Unselective


def _aim(options: Options) -> None:
    options.has_choosers = True


MUTATION = Mutation(
    "AMQP 1.0, 3.5.3: a filter lets only messages through that it matches",
    lambda: Parts(make_replica=UnselectiveReplica),
    seeds=range(1),
    aim=_aim,
)
