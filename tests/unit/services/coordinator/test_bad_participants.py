"""Participants that vanish, answer twice or contradict themselves, and operators that are faster than the coordinator: no wrong
outcome, and what went wrong is recorded and told.
"""

import pytest

from lockstep.core.decision_log import OutcomeEntry, Verdict
from lockstep.core.xa import XaStatus
from services.coordinator.core.messages import (
    Completed,
    DeleteTransaction,
    Effect,
    OutcomeAnswer,
    RequestId,
    State,
    TellBranch,
    Ticket,
    Voted,
)
from services.coordinator.core.votes import Completion, Verb, Vote, heuristic_status
from tests.unit.services.coordinator.rig import ID, LIMITS, Participants, Rig, names

C, A = State.COMMITTED, State.ROLLED_BACK
COMMITTED, ROLLED_BACK, UNKNOWN = Completion.COMMITTED, Completion.ROLLED_BACK, Completion.UNKNOWN_BRANCH
HEURCOM, HEURRB = Completion.HEURISTICALLY_COMMITTED, Completion.HEURISTICALLY_ROLLED_BACK
HEURMIX = Completion.HEURISTICALLY_MIXED


def answer_of(rig: Rig, request: RequestId) -> OutcomeAnswer:
    answer = rig.answers[request]
    assert isinstance(answer, OutcomeAnswer)
    return answer


def is_tell(effect: Effect, verb: Verb) -> bool:
    return isinstance(effect, TellBranch) and effect.verb is verb


# One that votes and vanishes


@pytest.mark.parametrize(("votes", "verb"), [("yes yes yes", Verb.COMMIT), ("yes yes no", Verb.ROLL_BACK)])
def test_one_that_votes_and_vanishes_is_told_again_later_and_later_and_holds_up_nobody(
    votes: str, verb: Verb
) -> None:
    rig = Rig(participants=Participants([Vote.OK if vote == "yes" else Vote.NO for vote in votes.split()]))
    rig.participants.ends[0] = Completion.UNREACHABLE
    request = rig.commit(3)
    rig.run()
    assert rig.participants.verbs() == [verb] * 3, "the others are finished"
    assert rig.participants.told[1].count(verb) == 1
    rig.pass_time(LIMITS.answer_ms)
    answer = answer_of(rig, request)
    assert (answer.state, answer.pending) == (C if verb is Verb.COMMIT else A, (names(1)[0],))
    assert answer.heuristic is XaStatus.OK

    told = rig.participants.told[0]
    before = told.count(verb)
    rig.pass_time(600_000)
    every_ms = 600_000 / (told.count(verb) - before)
    assert LIMITS.retry_ms_max <= every_ms <= LIMITS.retry_ms_max + 100, "for ever, and never in haste"
    (held,) = rig.core.transactions.values()
    assert held.branches.pending == (names(1)[0],), "listed as what is missing"
    assert ID in rig.log.participants

    del rig.participants.ends[0]
    rig.pass_time(LIMITS.retry_ms_max + 100)
    assert not rig.core.transactions and not rig.log.participants
    assert rig.log.outcomes[ID].hazards == ()


def test_one_that_vanishes_before_it_votes_is_a_no_when_the_time_is_over() -> None:
    rig = Rig(participants=Participants([Vote.OK, Vote.UNREACHABLE]))
    request = rig.commit()
    rig.run()
    rig.pass_time(LIMITS.prepare_ms)
    assert rig.state(request) is A
    assert rig.participants.verbs() == [Verb.ROLL_BACK] * 2


@pytest.mark.parametrize("is_fence", [False, True])
def test_what_a_commit_was_answered_is_the_outcome_at_once(is_fence: bool) -> None:
    """Also while the log does not have the hazards yet."""
    rig = Rig()
    rig.participants.ends[1] = ROLLED_BACK
    request = rig.commit()
    (deletion,) = rig.run(lambda effect: isinstance(effect, DeleteTransaction))
    told = answer_of(rig, request)
    assert told.heuristic is XaStatus.HEURMIX and told.hazards
    for is_written in (False, True):
        asked = rig.outcome(fence=is_fence)
        rig.run()
        outcome = answer_of(rig, asked)
        assert (outcome.state, outcome.heuristic, outcome.hazards) == (C, told.heuristic, told.hazards)
        if not is_written:
            rig.perform(deletion)


