"""What was handed on is taken up in any later epoch, whoever led between (T8)."""

from typing import cast

from msgspec.structs import replace

from lockstep.core.clock import Now
from lockstep.core.ids import Epoch
from services.broker.core.promotion import Candidacy
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class EarlierEpoch(int):
    """One that counts as the one right before, whichever is asked about."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return super().__hash__()

    def __add__(self, other: int) -> "EarlierEpoch":
        return self


class Credulous(WeakReplica):
    def _lead(self, won: Candidacy, now: Now) -> None:
        handed, copy = self._handed, self.backup.copy if self.backup is not None else None
        if handed is not None and copy is not None and copy.state.epoch == handed.epoch:
            self._handed = replace(handed, epoch=cast(Epoch, EarlierEpoch(handed.epoch)))
        super()._lead(won, now)


MUTATION = Mutation(
    "T8: what was handed on holds in the epoch right behind",
    lambda: Parts(make_replica=Credulous),
    ("handed_over_in_vain/a reign between",),
)
