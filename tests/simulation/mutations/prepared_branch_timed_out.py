"""A prepared branch is rolled back when the time-out of its work is over, whatever its coordinator decides (T2)."""

from lockstep.core.clock import Now
from lockstep.core.ids import TransactionKey
from lockstep.core.inputs import AnyInput, Tick
from lockstep.core.records import Rollback, RollbackReason
from tests.simulation.coordinated import draw_coordinated
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica

TIMEOUT_MS = 1_000


class Impatient(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if self.primary is not None and isinstance(given, Tick):
            context = self.primary.context
            before: dict[TransactionKey, int] = getattr(self, "_prepared_ms", {})
            prepared = {buffer.key for buffer in context.state.transactions.prepared()}
            self._prepared_ms = {key: before.get(key, now.boottime_ms) for key in sorted(prepared)}
            for key, since_ms in self._prepared_ms.items():
                if now.boottime_ms - since_ms >= TIMEOUT_MS:
                    context.writer.append(Rollback(None, key, RollbackReason.COORDINATOR), True)
        return given


MUTATION = Mutation(
    "T2: time-outs run until prepare",
    lambda: Parts(make_replica=Impatient),
    ("branch_finds_its_decision/undecided",),
    range(3, 19),
    draw=draw_coordinated,
)