# One that answers twice, or what nobody asked


@pytest.mark.parametrize(("first", "second", "state"), [(Vote.OK, Vote.NO, C), (Vote.NO, Vote.OK, A)])
def test_of_two_votes_on_one_question_the_first_counts(first: Vote, second: Vote, state: State) -> None:
    rig = Rig()
    request = rig.commit()
    one, other = rig.run(lambda effect: is_tell(effect, Verb.PREPARE))
    assert isinstance(one, TellBranch) and isinstance(other, TellBranch)
    rig.feed(Voted(one.ticket, first))
    rig.feed(Voted(one.ticket, second))
    rig.feed(Voted(other.ticket, Vote.OK))
    rig.run()
    rig.feed(Voted(one.ticket, second))
    assert rig.state(request) is state
    assert set(rig.participants.verbs()) == {Verb.COMMIT if state is C else Verb.ROLL_BACK}


def test_of_two_acknowledgements_the_first_counts() -> None:
    rig = Rig()
    request = rig.commit()
    one, other = rig.run(lambda effect: is_tell(effect, Verb.COMMIT))
    assert isinstance(one, TellBranch) and isinstance(other, TellBranch)
    for ended in (COMMITTED, ROLLED_BACK, UNKNOWN):
        rig.feed(Completed(one.ticket, ended))
    rig.feed(Completed(other.ticket, COMMITTED))
    rig.run()
    assert answer_of(rig, request) == OutcomeAnswer(request, C)
    ended_ms = rig.log.outcomes[ID].ended_ms
    assert rig.log.outcomes[ID] == OutcomeEntry(Verdict.COMMIT, ended_ms=ended_ms, participants=names(2))


def test_an_answer_that_nobody_asked_for_is_ignored() -> None:
    rig = Rig()
    rig.feed(Voted(Ticket(77), Vote.COMMITTED))
    rig.feed(Completed(Ticket(78), ROLLED_BACK))
    assert not rig.waiting and not rig.notes and not rig.core.transactions
    rig.commit()
    (held, _) = rig.run(lambda effect: is_tell(effect, Verb.PREPARE))
    assert isinstance(held, TellBranch)
    rig.feed(Voted(Ticket(held.ticket + 1_000), Vote.NO))
    assert ID in rig.core.transactions and not rig.log.decisions


def test_a_vote_that_comes_when_it_is_decided_changes_nothing() -> None:
    """Its vote was late, the others were told to roll back: so is it."""
    rig = Rig()
    request = rig.commit()
    one, other = rig.run(lambda effect: is_tell(effect, Verb.PREPARE))
    assert isinstance(one, TellBranch) and isinstance(other, TellBranch)
    rig.feed(Voted(one.ticket, Vote.NO))
    rig.run()
    rig.feed(Voted(other.ticket, Vote.OK))
    rig.run()
    assert rig.state(request) is A
    assert rig.participants.verbs() == [Verb.ROLL_BACK] * 2


def test_one_that_says_it_has_committed_what_nobody_decided_is_reported() -> None:
    """It proves a COMMIT that others then contradict: what it did cannot be undone, so somebody has to know."""
    rig = Rig(participants=Participants([Vote.COMMITTED, Vote.OK]))
    rig.participants.ends[1] = ROLLED_BACK
    request = rig.commit()
    rig.run()
    answer = answer_of(rig, request)
    assert (answer.state, answer.heuristic) == (C, XaStatus.HEURMIX)


# Mixed outcomes


