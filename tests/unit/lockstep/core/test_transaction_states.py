"""The table of transaction states."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.records import RollbackReason
from lockstep.core.transaction_states import (
    LIVE,
    TABLE,
    IllegalTransition,
    TransactionState,
    Transition,
    after,
    is_legal,
    rollback_transition,
)
from lockstep.core.tx_buffer import TxBuffer

PAIRS = [(state, transition) for state in TransactionState for transition in Transition]


@pytest.mark.parametrize(("state", "transition"), PAIRS)
def test_an_illegal_transition_raises_and_changes_nothing(
    state: TransactionState, transition: Transition
) -> None:
    buffer = TxBuffer((LogIndex(1), Epoch(1)), state)
    if is_legal(state, transition):
        buffer.advance(transition)
        assert buffer.state is TABLE[state, transition]
    else:
        with pytest.raises(
            IllegalTransition, match=f"no {transition.value} of a transaction that is {state.name}"
        ):
            buffer.advance(transition)
        assert buffer == TxBuffer((LogIndex(1), Epoch(1)), state)


@given(st.lists(st.sampled_from(Transition), max_size=12))
def test_a_transaction_ends_once_and_its_answer_stays(transitions: list[Transition]) -> None:
    state, ended = TransactionState.OPEN, None
    commits = (TransactionState.COMMITTED, TransactionState.HEURISTICALLY_COMMITTED)
    for transition in transitions:
        if is_legal(state, transition):
            state = after(state, transition)
            if state not in LIVE:
                assert ended in (None, state in commits)
                ended = state in commits


def test_behind_prepare_only_the_coordinator_and_an_operator_roll_back() -> None:
    reasons = [value for name, value in vars(RollbackReason).items() if name.isupper()]
    counting = [
        reason for reason in reasons if is_legal(TransactionState.PREPARED, rollback_transition(reason))
    ]
    assert counting == [RollbackReason.COORDINATOR, RollbackReason.HEURISTIC]


def test_while_open_every_reason_rolls_back() -> None:
    reasons = [value for name, value in vars(RollbackReason).items() if name.isupper()]
    states = [after(TransactionState.OPEN, rollback_transition(reason)) for reason in reasons]
    assert set(states) == {TransactionState.ROLLED_BACK}
