"""Verbs of the branches of distributed transactions, as the DTX contract has them: X/Open XA over the replicated state machine.

Law: what a verb finds is read from the state at the log's end, and what it does is a record; so each race is decided by the log,
and a successor answers as this primary would have. A verb that makes no sense where it comes is rejected and changes nothing.
"""

from typing import assert_never

from lockstep.core.branch_names import PARTICIPANTS_MAX
from lockstep.core.commands import (
    BranchCommand,
    CommitBranchCommand,
    EndCommand,
    EndHeuristicallyCommand,
    ForgetBranchCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    SetTimeoutCommand,
    StartCommand,
)
from lockstep.core.effects import Note
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SessionKey, TransactionKey
from lockstep.core.outcomes import Outcome
from lockstep.core.records import (
    AcceptCommand,
    Associate,
    Commit,
    Dissociate,
    ForgetHeuristic,
    ForgetUndone,
    Identify,
    MarkRollbackOnly,
    Prepare,
    Rollback,
    RollbackReason,
    SelectDtx,
    SetTimeout,
)
from lockstep.core.sessions import DtxUse, session_tag
from lockstep.core.transaction_states import TransactionState
from lockstep.core.transactions import Undone
from lockstep.core.tx_buffer import DtxBuffer
from lockstep.core.xa import HEURISTIC_STATUS, UNDONE_STATUS, BranchState, XaStatus
from lockstep.core.xid import Xid
from services.primary.core import decisions, doubts, used_names
from services.primary.core.context import Context, Request, check_name
from services.primary.core.transacting import (
    append_begin,
    append_rollback,
    check_open,
    evict_touched,
    open_tx,
)

Found = DtxBuffer | Undone | Outcome | None
"""What there is of an xid: an open or prepared branch, one that was rolled back and nobody heard it, an outcome, nothing."""


def find(context: Context, xid: bytes) -> Found:
    """What there is of an xid, at the log's end."""
    transactions = context.state.transactions
    branch = transactions.find_branch(xid)
    if branch is not None:
        return branch
    undone = transactions.undone.get(xid)
    if undone is not None:
        return undone
    ended = context.state.outcomes.find_xid(xid)
    return ended[1] if ended is not None else None


def state_of(found: Found) -> BranchState:
    """The same as a verb's answer says it."""
    match found:
        case None:
            return BranchState.UNKNOWN
        case DtxBuffer():
            return found.branch_state
        case Undone():
            return found.state
        case Outcome():
            return _ENDED.get(found.state, BranchState.UNKNOWN)
        case _:
            assert_never(found)


_ENDED = {
    TransactionState.COMMITTED: BranchState.COMMITTED,
    TransactionState.HEURISTICALLY_COMMITTED: BranchState.HEURISTICALLY_COMMITTED,
    TransactionState.HEURISTICALLY_ROLLED_BACK: BranchState.HEURISTICALLY_ROLLED_BACK,
}


# --- sessions and their work in branches --------------------------------------------------------------------------------


def select_dtx(context: Context, request: Request, command: SelectDtxCommand) -> None:
    record = SelectDtx(request.ref, request.session, command.hears_read_only, command.has_many_branches)
    context.writer.append(record, False)


def start(context: Context, request: Request, command: StartCommand) -> None:
    found = _found(context, command)
    _check_selected(context, request, command, found)
    if (command.is_join, command.is_resume, command.transaction is not None).count(True) > 1:
        text = "join, resume and a transaction exclude each other"
        raise _rejected(ErrorCode.COMMAND_INVALID, command, found, text)
    active = _active(context, request.session)
    if active is not None:
        text = f"the session works in branch {_name(active.xid)}"
        raise _rejected(ErrorCode.COMMAND_INVALID, command, found, text)
    if command.is_resume:
        _resume(context, request, command, found)
    elif command.is_join:
        _join(context, request, command, found)
    else:
        _begin(context, request, command, found)


def _begin(context: Context, request: Request, command: StartCommand, found: Found) -> None:
    if text := used_names.objection(context, command.xid, has_ended=isinstance(found, Outcome)):
        raise _rejected(ErrorCode.NOT_ALLOWED, command, found, text)
    if state_of(found) not in (BranchState.UNKNOWN, BranchState.COMMITTED):
        raise _rejected(ErrorCode.NOT_ALLOWED, command, found, "exists already")
    if command.transaction is not None:
        _identify(context, request, command, command.transaction)
        return
    check_open(context, request.session)
    append_begin(context, request.session, request.ref, context.settings.branch_timeout_ms, command.xid)


