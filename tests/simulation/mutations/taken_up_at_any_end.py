"""What was handed on is taken up whatever log it was said of (T8)."""

from msgspec.structs import replace

from lockstep.core.clock import Now
from services.broker.core.promotion import Candidacy
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Credulous(WeakReplica):
    def _lead(self, won: Candidacy, now: Now) -> None:
        handed, backup = self._handed, self.backup
        if handed is not None and backup is not None and backup.copy is not None:
            self._handed = replace(handed, log_end=backup.copy.log_end)
        super()._lead(won, now)


MUTATION = Mutation(
    "T8: what was handed on holds at the end of the log that it was said of",
    lambda: Parts(make_replica=Credulous),
    (
        "handed_over_in_vain/a longer log",
        "handed_over_in_vain/a shorter log",
    ),
)
