"""Commands are executed again when they come again (DESIGN 6, history 8).

A client that comes back is told that nothing was taken that it has not heard of, and all of that is taken again.
"""

from msgspec.structs import replace

from lockstep.core.clock import Now
from lockstep.core.commands import AnyCommand
from lockstep.core.effects import AnyEffect, TellClient
from lockstep.core.inputs import AnyInput, ClientSaid
from lockstep.core.requests import AttachSession
from lockstep.core.server_messages import SessionAttached
from services.primary.core.client_streams import ClientStream
from services.primary.core.clients import Clients
from services.primary.core.primary import PrimaryCore
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class ForgetfulClients(Clients):
    """Executes whatever comes, the second time too."""

    def command(self, stream: ClientStream, command: AnyCommand) -> None:
        session = self._context.state.sessions.get(stream.session)
        if session is not None and command.number < session.next_number:
            self._execute(stream, command)
        else:
            super().command(stream, command)


class NoDeduplication(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.client_hearing.clients.__class__ = ForgetfulClients
        self._heard_on: dict[int, int] = {}

    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, ClientSaid) and self.primary is not None:
            for message in given.messages:
                if isinstance(message, AttachSession):
                    self._heard_on[given.stream] = message.heard
        return given

    def said(self, effect: AnyEffect) -> AnyEffect:
        if isinstance(effect, TellClient) and isinstance(effect.message, SessionAttached):
            next_number = self._heard_on.get(effect.stream, 0) + 1
            return replace(effect, message=replace(effect.message, next_number=next_number))
        return effect


def _aim(options: Options) -> None:
    options.faults = ("reset streams", "cut clients off", "refuse connections")
    options.fault_gap_us = 1 * SECOND


MUTATION = Mutation(
    "DESIGN 6: a command number is consumed once",
    lambda: Parts(make_replica=NoDeduplication),
    ("history_08_deduplication",),
    seeds=range(10),
    aim=_aim,
)