def _identify(context: Context, request: Request, command: StartCommand, key: TransactionKey) -> None:
    """The TX goes on as a branch: its operations, their numbers and its time-out stay what they are."""
    buffer = open_tx(context, request.session, key)
    timeout_ms = buffer.timeout_ms or context.settings.branch_timeout_ms
    context.writer.append(Identify(request.ref, key, request.session, command.xid, timeout_ms), False)
    progress = context.progress[key]
    progress.ends_ms = progress.ends_ms or context.now.boottime_ms + timeout_ms


def _join(context: Context, request: Request, command: StartCommand, found: Found) -> None:
    if found is None or (isinstance(found, Outcome) and state_of(found) not in HEURISTIC_STATUS):
        raise _rejected(ErrorCode.NOT_FOUND, command, found, "does not exist")
    if isinstance(found, Undone):
        raise _rejected(ErrorCode.ROLLED_BACK, command, found, "was rolled back")
    if not isinstance(found, DtxBuffer) or found.is_prepared or request.session in found.associations:
        raise _rejected(ErrorCode.COMMAND_INVALID, command, found, "cannot be joined")
    if found.is_rollback_only:
        raise _rejected(ErrorCode.ROLLBACK_ONLY, command, found, "can only be rolled back")
    context.writer.append(Associate(request.ref, found.key, request.session), False)
    context.progress[found.key].sequences[request.session] = 0


def _resume(context: Context, request: Request, command: StartCommand, found: Found) -> None:
    if not isinstance(found, DtxBuffer) or not found.associations.get(request.session):
        raise _rejected(ErrorCode.COMMAND_INVALID, command, found, "was not suspended by this session")
    context.writer.append(Associate(request.ref, found.key, request.session), False)


def end(context: Context, request: Request, command: EndCommand) -> None:
    found = _found(context, command)
    _check_selected(context, request, command, found)
    if isinstance(found, Undone):
        _answer(context, request, UNDONE_STATUS[found.state])
        return
    active = _active(context, request.session)
    if active is not None and active is not found:
        text = f"the session works in branch {_name(active.xid)}"
        raise _rejected(ErrorCode.COMMAND_INVALID, command, found, text)
    if not isinstance(found, DtxBuffer) or request.session not in found.associations:
        raise _rejected(ErrorCode.ILLEGAL_STATE, command, found, "the session does not work in it")
    is_whole = context.progress[found.key].sequences.get(request.session, 0) == command.operations
    if not is_whole and not found.is_rollback_only:
        # An operation got lost on the way: whatever else this verb says, the branch lacks it (T1).
        context.writer.append(MarkRollbackOnly(None, found.key), False)
    if command.is_suspended:
        _suspend(context, request, command, found)
        return
    is_failed = command.is_failed or not is_whole
    context.writer.append(Dissociate(None, found.key, request.session, is_failed), False)
    _answer(context, request, XaStatus.RBROLLBACK if is_failed else XaStatus.OK)


def _suspend(context: Context, request: Request, command: EndCommand, branch: DtxBuffer) -> None:
    if command.is_failed:
        if not branch.is_rollback_only:
            context.writer.append(MarkRollbackOnly(None, branch.key), False)
        text = "suspend and fail exclude each other: it can only be rolled back now"
        raise _rejected(ErrorCode.COMMAND_INVALID, command, branch, text)
    if branch.associations[request.session]:
        raise _rejected(ErrorCode.COMMAND_INVALID, command, branch, "is suspended already")
    context.writer.append(Associate(request.ref, branch.key, request.session, True), False)


def session_ended(context: Context, branch: DtxBuffer, session: SessionKey) -> None:
    """A session that works in this branch is about to be closed: it fails, and ends at once if nobody else works in it."""
    if len(branch.associations) == 1:
        append_rollback(context, branch.key, RollbackReason.SESSION_ENDED)
    else:
        context.writer.append(Dissociate(None, branch.key, session, True), False)


# --- completion ---------------------------------------------------------------------------------------------------------


def prepare(context: Context, request: Request, command: PrepareBranchCommand) -> None:
    found = _found(context, command)
    if isinstance(found, Undone):
        _answer(context, request, UNDONE_STATUS[found.state])
        return
    branch = _branch(context, command, found)
    if branch.is_prepared:
        context.questions.voted(branch.key)
        if command.resource_sets:
            # Whoever had it prepared may not have known them: a worker of one branch does not know the others.
            context.writer.append(_prepare_record(context, request, command, branch), True)
        else:
            _answer(context, request, XaStatus.OK)
        return
    _check_ended(command, branch)
    if branch.is_rollback_only:
        _answer(context, request, XaStatus.RBROLLBACK)
        return
    if not branch.operations and _uses(context, request.session, DtxUse.HEARS_READ_ONLY):
        _check_resource_sets(context, command)
        sets = command.resource_sets
        ended = Prepare(
            None,
            branch.key,
            True,
            command.xid,
            resource_sets=sets,
            durable_records=0,
            is_read_only=True,
        )
        _end_open(context, branch, ended)
        _answer(context, request, XaStatus.RDONLY)
        return
    _end_open(context, branch, _prepare_record(context, request, command, branch))
    decisions.watch(context, branch)
    doubts.watch(context, branch)


