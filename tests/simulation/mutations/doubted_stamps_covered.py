"""A writer of stamps goes on with its numbers behind one whose answer it lost (R1, history 26)."""

from lockstep.core.ids import BrokerId, Incarnation
from lockstep.core.stamps import StampWriter
from services.broker.core.witness import WitnessKeeper
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Counting(StampWriter):
    def in_doubt(self) -> None:
        pass


class CountingKeeper(WitnessKeeper):
    def __init__(self, broker: BrokerId, process: Incarnation) -> None:
        super().__init__(broker, process)
        self._writer.__class__ = Counting


MUTATION = Mutation(
    "R1, history 26: a later stamp hides none of which its own writer does not know that it was there",
    lambda: Parts(make_witness=CountingKeeper),
    ("stamp_in_doubt",),
)
