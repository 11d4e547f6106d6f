"""A swap without an answer, and not in the entry as read, is taken for one that never lands (R3, history 4)."""

from services.primary.core.membership import Membership, SwapState
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class ForgetfulMembership(Membership):
    def in_doubt(self) -> None:
        self._targets.clear()
        self.swap_state = SwapState.NONE


class Forgetful(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.membership.__class__ = ForgetfulMembership


MUTATION = Mutation(
    "R3: a change that was sent is dropped only by a later swap that moved the revision",
    lambda: Parts(make_replica=Forgetful),
    ("history_04_swap_in_doubt",),
)
