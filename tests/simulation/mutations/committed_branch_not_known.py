"""A primary does not say of a branch that is gone that it has committed (T4, T5, history 20): a completion that is repeated hears
*unknown*, as if the branch had been lost.
"""

from msgspec.structs import replace

from lockstep.core.effects import AnyEffect, TellClient
from lockstep.core.errors import ErrorCode
from lockstep.core.server_messages import Answers
from lockstep.core.xa import BranchState
from tests.simulation.coordinated import draw_coordinated
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Silent(WeakReplica):
    def said(self, effect: AnyEffect) -> AnyEffect:
        if not isinstance(effect, TellClient) or not isinstance(effect.message, Answers):
            return effect
        answers = tuple(
            replace(answer, value=BranchState.UNKNOWN)
            if answer.code is ErrorCode.NOT_FOUND and answer.value == BranchState.COMMITTED
            else answer
            for answer in effect.message.answers
        )
        return replace(effect, message=replace(effect.message, answers=answers))


MUTATION = Mutation(
    "T4, history 20: a repeated commit hears that the branch has committed",
    lambda: Parts(make_replica=Silent),
    seeds=range(2, 10),
    draw=draw_coordinated,
)
