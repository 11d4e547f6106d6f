"""A new epoch leaves open transactions open, and their operations are not counted (T1, T8, history 9)."""

from lockstep.core.ids import Epoch, LogIndex, TransactionKey
from lockstep.core.records import AcceptCommand, AppliedRecord, EpochBegins
from lockstep.core.set_state import SetState
from lockstep.core.transactions import Transactions
from services.primary.core.open_transactions import TransactionProgress
from services.primary.core.primary import PrimaryCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class AnyCount(int):
    """Equal to whatever number of operations a client names."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __add__(self, other: int) -> "AnyCount":
        return self

    __hash__ = int.__hash__


class LenientState(SetState):
    def apply(self, index: LogIndex, epoch: Epoch, record: AppliedRecord, is_durable: bool) -> None:
        if isinstance(record, EpochBegins) and not record.is_restarted:
            record = AcceptCommand(None, 0)
        super().apply(index, epoch, record, is_durable)


class LenientTransactions(Transactions):
    __slots__ = ()

    def open_keys(self) -> list[TransactionKey]:
        """Whoever takes over finds none to abort."""
        return []


class Lenient(WeakReplica):
    def weaken_state(self, state: SetState) -> None:
        state.__class__ = LenientState
        state.transactions.__class__ = LenientTransactions

    def promoted(self, primary: PrimaryCore) -> None:
        for buffer in primary.context.state.transactions.open():
            progress = TransactionProgress(buffer.session, sequences={buffer.session: AnyCount(0)})
            primary.context.progress.begin(buffer.key, progress)


MUTATION = Mutation(
    "T8: failover aborts open transactions",
    lambda: Parts(make_replica=Lenient),
    ("history_09_resumed_without_its_tail",),
)
