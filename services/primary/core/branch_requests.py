"""Requests about branches of distributed transactions: which there are to be completed, and their time-outs.

Law: read at the log's end and told when that is committed: a branch is in `recover()` when every successor has it too (P5). There
may be very many: a page is chosen in pieces among those that there were when its turn came, and then read of those that are left.
"""

from collections.abc import Callable, Generator

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import SessionKey, TransactionKey
from lockstep.core.outcomes import Outcome
from lockstep.core.requests import GetTimeout, Recover
from lockstep.core.server_messages import BranchDescription, Recovered, TimeoutAnswer
from lockstep.core.sessions import session_tag
from lockstep.core.transaction_states import HEURISTICS
from lockstep.core.tx_buffer import DtxBuffer
from lockstep.core.xid import Xid
from services.primary.core.branches import state_of
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context

_LOOKED_AT = 1000
"""Branches in one step."""
_DESCRIBED_COST = 5
_Named = tuple[bytes, TransactionKey]


def recover(context: Context, streams: ClientStreams, stream: ClientStream, request: Recover) -> None:
    """One page of the branches, by xid; stable while nothing happens to them."""
    streams.answer_in_turn(stream, _recover(context, streams, request))


def _recover(
    context: Context, streams: ClientStreams, request: Recover
) -> Generator[int, None, Callable[[], Recovered]]:
    limit = min(max(request.limit, 1), context.settings.recover_branches_max)
    found: list[BranchDescription] = []
    after, is_end = request.after, False
    while not found and not is_end:
        chosen = yield from _first_behind(context, after, limit + 1, request.with_open)
        is_end = len(chosen) <= limit
        del chosen[limit:]
        # All of these may have ended meanwhile.
        found = [described for name in chosen if (described := _described(context, name, request.with_open))]
        after = chosen[-1][0] if chosen else after
        yield _DESCRIBED_COST * len(found)
    branches = tuple(found)
    return lambda: Recovered(*streams.head(), request.request, branches, is_end)


def _first_behind(
    context: Context, after: bytes, count: int, with_open: bool
) -> Generator[int, None, list[_Named]]:
    """The first of all branches behind `after`, by xid, `count` at most."""
    live, ended = list(context.state.transactions.live.values()), context.state.outcomes.heuristic()
    chosen: list[_Named] = []
    for begin in range(0, max(len(live), len(ended)), _LOOKED_AT):
        part, part_ended = live[begin : begin + _LOOKED_AT], ended[begin : begin + _LOOKED_AT]
        chosen += [
            (buffer.xid, buffer.key)
            for buffer in part
            if buffer.xid > after and (with_open or buffer.is_prepared)
        ]
        chosen += [(outcome.xid, key) for key, outcome in part_ended if outcome.xid > after]
        chosen.sort()
        del chosen[count:]
        yield (len(part) + len(part_ended)) // 2
    return chosen


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


def _described(context: Context, name: _Named, with_open: bool) -> BranchDescription | None:
    """None: it has ended."""
    xid, key = name
    buffer = context.state.transactions.get(key)
    if isinstance(buffer, DtxBuffer) and buffer.xid == xid and (with_open or buffer.is_prepared):
        return _branch(context, buffer)
    outcome = context.state.outcomes.get(key)
    if outcome is not None and outcome.state in HEURISTICS:
        return _ended(key, outcome)
    return None


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
