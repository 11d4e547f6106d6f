"""Requests about branches of distributed transactions: which there are to be completed, and their time-outs.

Law: read at the log's end and told when that is committed: a branch is in `recover()` when every successor has it too (P5).
"""

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import SessionKey, TransactionKey
from lockstep.core.outcomes import Outcome
from lockstep.core.requests import GetTimeout, Recover
from lockstep.core.server_messages import BranchDescription, Recovered, TimeoutAnswer
from lockstep.core.sessions import session_tag
from lockstep.core.tx_buffer import DtxBuffer
from lockstep.core.xid import Xid
from services.primary.core.branches import state_of
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context


def recover(context: Context, streams: ClientStreams, stream: ClientStream, request: Recover) -> None:
    """One page of the branches, by xid; stable while nothing happens to them."""
    limit = min(max(request.limit, 1), context.settings.recover_branches_max)
    found = [described for described in _all(context, request.with_open) if described.xid > request.after]
    found.sort(key=lambda described: described.xid)
    branches, is_end = tuple(found[:limit]), len(found) <= limit
    streams.tell(stream.number, lambda: Recovered(*streams.head(), request.request, branches, is_end))


def get_timeout(context: Context, streams: ClientStreams, stream: ClientStream, request: GetTimeout) -> None:
    branch = context.state.transactions.find_branch(request.xid)
    code = ErrorCode.NONE
    if branch is None:
        code = ErrorCode.NOT_FOUND if _is_xid(request.xid) else ErrorCode.INVALID_ARGUMENT
    timeout_ms = branch.timeout_ms if branch is not None else 0
    streams.tell(stream.number, lambda: TimeoutAnswer(*streams.head(), request.request, code, timeout_ms))


def _is_xid(name: bytes) -> bool:
    try:
        Xid.decode(name)
    except ValueError:
        return False
    return True


def _all(context: Context, with_open: bool) -> list[BranchDescription]:
    state = context.state
    buffers = state.transactions.prepared() + (state.transactions.open() if with_open else [])
    found = [_branch(context, buffer) for buffer in buffers if isinstance(buffer, DtxBuffer)]
    found += [_ended(key, outcome) for key, outcome in state.outcomes.heuristic()]
    return found


def _branch(context: Context, branch: DtxBuffer) -> BranchDescription:
    sessions = sorted(branch.associations) or ([branch.session] if branch.session else [])
    return BranchDescription(
        branch.xid,
        branch.key,
        branch.branch_state,
        branch.prepared_ms or branch.started_ms,
        len(branch.operations),
        tuple(_session_tag(context, session) for session in sessions),
    )


def _session_tag(context: Context, key: SessionKey) -> str:
    session = context.state.sessions.get(key)
    return session_tag(session.id) if session is not None else ""


def _ended(key: TransactionKey, outcome: Outcome) -> BranchDescription:
    return BranchDescription(outcome.xid, key, state_of(outcome), 0, 0, ())
