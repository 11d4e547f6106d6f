"""The verbs of distributed transactions' branches, and their answers, on the wire."""

from collections.abc import Callable

from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.wire_numbers import error_code
from lockstep.runtime.transaction_name_codec import decode_name, encode_name
from lockstep.wire.v1 import session_pb2 as pb

_Wire = pb.ClientMessage
BranchVerb = (
    c.SelectDtxCommand
    | c.StartCommand
    | c.EndCommand
    | c.PrepareBranchCommand
    | c.CommitBranchCommand
    | c.RollbackBranchCommand
    | c.ForgetBranchCommand
    | c.SetTimeoutCommand
    | c.EndHeuristicallyCommand
)


def encode_branch_verb(command: BranchVerb) -> pb.ClientMessage:
    match command:
        case c.SelectDtxCommand(number, hears_read_only, has_many_branches):
            select = _Wire.SelectDtx(hears_read_only=hears_read_only, has_many_branches=has_many_branches)
            return _Wire(number=number, select_dtx=select)
        case c.StartCommand(number, xid, is_join, is_resume, transaction):
            name = encode_name(transaction) if transaction is not None else None
            start = _Wire.Start(xid=xid, is_join=is_join, is_resume=is_resume, transaction=name)
            return _Wire(number=number, start=start)
        case c.EndCommand(number, xid, operations, is_failed, is_suspended):
            end = _Wire.End(xid=xid, operations=operations, is_failed=is_failed, is_suspended=is_suspended)
            return _Wire(number=number, end=end)
        case c.PrepareBranchCommand(number, xid, resource_sets):
            return _Wire(
                number=number, prepare_branch=_Wire.PrepareBranch(xid=xid, resource_sets=resource_sets)
            )
        case c.CommitBranchCommand(number, xid, is_one_phase):
            commit = _Wire.CommitBranch(xid=xid, is_one_phase=is_one_phase)
            return _Wire(number=number, commit_branch=commit)
        case c.RollbackBranchCommand(number, xid):
            return _Wire(number=number, rollback_branch=_Wire.RollbackBranch(xid=xid))
        case c.ForgetBranchCommand(number, xid):
            return _Wire(number=number, forget_branch=_Wire.ForgetBranch(xid=xid))
        case c.SetTimeoutCommand(number, xid, timeout_ms):
            return _Wire(number=number, set_timeout=_Wire.SetTimeout(xid=xid, timeout_ms=timeout_ms))
        case c.EndHeuristicallyCommand(number, xid, is_commit):
            heuristic = _Wire.EndHeuristically(xid=xid, is_commit=is_commit)
            return _Wire(number=number, end_heuristically=heuristic)


DECODE_VERB: dict[str, Callable[[int, pb.ClientMessage], BranchVerb]] = {
    "select_dtx": lambda number, wire: c.SelectDtxCommand(
        number, wire.select_dtx.hears_read_only, wire.select_dtx.has_many_branches
    ),
    "start": lambda number, wire: c.StartCommand(
        number,
        wire.start.xid,
        wire.start.is_join,
        wire.start.is_resume,
        decode_name(wire.start.transaction) if wire.start.HasField("transaction") else None,
    ),
    "end": lambda number, wire: c.EndCommand(
        number, wire.end.xid, wire.end.operations, wire.end.is_failed, wire.end.is_suspended
    ),
    "prepare_branch": lambda number, wire: c.PrepareBranchCommand(
        number, wire.prepare_branch.xid, tuple(wire.prepare_branch.resource_sets)
    ),
    "commit_branch": lambda number, wire: c.CommitBranchCommand(
        number, wire.commit_branch.xid, wire.commit_branch.is_one_phase
    ),
    "rollback_branch": lambda number, wire: c.RollbackBranchCommand(number, wire.rollback_branch.xid),
    "forget_branch": lambda number, wire: c.ForgetBranchCommand(number, wire.forget_branch.xid),
    "set_timeout": lambda number, wire: c.SetTimeoutCommand(
        number, wire.set_timeout.xid, wire.set_timeout.timeout_ms
    ),
    "end_heuristically": lambda number, wire: c.EndHeuristicallyCommand(
        number, wire.end_heuristically.xid, wire.end_heuristically.is_commit
    ),
}


def encode_branch_request(request: rq.Recover | rq.GetTimeout) -> pb.ClientMessage:
    match request:
        case rq.Recover(number, after, limit, with_open):
            recover = _Wire.Recover(request=number, after=after, limit=limit, with_open=with_open)
            return _Wire(recover=recover)
        case rq.GetTimeout(number, xid):
            return _Wire(get_timeout=_Wire.GetTimeout(request=number, xid=xid))


DECODE_REQUEST: dict[str, Callable[[pb.ClientMessage], rq.ClientMessage]] = {
    "recover": lambda wire: rq.Recover(
        wire.recover.request, wire.recover.after, wire.recover.limit, wire.recover.with_open
    ),
    "get_timeout": lambda wire: rq.GetTimeout(wire.get_timeout.request, wire.get_timeout.xid),
}


def encode_recovered(message: sm.Recovered) -> pb.ServerMessage:
    branches = [
        pb.ServerMessage.Branch(
            xid=branch.xid,
            transaction=pb.TransactionName(index=branch.transaction[0], epoch=branch.transaction[1]),
            state=branch.state,
            since_ms=branch.since_ms,
            operations=branch.operations,
            sessions=branch.sessions,
        )
        for branch in message.branches
    ]
    recovered = pb.ServerMessage.Recovered(request=message.request, branches=branches, is_end=message.is_end)
    return pb.ServerMessage(recovered=recovered)


def decode_recovered(epoch: Epoch, commit_index: LogIndex, wire: pb.ServerMessage) -> sm.Recovered:
    branches = tuple(
        sm.BranchDescription(
            branch.xid,
            (LogIndex(branch.transaction.index), Epoch(branch.transaction.epoch)),
            branch.state,
            branch.since_ms,
            branch.operations,
            tuple(branch.sessions),
        )
        for branch in wire.recovered.branches
    )
    return sm.Recovered(epoch, commit_index, wire.recovered.request, branches, wire.recovered.is_end)


def encode_timeout(message: sm.TimeoutAnswer) -> pb.ServerMessage:
    answer = pb.ServerMessage.TimeoutAnswer(
        request=message.request, code=message.code, timeout_ms=message.timeout_ms
    )
    return pb.ServerMessage(timeout_answer=answer)


def decode_timeout(epoch: Epoch, commit_index: LogIndex, wire: pb.ServerMessage) -> sm.TimeoutAnswer:
    answer = wire.timeout_answer
    code = error_code(answer.code)
    return sm.TimeoutAnswer(epoch, commit_index, answer.request, code, answer.timeout_ms)
