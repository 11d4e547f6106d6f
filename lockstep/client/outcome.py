"""What became of a transaction, as any broker tells it (DESIGN T5)."""

from dataclasses import dataclass
from enum import IntEnum

from lockstep.core import server_messages as sm
from lockstep.core.ids import Epoch, LogIndex


class OutcomeState(IntEnum):
    """The values of `lockstep.core.commands.OutcomeState`."""

    UNKNOWN = 0
    """Its set's log does not reach that far: a begin that a failover dropped."""
    OPEN = sm.OutcomeState.OPEN
    PREPARED = sm.OutcomeState.PREPARED
    COMMITTED = sm.OutcomeState.COMMITTED
    ROLLED_BACK = sm.OutcomeState.ROLLED_BACK
    EXPIRED = sm.OutcomeState.EXPIRED
    HEURISTICALLY_COMMITTED = sm.OutcomeState.HEURISTICALLY_COMMITTED
    HEURISTICALLY_ROLLED_BACK = sm.OutcomeState.HEURISTICALLY_ROLLED_BACK


@dataclass(frozen=True, slots=True)
class Outcome:
    transaction_id: str
    state: OutcomeState
    reason: int
    """A value of `RollbackReason`; 0 when unknown or not rolled back."""
    epoch: Epoch
    commit_index: LogIndex
