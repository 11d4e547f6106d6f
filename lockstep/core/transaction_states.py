"""The states of a transaction, as a table.

Law: a transaction ends once. Behind `prepare` only its coordinator or an operator ends it (DESIGN T2); an operator's end is
remembered as such until it is forgotten, and what it was stays true after that. An illegal transition raises and changes nothing.

    open -> prepared -> committed | rolled back | heuristically committed | heuristically rolled back
    open -> committed (commit_when_prepared: a TX, or a DTX in one phase) | rolled back
"""

from enum import Enum, IntEnum

from lockstep.core.records import RollbackReason


class TransactionState(IntEnum):
    """Where a transaction is, as far as a replica can say. Numbers are those of `OutcomeState`, in snapshots too."""

    UNKNOWN = 0
    """This replica has not come as far as the transaction's begin: it cannot say."""
    OPEN = 1
    PREPARED = 2
    COMMITTED = 3
    ROLLED_BACK = 4
    EXPIRED = 5
    """It ended, and its outcome was forgotten (DESIGN T5)."""
    HEURISTICALLY_COMMITTED = 6
    HEURISTICALLY_ROLLED_BACK = 7


class Transition(Enum):
    """What records do to a transaction."""

    PREPARE = "prepare"
    COMMIT_WHEN_PREPARED = "commit when prepared"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    ROLLBACK_BY_COORDINATOR = "rollback by coordinator"
    HEURISTIC_COMMIT = "heuristic commit"
    HEURISTIC_ROLLBACK = "heuristic rollback"
    FORGET = "forget"


class IllegalTransition(Exception):
    """A transaction cannot do that in its state."""

    def __init__(self, state: TransactionState, transition: Transition) -> None:
        super().__init__(f"no {transition.value} of a transaction that is {state.name}")
        self.state = state
        self.transition = transition


TABLE: dict[tuple[TransactionState, Transition], TransactionState] = {
    (TransactionState.OPEN, Transition.PREPARE): TransactionState.PREPARED,
    (TransactionState.OPEN, Transition.COMMIT_WHEN_PREPARED): TransactionState.COMMITTED,
    (TransactionState.OPEN, Transition.ROLLBACK): TransactionState.ROLLED_BACK,
    (TransactionState.OPEN, Transition.ROLLBACK_BY_COORDINATOR): TransactionState.ROLLED_BACK,
    # Not heuristic: nobody had promised anything yet.
    (TransactionState.OPEN, Transition.HEURISTIC_ROLLBACK): TransactionState.ROLLED_BACK,
    (TransactionState.PREPARED, Transition.PREPARE): TransactionState.PREPARED,
    (TransactionState.PREPARED, Transition.COMMIT): TransactionState.COMMITTED,
    (TransactionState.PREPARED, Transition.ROLLBACK_BY_COORDINATOR): TransactionState.ROLLED_BACK,
    (TransactionState.PREPARED, Transition.HEURISTIC_COMMIT): TransactionState.HEURISTICALLY_COMMITTED,
    (TransactionState.PREPARED, Transition.HEURISTIC_ROLLBACK): TransactionState.HEURISTICALLY_ROLLED_BACK,
    (TransactionState.HEURISTICALLY_COMMITTED, Transition.FORGET): TransactionState.COMMITTED,
    (TransactionState.HEURISTICALLY_ROLLED_BACK, Transition.FORGET): TransactionState.ROLLED_BACK,
}

LIVE = (TransactionState.OPEN, TransactionState.PREPARED)
COMMITS = (TransactionState.COMMITTED, TransactionState.HEURISTICALLY_COMMITTED)
ROLLBACKS = (TransactionState.ROLLED_BACK, TransactionState.HEURISTICALLY_ROLLED_BACK)
HEURISTICS = (TransactionState.HEURISTICALLY_COMMITTED, TransactionState.HEURISTICALLY_ROLLED_BACK)


def is_legal(state: TransactionState, transition: Transition) -> bool:
    return (state, transition) in TABLE


def after(state: TransactionState, transition: Transition) -> TransactionState:
    """The state behind a transition; raises `IllegalTransition`."""
    following = TABLE.get((state, transition))
    if following is None:
        raise IllegalTransition(state, transition)
    return following


def rollback_transition(reason: int) -> Transition:
    """What a `Rollback` record with this reason does."""
    if reason == RollbackReason.COORDINATOR:
        return Transition.ROLLBACK_BY_COORDINATOR
    if reason == RollbackReason.HEURISTIC:
        return Transition.HEURISTIC_ROLLBACK
    return Transition.ROLLBACK
