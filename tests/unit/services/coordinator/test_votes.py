"""Votes: every combination of two participants, and what comes of it."""

import itertools

import pytest

from lockstep.core.decision_log import Verdict
from services.coordinator.core.messages import State
from services.coordinator.core.votes import Verb, Vote, verdict_of
from tests.unit.services.coordinator.rig import LIMITS, Participants, Rig

OK, READ_ONLY, NO = Vote.OK, Vote.READ_ONLY, Vote.NO
COMMITTED, UNKNOWN, UNREACHABLE = Vote.COMMITTED, Vote.UNKNOWN_BRANCH, Vote.UNREACHABLE
C, A, S = State.COMMITTED, State.ROLLED_BACK, State.NOT_KNOWN

OUTCOMES = {
    (OK, OK): C,
    (OK, READ_ONLY): C,
    (OK, NO): A,
    (OK, COMMITTED): C,
    (OK, UNKNOWN): A,
    (OK, UNREACHABLE): A,
    (READ_ONLY, READ_ONLY): C,
    (READ_ONLY, NO): A,
    (READ_ONLY, COMMITTED): C,
    (READ_ONLY, UNKNOWN): A,
    (READ_ONLY, UNREACHABLE): A,
    (NO, NO): A,
    (NO, COMMITTED): C,
    (NO, UNKNOWN): A,
    (NO, UNREACHABLE): A,
    (COMMITTED, COMMITTED): C,
    (COMMITTED, UNKNOWN): C,
    (COMMITTED, UNREACHABLE): C,
    (UNKNOWN, UNKNOWN): S,
    (UNKNOWN, UNREACHABLE): A,
    (UNREACHABLE, UNREACHABLE): A,
}
"""(NO, COMMITTED) is decided by whoever votes first: a "no" needs nobody else. See below."""


def test_every_combination_is_listed() -> None:
    pairs = {frozenset(pair) for pair in itertools.combinations_with_replacement(Vote, 2)}
    assert {frozenset(pair) for pair in OUTCOMES} == pairs and len(OUTCOMES) == len(pairs)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        pytest.param(ordered, state, id="-".join(vote.name for vote in ordered))
        for pair, state in OUTCOMES.items()
        if set(pair) != {NO, COMMITTED}
        for ordered in sorted({pair, pair[::-1]}, key=str)
    ],
)
def test_two_votes_make_the_outcome(votes: tuple[Vote, Vote], expected: State) -> None:
    rig = Rig(participants=Participants(votes))
    request = rig.commit()
    rig.run()
    if UNREACHABLE in votes and COMMITTED not in votes and NO not in votes:
        assert rig.state(request) is None, "who has not voted is waited for"
        rig.pass_time(LIMITS.prepare_ms)
    assert rig.state(request) is expected
    ends = {C: Verb.COMMIT, A: Verb.ROLL_BACK}
    for vote, verb in zip(votes, rig.participants.verbs(), strict=True):
        # Behind a vote that decides alone, the second one is not heard any more.
        is_finished = expected is S or (vote is READ_ONLY and votes[0] not in (NO, COMMITTED))
        assert verb is (None if is_finished else ends[expected])
    assert not rig.log.participants and not rig.log.decisions
    assert not rig.core.transactions


@pytest.mark.parametrize("first", [NO, COMMITTED])
def test_a_no_is_not_waited_with_and_a_commit_that_was_decided_is_followed(first: Vote) -> None:
    rest = COMMITTED if first is NO else NO
    rig = Rig(participants=Participants([first, rest]))
    request = rig.commit()
    rig.run()
    assert rig.state(request) is (A if first is NO else C)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_vote_that_is_missing_is_no_yes(missing: int) -> None:
    votes: list[Vote | None] = [*[OK] * (3 - missing), *[None] * missing]
    assert verdict_of(votes, is_late=False) is None
    assert verdict_of(votes, is_late=True) is Verdict.ABORT


def test_all_read_only_needs_no_decision() -> None:
    rig = Rig(participants=Participants([READ_ONLY, READ_ONLY]))
    rig.commit()
    rig.run()
    assert "decision_written" not in rig.steps
    assert rig.steps[-1] == "log_deleted"
