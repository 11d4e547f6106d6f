"""A reject is done in one go, however much its dead letters bring: in a frame that no stream carries (DESIGN 5)."""

from lockstep.core.commands import SettleCommand
from lockstep.core.ids import SessionKey
from services.primary.core.primary import PrimaryCore
from services.primary.core.settling import named
from services.primary.core.waiting_rejects import Part, WaitingRejects
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Whole(WaitingRejects):
    def part(self, session: SessionKey, command: SettleCommand) -> Part:
        queue = super().part(session, command).queue
        return Part(queue, named(command, queue), is_last=True)


class WholeReplica(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.client_hearing.clients.rejects.__class__ = Whole


MUTATION = Mutation(
    "DESIGN 5: a frame has a size that every stream carries",
    lambda: Parts(make_replica=WholeReplica),
    ("dead_letters_in_parts/rejected",),
)
