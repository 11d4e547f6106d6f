"""Applying the records by which sessions work in open branches of distributed transactions. All of them are transient.

Law: a record that names a branch which is not open any more does nothing: it was decided before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.ids import Epoch, LogIndex, TransactionKey
from lockstep.core.records import Associate, Dissociate, ForgetUndone, Identify, SelectDtx, SetTimeout
from lockstep.core.reply import DONE, Reply
from lockstep.core.sessions import DtxUse
from lockstep.core.transaction_states import TransactionState
from lockstep.core.tx_buffer import DtxBuffer
from lockstep.core.xa import XaStatus

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState


def apply_select_dtx(
    state: SetState, index: LogIndex, epoch: Epoch, record: SelectDtx, is_durable: bool
) -> Reply:
    session = state.sessions.get(record.session)
    if session is not None:
        session.dtx = DtxUse.SELECTED
        if record.hears_read_only:
            session.dtx |= DtxUse.HEARS_READ_ONLY
        if record.has_many_branches:
            session.dtx |= DtxUse.MANY_BRANCHES
    return DONE


def apply_associate(
    state: SetState, index: LogIndex, epoch: Epoch, record: Associate, is_durable: bool
) -> Reply:
    branch = _open(state, record.transaction)
    if branch is not None:
        state.transactions.associate(branch, record.session, record.is_suspended)
    return Reply(value=XaStatus.OK) if record.is_suspended else _started(record.transaction, epoch)


def apply_identify(
    state: SetState, index: LogIndex, epoch: Epoch, record: Identify, is_durable: bool
) -> Reply:
    buffer = state.transactions.get(record.transaction)
    if buffer is not None and buffer.state is TransactionState.OPEN:
        branch = state.transactions.identify(buffer, record.xid)
        branch.timeout_ms = record.timeout_ms
        state.transactions.associate(branch, record.session, False)
    return _started(record.transaction, epoch)


def _started(key: TransactionKey, epoch: Epoch) -> Reply:
    """The branch's name: its epoch is said where it is not the answer's, because the set was handed over since."""
    return Reply(message="" if key[1] == epoch else str(key[1]), value=key[0])


def apply_dissociate(
    state: SetState, index: LogIndex, epoch: Epoch, record: Dissociate, is_durable: bool
) -> Reply:
    branch = _open(state, record.transaction)
    if branch is not None:
        state.transactions.dissociate(branch, record.session)
        branch.is_rollback_only = branch.is_rollback_only or record.is_failed
    return DONE


def apply_set_timeout(
    state: SetState, index: LogIndex, epoch: Epoch, record: SetTimeout, is_durable: bool
) -> Reply:
    branch = _open(state, record.transaction)
    if branch is not None:
        branch.timeout_ms = record.timeout_ms
    return DONE


def apply_forget_undone(
    state: SetState, index: LogIndex, epoch: Epoch, record: ForgetUndone, is_durable: bool
) -> Reply:
    state.transactions.undone.pop(record.xid, None)
    return DONE


def _open(state: SetState, key: TransactionKey) -> DtxBuffer | None:
    buffer = state.transactions.get(key)
    if isinstance(buffer, DtxBuffer) and buffer.state is TransactionState.OPEN:
        return buffer
    return None
