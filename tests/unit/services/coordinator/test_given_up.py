"""Participants that are not there, and that an operator gives up: a mistyped name, a database that is gone for good."""

import pytest

from lockstep.core.branch_names import ParticipantName
from lockstep.core.decision_log import Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.xa import XaStatus
from services.coordinator.core.messages import (
    GivenUpAnswer,
    GiveUpAsked,
    OutcomeAnswer,
    Refusal,
    RequestId,
    State,
    TellBranch,
)
from services.coordinator.core.votes import Completion, Verb, Vote, heuristic_status
from tests.unit.services.coordinator.rig import ID, Participants, Rig, names

GONE = names(2)[1]


def give_up(rig: Rig, participant: ParticipantName = GONE) -> object:
    request = RequestId(1_000 + len(rig.answers))
    rig.feed(GiveUpAsked(request, ID, participant))
    rig.run()
    return rig.answers[request]


def refusal(answer: object) -> ErrorCode:
    assert isinstance(answer, Refusal), answer
    return answer.code


def test_a_mistyped_participant_of_what_is_rolled_back_is_given_up_and_nothing_is_left() -> None:
    """It never answered: its vote is missing, and it would be told of the rollback for ever."""
    rig = Rig(participants=Participants([Vote.OK, Vote.UNREACHABLE]))
    rig.participants.ends[1] = Completion.UNREACHABLE
    rig.commit()
    rig.run()
    rig.pass_time(60_000)
    assert rig.log.decisions == {ID: Verdict.ABORT}
    answer = give_up(rig)
    assert isinstance(answer, GivenUpAnswer) and answer.state is State.ROLLED_BACK
    assert not rig.log.decisions and not rig.log.participants and not rig.core.transactions
    assert rig.log.outcomes[ID].heuristic is XaStatus.OK, "nothing that nobody knows was decided to happen"
    assert [note.event for note in rig.notes] == ["given_up"]


def test_a_participant_that_is_gone_with_a_commit_leaves_a_hazard_that_is_kept() -> None:
    rig = Rig()
    rig.participants.ends[1] = Completion.UNREACHABLE
    rig.commit()
    rig.run()
    rig.pass_time(60_000)
    answer = give_up(rig)
    assert isinstance(answer, GivenUpAnswer) and answer.state is State.COMMITTED
    kept = rig.log.outcomes[ID]
    assert (kept.heuristic, kept.hazards) == (XaStatus.HEURHAZ, ((GONE, "given up by an operator"),))
    assert [note.event for note in rig.notes] == ["given_up", "hazard"]
    assert not rig.core.transactions
    told = len(rig.participants.told[1])
    rig.pass_time(10_000)
    assert len(rig.participants.told[1]) == told, "it is told no more"


def test_others_are_told_on_when_one_is_given_up() -> None:
    rig = Rig(participants=Participants([Vote.OK] * 3))
    rig.participants.ends = {1: Completion.UNREACHABLE, 2: Completion.UNREACHABLE}
    request = rig.commit(3)
    rig.run()
    rig.pass_time(60_000)
    give_up(rig, names(3)[1])
    assert rig.log.decisions == {ID: Verdict.COMMIT}
    outcome = rig.answers[request]
    assert isinstance(outcome, OutcomeAnswer) and len(outcome.pending) == 2
    del rig.participants.ends[2]
    rig.pass_time(3_000)
    assert not rig.log.decisions
    assert rig.participants.told[2][-1] is Verb.COMMIT


def test_an_answer_that_comes_when_it_was_given_up_is_ignored() -> None:
    rig = Rig(participants=Participants([Vote.OK] * 3))
    rig.participants.ends = {1: Completion.UNREACHABLE, 2: Completion.UNREACHABLE}
    rig.commit(3)
    rig.run()
    held = rig.pass_time(
        60_000, lambda effect: isinstance(effect, TellBranch) and len(rig.participants.told[1]) >= 4
    )
    give_up(rig, names(3)[1])
    rig.participants.ends[1] = Completion.COMMITTED
    for effect in held:
        rig.perform(effect)
    transaction = rig.core.transactions[ID]
    assert transaction.branches.all[1].completion is Completion.GIVEN_UP


def test_only_who_is_told_an_end_and_is_silent_is_given_up() -> None:
    rig = Rig()
    assert refusal(give_up(rig)) is ErrorCode.NOT_FOUND, "this coordinator has nothing of it"
    rig.participants.ends[1] = Completion.UNREACHABLE
    rig.commit()
    held = rig.run(lambda effect: isinstance(effect, TellBranch))
    assert held and refusal(give_up(rig)) is ErrorCode.ILLEGAL_STATE, "it is not decided"
    for effect in held:
        rig.perform(effect)
    rig.run(lambda effect: isinstance(effect, TellBranch))
    assert refusal(give_up(rig)) is ErrorCode.ILLEGAL_STATE, "it is being told for the first time"


@pytest.mark.parametrize("name", ["grpc://host:1/nobody", "grpc://host:1/p0"])
def test_who_is_not_waited_for_is_not_given_up(name: str) -> None:
    rig = Rig()
    rig.participants.ends[1] = Completion.UNREACHABLE
    rig.commit()
    rig.run()
    rig.pass_time(60_000)
    assert refusal(give_up(rig, ParticipantName(name))) is ErrorCode.ILLEGAL_STATE
    assert rig.log.decisions == {ID: Verdict.COMMIT}


def test_a_resource_set_is_not_given_up() -> None:
    """Its disks come back, and it would presume an abort when the outcome is forgotten."""
    assert refusal(give_up(Rig(), ParticipantName("set:east"))) is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("decided", list(Verdict))
@pytest.mark.parametrize("other", [Completion.COMMITTED, Completion.ROLLED_BACK])
def test_who_was_given_up_or_has_forgotten_is_taken_for_one_that_knows_nothing(
    decided: Verdict, other: Completion
) -> None:
    ends = Completion.GIVEN_UP, Completion.FORGOTTEN, Completion.UNKNOWN_BRANCH
    assert len({heuristic_status(decided, [other, end]) for end in ends}) == 1
