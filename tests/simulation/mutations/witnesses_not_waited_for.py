"""A witness whose key is gone is let go by whoever comes first, though nobody has seen it live (R1, T3, history 26)."""

from services.broker.core.witness import EtcdSeen, StampsWritten, WitnessKeeper
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Impatient(WitnessKeeper):
    def look(self, seen: EtcdSeen, lease_id: int, now_ms: int) -> StampsWritten | None:
        self._met |= {one.token for one in seen.stamps.witnesses}
        return super().look(seen, lease_id, now_ms)


MUTATION = Mutation(
    "R1, T3: only a witness that has died before another's eyes knew nothing that this one does not know",
    lambda: Parts(make_witness=Impatient),
    ("history_26_decision_lost/noticed very late", "restored_under_a_coordinator/somebody comes late"),
)
