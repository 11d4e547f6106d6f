"""A reject is answered with its first part: whoever leads next gives the rest to others (P2, P4)."""

from collections.abc import Sequence

from msgspec.structs import replace

from lockstep.core.commands import AnyCommand, SettleCommand
from lockstep.core.ids import QueuePosition
from services.primary.core.client_streams import ClientStream
from services.primary.core.primary import PrimaryCore
from services.primary.core.waiting_rejects import WaitingRejects
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Hasty(WaitingRejects):
    def is_last(self, left: Sequence[QueuePosition], part: Sequence[QueuePosition]) -> bool:
        return True

    def take(self) -> tuple[ClientStream, AnyCommand] | None:
        taken = super().take()
        if taken is None:
            return None
        stream, command = taken
        assert isinstance(command, SettleCommand), command
        return stream, replace(command, positions=())


class HastyReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.client_hearing.clients.rejects.__class__ = Hasty


MUTATION = Mutation(
    "P4: a reject is answered when the log has all of it",
    lambda: Parts(make_replica=HastyReplica),
    ("dead_letters_in_parts/killed when it is answered",),
)