def _prepare_record(
    context: Context, request: Request, command: PrepareBranchCommand, branch: DtxBuffer
) -> Prepare:
    """Raises `Rejected` for names of resource sets that are none."""
    _check_resource_sets(context, command)
    return Prepare(
        request.ref,
        branch.key,
        False,
        command.xid,
        context.now.wall_ms,
        command.resource_sets,
        durable_records=branch.durable_records,
    )


def _check_resource_sets(context: Context, command: PrepareBranchCommand) -> None:
    if len(command.resource_sets) > PARTICIPANTS_MAX:
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT, f"a transaction has at most {PARTICIPANTS_MAX} participants"
        )
    for name in command.resource_sets:
        check_name("resource set", name, context.settings.name_bytes_max)


def commit(context: Context, request: Request, command: CommitBranchCommand) -> None:
    found = _found(context, command)
    if _answer_ended(context, request, command, found):
        return
    branch = _branch(context, command, found)
    _check_ended(command, branch)
    records = branch.durable_records
    if branch.is_rollback_only:
        _end_open(context, branch, Rollback(None, branch.key, RollbackReason.ROLLBACK_ONLY, records))
        _answer(context, request, XaStatus.RBROLLBACK)
        return
    if branch.is_prepared == command.is_one_phase:
        text = "is prepared: not in one phase" if branch.is_prepared else "is not prepared"
        raise _rejected(ErrorCode.ILLEGAL_STATE, command, branch, text)
    if command.is_one_phase:
        prepare = Prepare(request.ref, branch.key, True, command.xid, durable_records=records)
        _end_open(context, branch, prepare)
    else:
        context.writer.append(Commit(request.ref, branch.key, durable_records=records), True)
    evict_touched(context, branch)


def rollback(context: Context, request: Request, command: RollbackBranchCommand) -> None:
    found = _found(context, command)
    if isinstance(found, Undone) and found.state is BranchState.ROLLED_BACK:
        context.writer.append(ForgetUndone(None, command.xid), False)
        _answer(context, request, XaStatus.OK)
        return
    if isinstance(found, Outcome) and found.had_nothing_to_commit:
        # Whoever tells it the end may not have heard its vote: to him nothing is left, and it has not committed against anybody.
        raise _rejected(ErrorCode.NOT_FOUND, command, None, "had nothing to commit")
    if _answer_ended(context, request, command, found):
        return
    branch = _branch(context, command, found)
    _check_ended(command, branch)
    reason = RollbackReason.COORDINATOR
    _end_open(context, branch, Rollback(request.ref, branch.key, reason, branch.durable_records))


def end_heuristically(context: Context, request: Request, command: EndHeuristicallyCommand) -> None:
    branch = _branch(context, command, _found(context, command))
    session = context.state.sessions.get(request.session)
    verb = "commit" if command.is_commit else "rollback"
    by = session_tag(session.id) if session else "?"
    details = f"{verb} of {_name(command.xid)} in {branch.branch_state.name}, by session {by}"
    context.effects.append(Note(context.state.set_name, "heuristic", details))
    if command.is_commit:
        if not branch.is_prepared:
            raise _rejected(ErrorCode.ILLEGAL_STATE, command, branch, "is not prepared")
        context.writer.append(Commit(request.ref, branch.key, True, branch.durable_records), True)
        evict_touched(context, branch)
    else:
        reason = RollbackReason.HEURISTIC
        _end_open(context, branch, Rollback(request.ref, branch.key, reason, branch.durable_records))


def forget(context: Context, request: Request, command: ForgetBranchCommand) -> None:
    found = _found(context, command)
    if state_of(found) not in HEURISTIC_STATUS:
        if found is None or isinstance(found, Outcome):
            raise _rejected(ErrorCode.NOT_FOUND, command, found, "does not exist")
        raise _rejected(ErrorCode.ILLEGAL_STATE, command, found, "was not ended heuristically")
    ended = context.state.outcomes.find_xid(command.xid)
    assert ended is not None
    if used_names.is_ahead(context, command.xid):
        text = "was begun later than now, by the clock of who named it: it can be forgotten when that time has come"
        raise _rejected(ErrorCode.ILLEGAL_STATE, command, found, text)
    horizon_ms = used_names.horizon_behind_heuristic(context, command.xid)
    context.writer.append(ForgetHeuristic(request.ref, ended[0], horizon_ms), True)


# --- time-outs ----------------------------------------------------------------------------------------------------------


