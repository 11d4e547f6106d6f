"""A refusal, a fence or a rollback behind the `prepare` is put into the log, and obeyed there (T2, history 2)."""

from lockstep.core.clock import Now
from lockstep.core.commands import RollbackCommand
from lockstep.core.ids import Epoch, LogIndex, TransactionKey
from lockstep.core.inputs import AnyInput, BackupSaid, ClientSaid
from lockstep.core.outcome_pages import page_of
from lockstep.core.outcomes import Outcome
from lockstep.core.records import AppliedRecord, Rollback, RollbackReason
from lockstep.core.replication import Refuse
from lockstep.core.requests import GetOutcome
from lockstep.core.set_state import SetState
from lockstep.core.transaction_states import TransactionState
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class RepentantState(SetState):
    """A rollback changes the outcome of a transaction that committed."""

    def apply(self, index: LogIndex, epoch: Epoch, record: AppliedRecord, is_durable: bool) -> None:
        super().apply(index, epoch, record, is_durable)
        if (
            isinstance(record, Rollback)
            and self.outcome(record.transaction).state is TransactionState.COMMITTED
        ):
            rolled_back = Outcome(TransactionState.ROLLED_BACK, record.reason, index)
            self.outcomes._ordinary.pages[page_of(record.transaction)][record.transaction] = rolled_back


class Repentant(WeakReplica):
    def weaken_state(self, state: SetState) -> None:
        state.__class__ = RepentantState

    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, BackupSaid) and isinstance(given.message, Refuse):
            self._roll_back(given.message.transaction, RollbackReason.REFUSED)
        if isinstance(given, ClientSaid):
            for message in given.messages:
                if isinstance(message, GetOutcome) and message.fence:
                    self._roll_back(message.transaction, RollbackReason.FENCED)
                elif isinstance(message, RollbackCommand):
                    self._roll_back(message.transaction, RollbackReason.CLIENT)
        return given

    def _roll_back(self, key: TransactionKey, reason: int) -> None:
        if self.primary is None:
            return
        state = self.primary.context.state
        if state.outcome(key).state is TransactionState.COMMITTED:
            self.primary.context.writer.append(Rollback(None, key, reason), True)


MUTATION = Mutation(
    "T2, history 2: behind a `prepare` nobody but a DTX's coordinator or an operator rolls back",
    lambda: Parts(make_replica=Repentant),
    (
        "history_02_refusal_after_the_fact/refusal, answered",
        "history_02_refusal_after_the_fact/fence, on the way",
    ),
)
