"""A message whose body is away goes out with an empty one, and nobody asks the store (DESIGN 5)."""

from collections.abc import Iterable

from lockstep.core.ids import QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.records import Message
from lockstep.core.set_state import SetState
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Hasty(Queue):
    __slots__ = ()

    def messages(self, positions: Iterable[QueuePosition]) -> list[Message]:
        return [self.message(position) or Message((self.id,), b"", b"") for position in positions]


class HastyReplica(WeakReplica):
    def weaken_state(self, state: SetState) -> None:
        for queue in state.queues.by_id.values():
            queue.__class__ = Hasty


def _aim(options: Options) -> None:
    options.resident_bytes_max = 1


MUTATION = Mutation(
    "DESIGN 5: bodies that are away are read back from the store before they are delivered",
    lambda: Parts(make_replica=HastyReplica),
    ("queue_longer_than_memory",),
    seeds=range(2),
    aim=_aim,
)
