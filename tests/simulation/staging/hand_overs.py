"""Handing a set over as an operator does: who is refused asks again."""

from lockstep.core.ids import BrokerId
from lockstep.core.inputs import HandOver
from tests.simulation.staging.stage import SET, Stage, Unmet

_ATTEMPTS_MAX = 20
_REFUSED = "note: hand over refused"


def ask_hand_over(stage: Stage, source: BrokerId, to: BrokerId, is_chosen: bool = False) -> None:
    """Tell a primary to hand the set over, again while it refuses: it may not have heard yet that `to` stands ready.

    `is_chosen`: the operator says who should lead. Raises `Unmet` after some refusals.
    """
    counts = stage.world.branches.counts
    for _ in range(_ATTEMPTS_MAX):
        refusals = counts[_REFUSED]
        stage.world.brokers[source].feed(HandOver(SET, to, is_chosen=is_chosen))
        stage.run(0.001)
        if counts[_REFUSED] == refusals:
            return
        stage.run(0.1)
    raise Unmet(f"{source} refuses to hand over to {to}")
