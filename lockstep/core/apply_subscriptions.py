"""Applying the records of subscriptions to committed events.

Law: they change nothing but subscriptions, and a record that names a group which is closed changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.records import AdvanceSubscription, CloseSubscription, OpenSubscription
from lockstep.core.reply import DONE, Reply
from lockstep.core.subscriptions import Group

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState


def apply_open_subscription(
    state: SetState, index: LogIndex, epoch: Epoch, record: OpenSubscription, is_durable: bool
) -> Reply:
    state.subscriptions.open(Group(index, record.group, record.floor))
    return Reply(value=index)


def apply_advance_subscription(
    state: SetState, index: LogIndex, epoch: Epoch, record: AdvanceSubscription, is_durable: bool
) -> Reply:
    state.subscriptions.advance(record.subscription, record.floor, record.begins)
    return DONE


def apply_close_subscription(
    state: SetState, index: LogIndex, epoch: Epoch, record: CloseSubscription, is_durable: bool
) -> Reply:
    if record.is_left_behind:
        state.subscriptions.leave_behind(record.subscription)
    else:
        state.subscriptions.close(record.subscription)
    return DONE
