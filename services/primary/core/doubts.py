"""Warns of branches that stay prepared for too long: their messages are locked until somebody ends them.

Law: it only says so. A prepared branch is ended by its coordinator, its decision or an operator, never by time (T2).
"""

from lockstep.core.clock import Now
from lockstep.core.effects import Note
from lockstep.core.ids import TransactionKey, transaction_id
from lockstep.core.tx_buffer import DtxBuffer
from lockstep.core.xid import Xid
from services.primary.core.context import Context


def look(context: Context, now: Now) -> None:
    """Takes all prepared branches, and warns of those that are due."""
    branches: dict[TransactionKey, DtxBuffer] = {
        buffer.key: buffer
        for buffer in context.state.transactions.prepared()
        if isinstance(buffer, DtxBuffer)
    }
    since_ms = {key: branch.prepared_ms for key, branch in branches.items()}
    for key in context.doubts.look(since_ms, now.wall_ms):
        age_seconds = (now.wall_ms - since_ms[key]) // 1000
        xid, name = Xid.decode(branches[key].xid), transaction_id(context.state.set_name, key)
        details = f"xid={xid} age_seconds={age_seconds} transaction={name}"
        context.effects.append(
            Note(context.state.set_name, "in_doubt", f"{details} state=prepared", is_warning=True)
        )
