"""Whoever finds nothing concludes from it at once, though a disk that remembers more was not looked at (R1, T3, history 26)."""

from lockstep.core.roll_call import RollCall
from lockstep.core.stamps import Stamps
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Hasty(RollCall):
    def is_answered(self, stamps: Stamps, now_ms: int) -> bool:
        return True


MUTATION = Mutation(
    "R1, T3: no branch presumes an abort before everybody whose disk may remember more was compared",
    lambda: Parts(make_roll_call=Hasty),
    ("history_26_decision_lost/noticed very late",),
)
