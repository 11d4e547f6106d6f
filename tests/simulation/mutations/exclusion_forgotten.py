"""Who gave messages back as undeliverable to itself is offered them again (AMQP 1.0, 3.4.5)."""

from collections.abc import Collection

from lockstep.core.ids import QueueId, QueuePosition, SessionKey
from services.primary.core.dispatch import Dispatch
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Forgetful(Dispatch):
    def exclude(
        self, session: SessionKey, number: int, queue_id: QueueId, positions: Collection[QueuePosition]
    ) -> None:
        pass


class ForgetfulReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.dispatch.__class__ = Forgetful


def _aim(options: Options) -> None:
    options.has_choosers = True


MUTATION = Mutation(
    "AMQP 1.0, 3.4.5: what is undeliverable here is not offered here again",
    lambda: Parts(make_replica=ForgetfulReplica),
    seeds=range(1),
    aim=_aim,
)
