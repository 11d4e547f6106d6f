"""Commits are held for a moment: nothing is then in some of its sets only, nothing waits for long, and nothing is lost."""

from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.core.branch_names import GlobalId, ParticipantName, new_global_id
from lockstep.core.decision_log import Verdict
from lockstep.core.errors import ErrorCode
from services.coordinator.core.messages import (
    CommitAsked,
    Completed,
    Effect,
    HeldAnswer,
    HoldAsked,
    Refusal,
    RequestDropped,
    RequestId,
    State,
    TellBranch,
    Tick,
    Voted,
)
from services.coordinator.core.votes import Completion, Verb, Vote
from tests.unit.services.coordinator.rig import ID, LIMITS, TAG, Participants, Rig

EAST, WEST, DATABASE = map(ParticipantName, ("set:east", "set:west", "grpc://host:1/db"))


def is_commit(effect: Effect) -> bool:
    return isinstance(effect, TellBranch) and effect.verb is Verb.COMMIT


class HoldRig(Rig):
    """With transactions over resource sets."""

    def begin(self, *names: ParticipantName, global_id: GlobalId = ID) -> RequestId:
        request = self._request()
        self.feed(CommitAsked(request, global_id, TAG, names or (EAST, WEST)))
        return request

    def hold(self) -> RequestId:
        request = self._request()
        self.feed(HoldAsked(request))
        return request

    def drop(self, request: RequestId) -> None:
        self.feed(RequestDropped(request))

    def is_quiet(self, request: RequestId) -> bool:
        return isinstance(self.answers.get(request), HeldAnswer)

    def is_refused(self, request: RequestId) -> bool:
        answer = self.answers.get(request)
        return isinstance(answer, Refusal) and answer.code is ErrorCode.UNAVAILABLE

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.feed(Tick())


# --- what is held -------------------------------------------------------------------------------------------------------


def test_what_is_decided_in_a_hold_is_told_when_it_is_over() -> None:
    rig = HoldRig()
    hold = rig.hold()
    assert rig.answers[hold] == HeldAnswer(hold, LIMITS.hold_ms_max)
    commit = rig.begin()
    rig.run()
    assert rig.log.view(ID).decision is Verdict.COMMIT, "votes and decisions go on"
    assert rig.participants.verbs() == [None, None]
    assert rig.state(commit) is None
    rig.drop(hold)
    rig.run()
    assert rig.participants.verbs() == [Verb.COMMIT, Verb.COMMIT]
    assert rig.state(commit) is State.COMMITTED


def test_a_hold_waits_for_commits_that_are_under_way() -> None:
    rig = HoldRig()
    rig.begin()
    one, other = rig.run(is_commit)
    hold = rig.hold()
    rig.perform(one)
    assert not rig.is_quiet(hold)
    rig.perform(other)
    assert rig.is_quiet(hold)


def test_rollbacks_are_not_held() -> None:
    rig = HoldRig(participants=Participants([Vote.OK, Vote.NO]))
    rig.hold()
    commit = rig.begin()
    rig.run()
    assert rig.state(commit) is State.ROLLED_BACK


def test_what_another_coordinator_decided_is_not_held() -> None:
    """It may be committed in one of its sets."""
    first = HoldRig("C1")
    first.begin()
    first.run(is_commit)
    second = HoldRig("C2", first.log, first.participants)
    hold = second.hold()
    assert second.is_quiet(hold)
    commit = second.begin()
    second.run()
    assert second.state(commit) is State.COMMITTED


def test_a_decision_that_is_kept_outlives_its_coordinator() -> None:
    first = HoldRig("C1")
    first.hold()
    first.begin()
    first.run()
    second = HoldRig("C2", first.log, first.participants)
    commit = second.begin()
    second.run()
    assert second.state(commit) is State.COMMITTED
    assert first.participants.verbs() == [Verb.COMMIT, Verb.COMMIT]


def test_who_is_no_resource_set_is_not_waited_for() -> None:
    rig = HoldRig(participants=Participants([Vote.OK] * 3))
    rig.begin(EAST, WEST, DATABASE)
    tells = rig.run(is_commit)
    hold = rig.hold()
    for tell in tells[:2]:
        rig.perform(tell)
    assert rig.is_quiet(hold)


def test_a_set_that_is_away_is_not_waited_for() -> None:
    rig = HoldRig()
    rig.begin()
    one, other = rig.run(is_commit)
    assert isinstance(one, TellBranch)
    rig.perform(other)
    rig.feed(Completed(one.ticket, Completion.UNREACHABLE))
    assert rig.is_quiet(rig.hold())
    (again,) = rig.pass_time(100, is_commit)
    assert is_commit(again), "and is told again, in a hold too"


