"""A `prepare(commit_when_prepared)` that is the last record on disk is aborted as open by a restart (T7, history 16)."""

from lockstep.core.clock import Now
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.records import AppliedRecord, Prepare, Rollback, RollbackReason
from lockstep.core.set_state import SetState
from services.broker.core.promotion import Candidacy
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class AbortingState(SetState):
    last = LogIndex(0)

    def apply(self, index: LogIndex, epoch: Epoch, record: AppliedRecord, is_durable: bool) -> None:
        if isinstance(record, Prepare) and index == self.last:
            record = Rollback(record.command, record.transaction, RollbackReason.FAILOVER)
        super().apply(index, epoch, record, is_durable)


class Aborting(WeakReplica):
    def _lead(self, won: Candidacy, now: Now) -> None:
        copy = self.backup.copy if self.backup is not None else None
        if copy is not None and won.is_restarted:
            copy.state.__class__ = AbortingState
            copy.state.last = copy.log_end  # type: ignore[attr-defined]
        super()._lead(won, now)


MUTATION = Mutation(
    "T7: the `prepare` that commits is the outcome, and stays one through a full restart",
    lambda: Parts(make_replica=Aborting),
    ("history_16_full_restart",),
)
