"""What a set's resource manager answers, as the coordinator's core hears it."""

import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.xa import BranchState, XaStatus
from services.coordinator.core.set_answers import completion, refused_completion, refused_vote, vote
from services.coordinator.core.votes import Completion, Vote


def test_only_ok_is_a_yes() -> None:
    assert {status for status in XaStatus if vote(status) is Vote.OK} == {XaStatus.OK}
    assert vote(XaStatus.RDONLY) is Vote.READ_ONLY


@pytest.mark.parametrize("code", [ErrorCode.UNAVAILABLE, ErrorCode.NOT_PRIMARY, ErrorCode.UNKNOWN_SESSION])
def test_what_says_nothing_of_the_branch_is_no_answer(code: ErrorCode) -> None:
    assert refused_vote(code, BranchState.UNKNOWN) is Vote.UNREACHABLE
    assert refused_completion(code, BranchState.UNKNOWN) is Completion.UNREACHABLE


def test_a_branch_that_is_gone_is_committed_if_that_is_known_and_otherwise_unknown() -> None:
    assert refused_vote(ErrorCode.NOT_FOUND, BranchState.COMMITTED) is Vote.COMMITTED
    assert refused_vote(ErrorCode.NOT_FOUND, BranchState.UNKNOWN) is Vote.UNKNOWN_BRANCH
    assert refused_completion(ErrorCode.NOT_FOUND, BranchState.COMMITTED) is Completion.COMMITTED
    assert refused_completion(ErrorCode.NOT_FOUND, BranchState.UNKNOWN) is Completion.UNKNOWN_BRANCH
    assert refused_vote(ErrorCode.NOT_FOUND, BranchState.FORGOTTEN) is Vote.UNKNOWN_BRANCH
    assert refused_completion(ErrorCode.NOT_FOUND, BranchState.FORGOTTEN) is Completion.FORGOTTEN


def test_a_branch_in_which_sessions_work_votes_no() -> None:
    assert refused_vote(ErrorCode.ILLEGAL_STATE, BranchState.ACTIVE) is Vote.NO


def test_how_a_branch_ended_is_told_whatever_was_asked() -> None:
    assert completion(XaStatus.OK, Completion.COMMITTED) is Completion.COMMITTED
    assert completion(XaStatus.RBTIMEOUT, Completion.COMMITTED) is Completion.ROLLED_BACK
    assert completion(XaStatus.HEURRB, Completion.COMMITTED) is Completion.HEURISTICALLY_ROLLED_BACK
