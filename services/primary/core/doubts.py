"""Warns of branches that stay prepared for too long: their messages are locked until somebody ends them.

Law: it only says so. A prepared branch is ended by its coordinator, its decision or an operator, never by time (T2).
"""

from lockstep.core.clock import Now
from lockstep.core.effects import Note
from lockstep.core.ids import transaction_id
from lockstep.core.tx_buffer import DtxBuffer, TxBuffer
from lockstep.core.xid import Xid
from services.primary.core.context import Context


def watch(context: Context, branch: TxBuffer) -> None:
    """A branch is prepared, from now on or since before this epoch."""
    if isinstance(branch, DtxBuffer):
        context.doubts.begun(branch.key, branch.prepared_ms)


def look(context: Context, now: Now) -> None:
    """Warns of those that are due."""
    for key in context.doubts.late(now.wall_ms):
        branch = context.state.transactions.get(key)
        assert isinstance(branch, DtxBuffer), "it is over when it has ended"
        age_seconds = (now.wall_ms - branch.prepared_ms) // 1000
        xid, name = Xid.decode(branch.xid), transaction_id(context.state.set_name, key)
        details = f"xid={xid} age_seconds={age_seconds} transaction={name}"
        context.effects.append(
            Note(context.state.set_name, "in_doubt", f"{details} state=prepared", is_warning=True)
        )
