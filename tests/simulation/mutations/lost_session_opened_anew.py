"""A session that the set no longer knows is opened anew, and its retries are executed (DESIGN 6, history 25)."""

from msgspec.structs import replace

from lockstep.core.clock import Now
from lockstep.core.ids import Epoch, SessionKey
from lockstep.core.inputs import AnyInput, ClientSaid
from lockstep.core.requests import AttachSession
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Hospitable(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if not isinstance(given, ClientSaid) or self.primary is None:
            return given
        known = self.primary.context.state.sessions.by_key
        messages = []
        for message in given.messages:
            if isinstance(message, AttachSession) and message.session not in known:
                message = replace(message, session=SessionKey(0), session_epoch=Epoch(0))
            messages.append(message)
        return replace(given, messages=tuple(messages))


MUTATION = Mutation(
    "DESIGN 6: a retry to a session that the set no longer knows is in doubt, never executed",
    lambda: Parts(make_replica=Hospitable),
    ("history_25_command_numbers/all restart",),
)