# --- how long -----------------------------------------------------------------------------------------------------------


def test_a_hold_ends_by_itself() -> None:
    rig = HoldRig()
    rig.hold()
    commit = rig.begin()
    rig.run()
    rig.wait(LIMITS.hold_ms_max - 1)
    assert not any(map(is_commit, rig.waiting))
    rig.wait(1)
    rig.run()
    assert rig.state(commit) is State.COMMITTED


def test_a_hold_in_which_a_set_does_not_answer_is_refused_in_the_end() -> None:
    rig = HoldRig()
    rig.begin()
    rig.run(is_commit)
    hold = rig.hold()
    rig.wait(LIMITS.hold_ms_max)
    assert rig.is_refused(hold)
    assert rig.core.hold.total_ms == LIMITS.hold_ms_max


def test_commits_rest_from_holds_for_longer_than_they_were_held() -> None:
    rig = HoldRig()
    hold = rig.hold()
    rig.now_ms += 19
    rig.drop(hold)
    rig.now_ms += 20 * LIMITS.hold_rest - 1
    assert rig.is_refused(rig.hold())
    rig.now_ms += 1
    assert rig.is_quiet(rig.hold())
    assert (rig.core.hold.total, rig.core.hold.total_ms) == (1, 19)


def test_a_hold_is_shared_and_ends_with_the_last_who_wants_it() -> None:
    rig = HoldRig()
    first = rig.hold()
    rig.now_ms += 10
    second = rig.hold()
    assert rig.answers[second] == HeldAnswer(second, LIMITS.hold_ms_max - 10)
    commit = rig.begin()
    rig.drop(first)
    rig.run()
    assert rig.state(commit) is None
    rig.drop(second)
    rig.drop(second)
    rig.run()
    assert rig.state(commit) is State.COMMITTED


# --- many ---------------------------------------------------------------------------------------------------------------


class Busy(HoldRig):
    """Always so many transactions over two of four sets under way; any call may be answered before any other."""

    def __init__(self, random: Random, many: int) -> None:
        super().__init__(limits=LIMITS)
        self.random = random
        self.many = many
        self.sets = [ParticipantName(f"set:{number}") for number in range(4)]
        self.names: dict[GlobalId, tuple[ParticipantName, ...]] = {}
        self.committed: dict[GlobalId, set[ParticipantName]] = {}
        self.numbers = count(1)
        self.requests: list[RequestId] = []

    def step(self) -> None:
        if len(self.core.transactions) < self.many:
            global_id = new_global_id(self.now_ms, next(self.numbers).to_bytes(10, "big"))
            self.names[global_id] = tuple(self.random.sample(self.sets, 2))
            self.requests.append(self.begin(*self.names[global_id], global_id=global_id))
        elif self.waiting:
            self.waiting.rotate(self.random.randrange(len(self.waiting)))
            self.perform(self.waiting.popleft())

    def perform(self, effect: Effect) -> None:
        if not isinstance(effect, TellBranch):
            super().perform(effect)
        elif effect.verb is Verb.PREPARE:
            self.feed(Voted(effect.ticket, Vote.OK))
        else:
            self.committed.setdefault(GlobalId(effect.xid.global_id), set()).add(effect.participant)
            self.feed(Completed(effect.ticket, Completion.COMMITTED))

    def torn(self) -> list[GlobalId]:
        return [one for one, names in self.committed.items() if names != set(self.names[one])]


@pytest.mark.fuzz
@settings(max_examples=max(settings().max_examples // 4, 1))
@given(st.randoms(use_true_random=True), st.sampled_from((2, 16, 64)))
def test_in_a_quiet_moment_everything_is_committed_in_all_of_its_sets_or_in_none(
    random: Random, many: int
) -> None:
    rig = Busy(random, many)
    for _ in range(2):
        for _ in range(12 * many):
            rig.step()
        rig.now_ms += LIMITS.hold_rest * LIMITS.hold_ms_max
        hold = rig.hold()
        for _ in range(100 * many):
            if rig.is_quiet(hold):
                break
            rig.step()
        assert rig.is_quiet(hold), "what was under way has been answered"
        assert not rig.torn()
        for _ in range(2 * many):
            rig.step()
            assert not rig.torn(), "until it is let go"
        rig.drop(hold)
    rig.many = 0
    while rig.waiting:
        rig.step()
    assert not rig.core.transactions
    assert all(rig.state(request) is State.COMMITTED for request in rig.requests)
