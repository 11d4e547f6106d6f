"""What the resource manager of a set is told, and what it answers, as votes and completions.

Law: as for every participant: what it has said is an answer, and nothing else is. Where the branch is gone, the state that came
with the refusal tells whether it is known to have committed.
"""

from collections.abc import Iterable

from lockstep.core.branch_names import SET_KIND, ParticipantName
from lockstep.core.errors import ErrorCode
from lockstep.core.xa import BranchState, XaStatus
from services.coordinator.core.votes import Completion, Vote

_ENDS = {
    XaStatus.RBROLLBACK: Completion.ROLLED_BACK,
    XaStatus.RBTIMEOUT: Completion.ROLLED_BACK,
    XaStatus.HEURCOM: Completion.HEURISTICALLY_COMMITTED,
    XaStatus.HEURRB: Completion.HEURISTICALLY_ROLLED_BACK,
    XaStatus.HEURMIX: Completion.HEURISTICALLY_MIXED,
    XaStatus.HEURHAZ: Completion.HEURISTICALLY_MIXED,
}
_GONE = {
    BranchState.COMMITTED: Completion.COMMITTED,
    BranchState.FORGOTTEN: Completion.FORGOTTEN,
}


def sets_among(participants: Iterable[ParticipantName]) -> tuple[str, ...]:
    """Names of the resource sets among a transaction's participants, sorted: what a set is told with `prepare`."""
    return tuple(sorted(name.removeprefix(SET_KIND) for name in participants if name.startswith(SET_KIND)))


def vote(status: XaStatus) -> Vote:
    """Of a prepare that was answered."""
    if status is XaStatus.RDONLY:
        return Vote.READ_ONLY
    return Vote.OK if status is XaStatus.OK else Vote.NO


def refused_vote(code: ErrorCode, met: BranchState) -> Vote:
    """Of a prepare that was rejected, in the state that it met."""
    if code is ErrorCode.NOT_FOUND:
        return Vote.COMMITTED if met is BranchState.COMMITTED else Vote.UNKNOWN_BRANCH
    if code is ErrorCode.ILLEGAL_STATE:
        # Sessions still work in it, or an operator has ended it.
        return Vote.NO
    return Vote.UNREACHABLE


def completion(status: XaStatus, asked: Completion) -> Completion:
    """Of a commit or rollback that was answered; `asked`: what it ends with when all is well."""
    return _ENDS.get(status, asked)


def refused_completion(code: ErrorCode, met: BranchState) -> Completion:
    """Of a commit or rollback that was rejected, in the state that it met."""
    if code is not ErrorCode.NOT_FOUND:
        return Completion.UNREACHABLE
    return _GONE.get(met, Completion.UNKNOWN_BRANCH)
