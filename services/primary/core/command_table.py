"""Which function executes which command."""

from collections.abc import Callable
from typing import Any

from lockstep.core.commands import (
    BeginCommand,
    BindCommand,
    Command,
    CommitCommand,
    DeclareExchangeCommand,
    DeclareQueueCommand,
    DeleteExchangeCommand,
    DeleteQueueCommand,
    PublishCommand,
    PurgeQueueCommand,
    RollbackCommand,
    SettleCommand,
)
from services.primary.core.context import Context, Request
from services.primary.core.publishing import publish
from services.primary.core.settling import settle
from services.primary.core.transacting import begin, commit, rollback
from services.primary.core.wiring_commands import (
    bind,
    declare_exchange,
    declare_queue,
    delete_exchange,
    delete_queue,
    purge_queue,
)

_TABLE: dict[type[Command], Callable[[Context, Request, Any], None]] = {
    BeginCommand: begin,
    BindCommand: bind,
    CommitCommand: commit,
    DeclareExchangeCommand: declare_exchange,
    DeclareQueueCommand: declare_queue,
    DeleteExchangeCommand: delete_exchange,
    DeleteQueueCommand: delete_queue,
    PublishCommand: publish,
    PurgeQueueCommand: purge_queue,
    RollbackCommand: rollback,
    SettleCommand: settle,
}


def execute(context: Context, request: Request, command: Command) -> None:
    """Check a command and append the records that it takes, the last of which answers it; raises `Rejected`."""
    _TABLE[type(command)](context, request, command)
