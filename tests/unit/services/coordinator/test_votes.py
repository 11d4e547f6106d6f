"""Votes: every combination of two participants, and what comes of it."""

import itertools

import pytest

from lockstep.core.decision_log import Verdict
from lockstep.core.xa import XaStatus
from services.coordinator.core.messages import Decide, OutcomeAnswer, State, TellBranch
from services.coordinator.core.votes import Completion, Verb, Vote, verdict_of
from tests.unit.services.coordinator.rig import ID, LIMITS, Participants, Rig, names

OK, READ_ONLY, NO = Vote.OK, Vote.READ_ONLY, Vote.NO
COMMITTED, UNKNOWN, UNREACHABLE = Vote.COMMITTED, Vote.UNKNOWN_BRANCH, Vote.UNREACHABLE
C, A = State.COMMITTED, State.ROLLED_BACK

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
    (NO, COMMITTED): A,
    (NO, UNKNOWN): A,
    (NO, UNREACHABLE): A,
    (COMMITTED, COMMITTED): C,
    (COMMITTED, UNKNOWN): A,
    (COMMITTED, UNREACHABLE): A,
    (UNKNOWN, UNKNOWN): A,
    (UNKNOWN, UNREACHABLE): A,
    (UNREACHABLE, UNREACHABLE): A,
}
"""With nothing decided in the log: what a decision made of it is that decision's."""


def test_every_combination_is_listed() -> None:
    pairs = {frozenset(pair) for pair in itertools.combinations_with_replacement(Vote, 2)}
    assert {frozenset(pair) for pair in OUTCOMES} == pairs and len(OUTCOMES) == len(pairs)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        pytest.param(ordered, state, id="-".join(vote.name for vote in ordered))
        for pair, state in OUTCOMES.items()
        for ordered in sorted({pair, pair[::-1]}, key=str)
    ],
)
def test_two_votes_make_the_outcome(votes: tuple[Vote, Vote], expected: State) -> None:
    rig = Rig(participants=Participants(votes))
    request = rig.commit()
    rig.run()
    if UNREACHABLE in votes and NO not in votes:
        assert rig.state(request) is None, "who has not voted is waited for"
        rig.pass_time(LIMITS.prepare_ms)
    assert rig.state(request) is expected
    ends = {C: Verb.COMMIT, A: Verb.ROLL_BACK}
    for vote, verb in zip(votes, rig.participants.verbs(), strict=True):
        # Behind a vote that decides alone, the second one is not heard any more.
        is_finished = vote is READ_ONLY and votes[0] is not NO
        assert verb is (None if is_finished else ends[expected])
    assert not rig.log.participants and not rig.log.decisions
    assert not rig.core.transactions


@pytest.mark.parametrize("rest", [OK, NO, UNKNOWN, UNREACHABLE])
def test_one_that_has_committed_waits_for_the_others_and_the_mixture_is_reported(rest: Vote) -> None:
    """An operator committed it and had it forgotten; no decision can explain it, so that it decides nothing."""
    assert verdict_of([COMMITTED, None], is_late=False) is None
    rig = Rig(participants=Participants([COMMITTED, rest]))
    rig.participants.ends[0] = Completion.COMMITTED
    request = rig.commit()
    rig.run()
    rig.pass_time(LIMITS.prepare_ms)
    answer = rig.answers[request]
    assert isinstance(answer, OutcomeAnswer)
    if rest is OK:
        assert (answer.state, answer.hazards) == (C, ()) and not rig.notes
    else:
        assert (answer.state, answer.heuristic) == (A, XaStatus.HEURMIX)
        assert answer.hazards == rig.log.outcomes[ID].hazards == ((names(1)[0], "committed"),)
        assert [note.event for note in rig.notes] == ["hazard"]


def test_a_decision_that_explains_who_has_committed_is_followed() -> None:
    """Another coordinator decides and completes while this one, under the same list, collects votes."""
    first = Rig("C1")
    request = first.commit()
    (decide,) = first.run(lambda effect: isinstance(effect, Decide))
    second = Rig("C2", first.log, Participants([COMMITTED, UNKNOWN]))
    other = second.commit()
    held = second.run(lambda effect: isinstance(effect, TellBranch))
    first.perform(decide)
    second.waiting.extend(held)
    second.run()
    first.run()
    assert first.state(request) is second.state(other) is C
    assert second.participants.verbs() == [Verb.COMMIT, Verb.COMMIT]


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


def test_what_a_restart_has_undone_everywhere_is_known_to_be_rolled_back() -> None:
    """P6: nobody knows a branch any more, and whoever asks later hears the same as whoever committed."""
    rig = Rig(participants=Participants([UNKNOWN, UNKNOWN]))
    rig.participants.ends = dict.fromkeys((0, 1), Completion.UNKNOWN_BRANCH)
    request = rig.commit()
    rig.run()
    asked = rig.outcome(fence=True)
    rig.run()
    assert rig.state(request) is rig.state(asked) is A
    assert rig.log.outcomes[ID].hazards == () and not rig.notes


@pytest.mark.parametrize("vote", [OK, READ_ONLY])
@pytest.mark.parametrize("is_outcome_left", [True, False])
def test_what_another_has_committed_and_everybody_forgotten_is_not_rolled_back(
    vote: Vote, is_outcome_left: bool
) -> None:
    first = Rig("C1", participants=Participants([vote, vote]))
    request = first.commit()
    held = first.run(lambda effect: isinstance(effect, TellBranch))
    second = Rig("C2", first.log, Participants([UNKNOWN, UNKNOWN]))
    other = second.commit()
    (decide,) = second.run(lambda effect: isinstance(effect, Decide))
    first.waiting.extend(held)
    first.run()
    if not is_outcome_left:
        first.log.outcomes.clear()
    second.perform(decide)
    second.run()
    assert first.state(request) is C
    assert second.state(other) is (C if is_outcome_left else State.NOT_KNOWN)
    assert second.participants.verbs() == [None, None]
