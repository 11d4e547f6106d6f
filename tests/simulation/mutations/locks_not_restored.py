"""A promoted primary forgets what its prepared branches have accepted, and gives those messages to others (T7, P3)."""

from lockstep.core.tx_buffer import DequeueOperation
from services.primary.core.primary import PrimaryCore
from tests.simulation.coordinated import draw_coordinated
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Forgetful(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        state = primary.context.state
        for buffer in state.transactions.prepared():
            for operation in buffer.operations:
                queue = (
                    state.queues.by_id.get(operation.queue)
                    if isinstance(operation, DequeueOperation)
                    else None
                )
                if queue is not None and isinstance(operation, DequeueOperation):
                    queue.unlock(queue.locked_by(buffer.key, operation.positions))


MUTATION = Mutation(
    "T7: prepared branches keep their locks through a failover",
    lambda: Parts(make_replica=Forgetful),
    seeds=range(3, 13),
    draw=draw_coordinated,
)