@pytest.mark.parametrize(
    ("verdict", "ends", "status"),
    [
        (Verdict.COMMIT, (COMMITTED, COMMITTED), XaStatus.OK),
        (Verdict.COMMIT, (), XaStatus.OK),
        (Verdict.COMMIT, (COMMITTED, HEURCOM), XaStatus.HEURCOM),
        (Verdict.COMMIT, (HEURRB, HEURRB), XaStatus.HEURRB),
        (Verdict.COMMIT, (COMMITTED, HEURRB), XaStatus.HEURMIX),
        (Verdict.COMMIT, (HEURCOM, HEURRB), XaStatus.HEURMIX),
        (Verdict.COMMIT, (COMMITTED, ROLLED_BACK), XaStatus.HEURMIX),
        (Verdict.COMMIT, (COMMITTED, HEURMIX), XaStatus.HEURMIX),
        (Verdict.COMMIT, (COMMITTED, UNKNOWN), XaStatus.HEURHAZ),
        (Verdict.COMMIT, (HEURRB, UNKNOWN), XaStatus.HEURHAZ),
        (Verdict.ABORT, (ROLLED_BACK, UNKNOWN), XaStatus.OK),
        (Verdict.ABORT, (ROLLED_BACK, HEURRB), XaStatus.HEURRB),
        (Verdict.ABORT, (HEURRB, UNKNOWN), XaStatus.HEURRB),
        (Verdict.ABORT, (HEURCOM, HEURCOM), XaStatus.HEURCOM),
        (Verdict.ABORT, (ROLLED_BACK, HEURCOM), XaStatus.HEURMIX),
        (Verdict.ABORT, (UNKNOWN, HEURCOM), XaStatus.HEURMIX),
        (Verdict.ABORT, (ROLLED_BACK, COMMITTED), XaStatus.HEURMIX),
        (Verdict.ABORT, (HEURMIX, HEURMIX), XaStatus.HEURMIX),
    ],
)
def test_what_the_ends_make_of_the_whole(
    verdict: Verdict, ends: tuple[Completion, ...], status: XaStatus
) -> None:
    assert heuristic_status(verdict, ends) is status
    assert heuristic_status(verdict, ends[::-1]) is status


@pytest.mark.parametrize(
    ("vote", "ended", "state"),
    [(Vote.OK, HEURRB, C), (Vote.NO, HEURCOM, A), (Vote.OK, ROLLED_BACK, C), (Vote.NO, COMMITTED, A)],
)
def test_a_mixed_outcome_is_noticed_recorded_and_answered_to_everybody(
    vote: Vote, ended: Completion, state: State
) -> None:
    """An operator, or the participant by itself, ended a branch the other way."""
    rig = Rig(participants=Participants([vote, Vote.OK]))
    rig.participants.ends[1] = ended
    first = rig.commit()
    rig.run()
    hazards = ((names(2)[1], ended.value),)
    verdict = Verdict.COMMIT if state is C else Verdict.ABORT
    ended_ms = rig.log.outcomes[ID].ended_ms
    decided_for = names(2) if state is C else ()
    assert rig.log.outcomes[ID] == OutcomeEntry(verdict, hazards, XaStatus.HEURMIX, ended_ms, decided_for)
    assert [note.event for note in rig.notes] == ["hazard"]
    again, asked = rig.commit(), rig.outcome()
    rig.run()
    for request in (first, again, asked):
        assert answer_of(rig, request) == OutcomeAnswer(request, state, hazards, (), XaStatus.HEURMIX)


def test_a_mixed_outcome_is_told_before_the_last_has_acknowledged() -> None:
    rig = Rig(participants=Participants([Vote.OK] * 3))
    rig.participants.ends = {0: HEURRB, 1: Completion.UNREACHABLE}
    request = rig.commit(3)
    rig.run()
    rig.pass_time(LIMITS.answer_ms)
    answer = answer_of(rig, request)
    assert (answer.state, answer.heuristic) == (C, XaStatus.HEURMIX)
    assert (answer.hazards, answer.pending) == (((names(1)[0], HEURRB.value),), (names(2)[1],))


@pytest.mark.parametrize(
    ("ended", "status"),
    [(HEURCOM, XaStatus.HEURCOM), (HEURRB, XaStatus.HEURRB), (HEURMIX, XaStatus.HEURMIX)],
)
def test_the_heuristic_end_of_a_single_participant_is_answered(ended: Completion, status: XaStatus) -> None:
    rig = Rig(participants=Participants([Vote.OK]))
    rig.participants.ends[0] = ended
    request = rig.commit(1)
    rig.run()
    assert answer_of(rig, request).heuristic is status


def test_an_outcome_survives_its_encoding() -> None:
    outcome = OutcomeEntry(Verdict.COMMIT, ((names(1)[0], "x"),), XaStatus.HEURMIX)
    assert OutcomeEntry.decode(outcome.encode()) == outcome
