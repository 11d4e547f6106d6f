"""What participants answer: votes on prepare, and how their branches ended.

Law: an answer that did not come is no answer. Nothing is concluded from `UNREACHABLE`: the branch may or may not have done what
it was asked, and is asked again.
"""

from collections.abc import Collection
from enum import Enum

from lockstep.core.decision_log import Verdict
from lockstep.core.xa import XaStatus


class Verb(Enum):
    """What a branch is told."""

    PREPARE = "prepare"
    COMMIT = "commit"
    COMMIT_ONE_PHASE = "commit in one phase"
    ROLL_BACK = "roll back"


class Vote(Enum):
    """Answer to prepare."""

    OK = "ok"
    """Prepared, durably: it can commit and it can roll back, whatever happens."""
    READ_ONLY = "read-only"
    """It has nothing to commit, and is finished."""
    NO = "no"
    """It cannot commit; it is rolled back, or will be when it is told."""
    COMMITTED = "committed"
    """It has committed: by a decision, which the log has then; by an operator's; or because it had nothing to commit, where its
    first answer was lost. Like OK, it says nothing of the others."""
    UNKNOWN_BRANCH = "unknown branch"
    """It never heard of the branch, or has forgotten it."""
    UNREACHABLE = "unreachable"


class Completion(Enum):
    """Answer to commit and rollback: how the branch has ended, by this call or before it (DESIGN T4)."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    HEURISTICALLY_COMMITTED = "heuristically committed"
    HEURISTICALLY_ROLLED_BACK = "heuristically rolled back"
    HEURISTICALLY_MIXED = "heuristically mixed"
    UNKNOWN_BRANCH = "unknown branch"
    FORGOTTEN = "forgotten"
    """It knows nothing of the branch, and would not know that it has committed."""
    GIVEN_UP = "given up by an operator"
    """It is not there, or not any more: an operator says so in its place."""
    UNREACHABLE = "unreachable"


_AS_DECIDED = {
    Verdict.COMMIT: {Completion.COMMITTED},
    # A branch that is unknown has nothing left to roll back (T4).
    Verdict.ABORT: {
        Completion.ROLLED_BACK,
        Completion.UNKNOWN_BRANCH,
        Completion.FORGOTTEN,
        Completion.GIVEN_UP,
    },
}


def is_hazard(verdict: Verdict, completion: Completion) -> bool:
    """Whether somebody has to be told how a branch ended: by a heuristic, against the verdict, or nobody knows."""
    assert completion is not Completion.UNREACHABLE, "no answer is no completion"
    return completion not in _AS_DECIDED[verdict]


_COMMITTED = {Completion.COMMITTED, Completion.HEURISTICALLY_COMMITTED}
_NOT_KNOWN = {Completion.UNKNOWN_BRANCH, Completion.FORGOTTEN, Completion.GIVEN_UP}
_ROLLED_BACK = {Completion.ROLLED_BACK, Completion.HEURISTICALLY_ROLLED_BACK}


def heuristic_status(verdict: Verdict, ends: Collection[Completion]) -> XaStatus:
    """What the ends of all participants make of the whole (dtx contract): OK, or what operators have to see."""
    if not any(is_hazard(verdict, end) for end in ends):
        return XaStatus.OK
    is_committed = any(end in _COMMITTED for end in ends)
    is_rolled_back = any(end in _ROLLED_BACK for end in ends)
    if Completion.HEURISTICALLY_MIXED in ends or (is_committed and is_rolled_back):
        return XaStatus.HEURMIX
    is_unknown = any(end in _NOT_KNOWN for end in ends)
    if verdict is Verdict.COMMIT and is_unknown:
        return XaStatus.HEURHAZ
    if is_committed and is_unknown:
        # To a rollback, unknown says that nothing is left.
        return XaStatus.HEURMIX
    return XaStatus.HEURCOM if is_committed else XaStatus.HEURRB


_YES = {Vote.OK, Vote.COMMITTED}


def verdict_of(votes: list[Vote | None], is_late: bool) -> Verdict | None:
    """What the votes so far ask for; None: wait. `is_late`: the time to prepare is over.

    A "no" needs nobody else's vote. A missing vote is no "yes". One that has committed proves no decision: while the log has
    none, none explains it. If COMMIT was decided meanwhile, the log says so to whoever decides.
    """
    if Vote.NO in votes or (Vote.UNKNOWN_BRANCH in votes and not _YES.isdisjoint(votes)):
        return Verdict.ABORT
    if None in votes:
        return Verdict.ABORT if is_late else None
    return Verdict.ABORT if Vote.UNKNOWN_BRANCH in votes else Verdict.COMMIT
