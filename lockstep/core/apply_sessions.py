"""Applying the records of sessions. All of them are transient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.ids import Epoch, LogIndex, SessionId, SessionKey
from lockstep.core.records import AcceptCommand, CloseSession, Consume, OpenSession, RejectCommand
from lockstep.core.reply import DONE, Reply
from lockstep.core.sessions import Session

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState


def apply_open_session(
    state: SetState, index: LogIndex, epoch: Epoch, record: OpenSession, is_durable: bool
) -> Reply:
    session = Session(SessionKey(index), epoch, SessionId(record.session_id), record.timeout_ms)
    state.sessions.add(session)
    if state.listener is not None:
        state.tell(state.listener.session_opened, session)
    return Reply(value=index)


def apply_close_session(
    state: SetState, index: LogIndex, epoch: Epoch, record: CloseSession, is_durable: bool
) -> Reply:
    session = state.sessions.get(record.session)
    if session is not None:
        state.sessions.remove(session)
        if state.listener is not None:
            state.tell(state.listener.session_closed, session)
    return DONE


def apply_consume(state: SetState, index: LogIndex, epoch: Epoch, record: Consume, is_durable: bool) -> Reply:
    session = state.sessions.get(record.session)
    if session is not None:
        queues = [*session.consumed, record.queue]
        session.consumed = dict.fromkeys(queue for queue in queues if queue in state.queues.by_id)
    return DONE


def apply_reject_command(
    state: SetState, index: LogIndex, epoch: Epoch, record: RejectCommand, is_durable: bool
) -> Reply:
    return Reply(record.code, record.message, record.value)


def apply_accept_command(
    state: SetState, index: LogIndex, epoch: Epoch, record: AcceptCommand, is_durable: bool
) -> Reply:
    return Reply(value=record.value)
