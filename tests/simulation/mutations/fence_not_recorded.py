"""Who asks for certainty about an open transaction hears "rolled back", and no record says so (T5, history 7)."""

from msgspec.structs import replace

from lockstep.core.clock import Now
from lockstep.core.effects import AnyEffect, TellClient
from lockstep.core.inputs import AnyInput, ClientSaid
from lockstep.core.requests import GetOutcome
from lockstep.core.server_messages import (
    OutcomeAnswer,
    OutcomeState,
)
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Presumptuous(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if not isinstance(given, ClientSaid):
            return given
        asked = self.__dict__.setdefault("_asked", set())
        messages = []
        for message in given.messages:
            if isinstance(message, GetOutcome) and message.fence:
                asked.add((given.stream, message.request))
                message = replace(message, fence=False)
            messages.append(message)
        return replace(given, messages=tuple(messages))

    def said(self, effect: AnyEffect) -> AnyEffect:
        if not isinstance(effect, TellClient) or not isinstance(effect.message, OutcomeAnswer):
            return effect
        answer = effect.message
        is_fence = (effect.stream, answer.request) in self.__dict__.get("_asked", set())
        if is_fence and answer.state == OutcomeState.OPEN:
            return replace(effect, message=replace(answer, state=OutcomeState.ROLLED_BACK))
        return effect


MUTATION = Mutation(
    'T5: a "no" that is told is a record',
    lambda: Parts(make_replica=Presumptuous),
    ("history_07_unsticky_no/same primary",),
)