def set_timeout(context: Context, request: Request, command: SetTimeoutCommand) -> None:
    branch = _branch(context, command, _found(context, command))
    if not 0 <= command.timeout_ms <= context.settings.branch_timeout_ms_max:
        text = f"a time-out of {command.timeout_ms} ms, at most {context.settings.branch_timeout_ms_max}"
        raise _rejected(ErrorCode.INVALID_ARGUMENT, command, branch, text)
    if branch.is_prepared:
        _answer(context, request, XaStatus.OK)
        return
    progress = context.progress[branch.key]
    progress.ends_ms = context.now.boottime_ms + command.timeout_ms if command.timeout_ms else 0
    context.writer.append(SetTimeout(request.ref, branch.key, command.timeout_ms), False)


# --- inside -------------------------------------------------------------------------------------------------------------


def _found(context: Context, command: BranchCommand) -> Found:
    """What there is of the command's xid; raises `Rejected` for one that is malformed."""
    try:
        Xid.decode(command.xid)
    except ValueError as error:
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT, f"{_verb(command)}: {error}", xid=command.xid.hex()
        ) from error
    return find(context, command.xid)


def _check_selected(context: Context, request: Request, command: BranchCommand, found: Found) -> None:
    if not _uses(context, request.session, DtxUse.SELECTED):
        raise _rejected(ErrorCode.COMMAND_INVALID, command, found, "the session has not selected dtx")


def _uses(context: Context, key: SessionKey, use: DtxUse) -> bool:
    session = context.state.sessions.get(key)
    return session is not None and use in session.dtx


def _active(context: Context, session: SessionKey) -> DtxBuffer | None:
    """The only branch that the session works in, beside those that it has suspended; None for one that may have many."""
    if _uses(context, session, DtxUse.MANY_BRANCHES):
        return None
    for branch in context.state.transactions.branches_of(session):
        if not branch.associations[session]:
            return branch
    return None


def _branch(context: Context, command: BranchCommand, found: Found) -> DtxBuffer:
    """The open or prepared branch; raises `Rejected`."""
    if isinstance(found, DtxBuffer):
        return found
    if state_of(found) in HEURISTIC_STATUS or isinstance(found, Undone):
        raise _rejected(ErrorCode.ILLEGAL_STATE, command, found, "has ended")
    if found is None and used_names.may_be_forgotten(context, command.xid):
        raise _rejected(
            ErrorCode.NOT_FOUND, command, found, "may have ended before", met=BranchState.FORGOTTEN
        )
    raise _rejected(ErrorCode.NOT_FOUND, command, found, "does not exist")


def _check_ended(command: BranchCommand, branch: DtxBuffer) -> None:
    """Raises `Rejected` while sessions work in it."""
    if branch.associations:
        raise _rejected(ErrorCode.ILLEGAL_STATE, command, branch, "has not been ended by all its sessions")


def _answer_ended(context: Context, request: Request, command: BranchCommand, found: Found) -> bool:
    """Answer a completion of a branch that ended before, if it is one that somebody still has to hear of."""
    state = state_of(found)
    if state in HEURISTIC_STATUS:
        _answer(context, request, HEURISTIC_STATUS[state])
        return True
    if state in UNDONE_STATUS:
        context.writer.append(ForgetUndone(None, command.xid), False)
        _answer(context, request, UNDONE_STATUS[state])
        return True
    return False


def _end_open(context: Context, branch: DtxBuffer, record: Prepare | Rollback) -> None:
    """Append the record behind which nothing can be added to the branch."""
    context.writer.append(record, True)
    context.progress.end(branch.key)


def _answer(context: Context, request: Request, status: XaStatus) -> None:
    context.writer.append(AcceptCommand(request.ref, status), False)


def _rejected(
    code: ErrorCode, command: BranchCommand, found: Found, why: str, *, met: BranchState | None = None
) -> Rejected:
    """`met`: the state, where more is known of it than what there is."""
    state = met if met is not None else state_of(found)
    text = f"{_verb(command)} of branch {_name(command.xid)}, which is {state.name.lower()}: {why}"
    return Rejected(code, text, verb=_verb(command), xid=_name(command.xid), state=state)


def _name(xid: bytes) -> str:
    return str(Xid.decode(xid))


def _verb(command: BranchCommand) -> str:
    return _VERBS[type(command)]


_VERBS: dict[type[BranchCommand], str] = {
    StartCommand: "start",
    EndCommand: "end",
    PrepareBranchCommand: "prepare",
    CommitBranchCommand: "commit",
    RollbackBranchCommand: "rollback",
    ForgetBranchCommand: "forget",
    SetTimeoutCommand: "set-timeout",
    EndHeuristicallyCommand: "end-heuristically",
}
