"""What became of a transaction, as any broker tells it (DESIGN T5), or of a distributed one, as any coordinator does."""

from dataclasses import dataclass
from enum import IntEnum

from lockstep.core import server_messages as sm
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.xa import XaStatus


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
    OF_LATER_VERSION = -1
    """Whoever answered knows a state that this version does not."""


@dataclass(frozen=True, slots=True)
class Hazard:
    """A participant that did not end as decided, was ended by somebody else than its coordinator, or cannot say how."""

    participant: str
    ended: str
    """How, in words: "heuristically rolled back", "unknown branch"."""


@dataclass(frozen=True, slots=True)
class Outcome:
    transaction_id: str
    state: OutcomeState
    """Of a distributed one, what was decided."""
    reason: int
    """A value of `RollbackReason`; 0 when unknown or not rolled back."""
    epoch: Epoch
    commit_index: LogIndex
    heuristic: XaStatus = XaStatus.OK
    """Of a distributed one: how its participants ended, if not all as decided."""
    hazards: tuple[Hazard, ...] = ()
    generation: str = ""
    """Of the cluster, in which a resource set has answered; "": it does not say."""
