"""Which function executes which command."""

from collections.abc import Callable
from typing import Any

from lockstep.core.commands import (
    BeginCommand,
    BindCommand,
    Command,
    CommitBranchCommand,
    CommitCommand,
    DeclareExchangeCommand,
    DeclareQueueCommand,
    DeleteExchangeCommand,
    DeleteQueueCommand,
    EndCommand,
    EndHeuristicallyCommand,
    ForgetBranchCommand,
    PrepareBranchCommand,
    PublishCommand,
    PurgeQueueCommand,
    RollbackBranchCommand,
    RollbackCommand,
    SelectDtxCommand,
    SetTimeoutCommand,
    SettleCommand,
    StartCommand,
)
from services.primary.core import branches
from services.primary.core.context import Context, Request
from services.primary.core.publishing import publish
from services.primary.core.purging import purge_queue
from services.primary.core.settling import settle
from services.primary.core.transacting import begin, rollback
from services.primary.core.whole_transactions import commit_with_last_publish
from services.primary.core.wiring_commands import (
    bind,
    declare_exchange,
    declare_queue,
    delete_exchange,
    delete_queue,
)

_TABLE: dict[type[Command], Callable[[Context, Request, Any], None]] = {
    BeginCommand: begin,
    BindCommand: bind,
    CommitBranchCommand: branches.commit,
    CommitCommand: commit_with_last_publish,
    DeclareExchangeCommand: declare_exchange,
    DeclareQueueCommand: declare_queue,
    DeleteExchangeCommand: delete_exchange,
    DeleteQueueCommand: delete_queue,
    EndCommand: branches.end,
    EndHeuristicallyCommand: branches.end_heuristically,
    ForgetBranchCommand: branches.forget,
    PrepareBranchCommand: branches.prepare,
    PublishCommand: publish,
    PurgeQueueCommand: purge_queue,
    RollbackBranchCommand: branches.rollback,
    RollbackCommand: rollback,
    SelectDtxCommand: branches.select_dtx,
    SetTimeoutCommand: branches.set_timeout,
    SettleCommand: settle,
    StartCommand: branches.start,
}


def execute(context: Context, request: Request, command: Command) -> None:
    """Check a command and append the records that it takes, the last of which answers it; raises `Rejected`, or that it is long:
    `LongPurge`, `LongCommand`.
    """
    _TABLE[type(command)](context, request, command)
