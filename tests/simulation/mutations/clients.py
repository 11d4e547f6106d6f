"""Sessions' rules switched off: deduplication by command numbers (DESIGN 6, histories 8 and 25)."""

from dataclasses import replace
from typing import Any

from lockstep.core.clock import Now
from lockstep.core.commands import AnyCommand, AttachSession, SessionAttached
from lockstep.core.effects import AnyEffect, TellClient
from lockstep.core.inputs import AnyInput, ClientSaid
from services.primary.core.client_streams import ClientStream
from services.primary.core.clients import Clients
from tests.simulation.mutations import Mutation
from tests.simulation.mutations.replicas import HookedReplica
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class ForgetfulClients(Clients):
    """Executes whatever comes, the second time too."""

    def command(self, stream: ClientStream, command: AnyCommand, now: Now) -> None:
        session = self._context.state.sessions.get(stream.session)
        if session is not None and command.number < session.next_number:
            self._execute(stream, command, now)
        else:
            super().command(stream, command, now)


class NoDeduplication(HookedReplica):
    """Tells a client that comes back that nothing it has not heard of was taken, and takes it again."""

    def promoted(self, primary: Any) -> None:
        primary._clients.__class__ = ForgetfulClients

    def handle(self, given: AnyInput, now: Now) -> list[AnyEffect]:
        if isinstance(given, ClientSaid):
            for message in given.messages:
                if isinstance(message, AttachSession):
                    self._heard[given.stream] = message.heard
        return [self._as_if_new(effect) for effect in super().handle(given, now)]

    @property
    def _heard(self) -> dict[int, int]:
        found: dict[int, int] = self.__dict__.setdefault("_heard_by_stream", {})
        return found

    def _as_if_new(self, effect: AnyEffect) -> AnyEffect:
        if isinstance(effect, TellClient) and isinstance(effect.message, SessionAttached):
            heard = self._heard.get(effect.stream, 0)
            return replace(effect, message=replace(effect.message, next_number=heard + 1))
        return effect


def _resumptions(options: Options) -> None:
    options.faults = ("reset streams", "cut clients off", "refuse connections")
    options.fault_gap_us = 1_000_000


MUTATIONS = (
    Mutation(
        "commands not deduplicated",
        "DESIGN 6: a command number is consumed once",
        lambda: Parts(make_replica=NoDeduplication),
        _resumptions,
    ),
)
