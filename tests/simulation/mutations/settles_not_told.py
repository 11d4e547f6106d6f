"""A primary that does not hear of settles without an answer takes what it delivered again behind them for what they name (P7)."""

from msgspec.structs import replace

from lockstep.core.clock import Now
from lockstep.core.inputs import AnyInput, ClientSaid
from lockstep.core.requests import AttachSession
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Deaf(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if not isinstance(given, ClientSaid):
            return given
        messages = [
            replace(message, settling=()) if isinstance(message, AttachSession) else message
            for message in given.messages
        ]
        return ClientSaid(given.set_name, given.stream, tuple(messages))


MUTATION = Mutation(
    "P7: what a session holds, its client has in hand",
    lambda: Parts(make_replica=Deaf),
    scenarios=("delivered_again_unheard",),
)
