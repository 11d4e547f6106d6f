"""Who counts, and which swap is next: rules as tables, their law over random histories (R3, R4, R8, histories 4, 12, 22)."""

from dataclasses import replace

import pytest
from hypothesis import settings as profile
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.ids import BrokerId, DiskId, LogIndex
from services.primary.core.membership import Guard, Membership, SwapState
from tests.unit.services.replicas import entry, member

A, B, C, D = (member(name) for name in "abcd")
B1, C1 = member("b", 1), member("c", 1)


def membership(
    in_sync: tuple[Member, ...],
    min_in_sync: int,
    durable: dict[Member, int],
    guarded: tuple[Member, ...] = (),
) -> Membership:
    """Of primary a; every guard is at 10 and can be cut."""
    found = Membership(A, entry(1, A, *[each for each in in_sync if each != A], min_in_sync=min_in_sync), 5)
    found.durable = {each: LogIndex(index) for each, index in durable.items()}
    found.guards = {each: Guard(each, LogIndex(10), LogIndex(0)) for each in guarded}
    return found


@pytest.mark.parametrize(
    ("in_sync", "min_in_sync", "durable", "guarded", "expected"),
    [
        pytest.param((A,), 1, {A: 7}, (), 7, id="alone"),
        pytest.param((A, B), 1, {A: 7, B: 5}, (), 5, id="the slowest decides"),
        pytest.param((A, B), 1, {A: 7}, (), 0, id="a member that said nothing holds nothing"),
        pytest.param((A,), 2, {A: 7}, (), 0, id="below the minimum nothing is committed"),
        pytest.param((A,), 2, {A: 7, B: 7}, (B,), 0, id="a guard does not make up the minimum"),
        pytest.param((A, B), 1, {A: 9, B: 9, C: 8}, (C,), 8, id="a guarded learner counts"),
        pytest.param((A, B), 2, {A: 9, B: 6, B1: 9}, (B1,), 6, id="an entry counts until it is replaced"),
    ],
)
def test_what_is_committed(
    in_sync: tuple[Member, ...],
    min_in_sync: int,
    durable: dict[Member, int],
    guarded: tuple[Member, ...],
    expected: int,
) -> None:
    assert membership(in_sync, min_in_sync, durable, guarded).commit_candidate() == expected


@pytest.mark.parametrize(
    ("in_sync", "min_in_sync", "lost", "durable", "guarded", "expected"),
    [
        pytest.param((A, B), 1, "", {A: 9, B: 9}, (), None, id="all is well"),
        pytest.param((A, B), 1, "b", {A: 9}, (), (A,), id="a lost member goes"),
        pytest.param((A, B), 2, "b", {A: 9}, (), None, id="but not below the minimum"),
        pytest.param((A, B, C), 2, "bc", {A: 9}, (), (A, C), id="one at a time"),
        pytest.param((A, B), 1, "a", {A: 9, B: 9}, (), None, id="never the primary itself"),
        pytest.param((A, B), 1, "", {A: 10, B: 10, C: 10}, (C,), (A, B, C), id="a ready learner comes"),
        pytest.param((A, B), 1, "", {A: 10, B: 10, C: 9}, (C,), None, id="not before its guard"),
        pytest.param((A, B), 2, "b", {A: 10, C: 10}, (C,), (A, C), id="it replaces who may not be removed"),
        pytest.param(
            (A, B), 2, "", {A: 10, B: 9, C: 10}, (C,), (A, B, C), id="nobody is replaced who is here"
        ),
        pytest.param(
            (A, B), 2, "b", {A: 10, B: 5, B1: 10}, (B1,), (A, B1), id="a new memory replaces its own"
        ),
        pytest.param(
            (A, B, C), 2, "b", {A: 10, B: 9, C: 9, D: 10}, (D,), (A, B, C, D), id="first in, then out"
        ),
        pytest.param((A,), 2, "", {A: 10, B: 10}, (B,), (A, B), id="up to the minimum again"),
        pytest.param(
            (A,), 1, "", {A: 10, B: 10, C: 10}, (B, C), (A, B, C), id="all that are ready come at once"
        ),
        pytest.param((A,), 1, "", {A: 10, B: 10, C: 9}, (B, C), (A, B), id="but nobody waits for another"),
        pytest.param(
            (A, B, C), 3, "bc", {A: 10, B1: 10, D: 10}, (B1, D), (A, B1, D), id="a place for each that comes"
        ),
        pytest.param((A, B), 2, "b", {A: 10, C: 10, D: 10}, (C, D), (A, C, D), id="nobody leaves twice"),
        pytest.param(
            (A, B, C),
            2,
            "bc",
            {A: 10, D: 10},
            (D,),
            (A, B, C, D),
            id="who can be removed later takes no part",
        ),
    ],
)
def test_the_next_swap(
    in_sync: tuple[Member, ...],
    min_in_sync: int,
    lost: str,
    durable: dict[Member, int],
    guarded: tuple[Member, ...],
    expected: tuple[Member, ...] | None,
) -> None:
    target = membership(in_sync, min_in_sync, durable, guarded).plan({BrokerId(name) for name in lost})
    assert (target.in_sync if target is not None else None) == expected


def test_whoever_leaves_becomes_a_learner_and_whoever_comes_is_none_any_more() -> None:
    found = membership((A, B), 2, {A: 10, C: 10}, (C,))
    found.set_map = entry(1, A, B, min_in_sync=2, learners=(C,))
    target = found.plan({B.broker})
    assert target is not None
    assert target.learners == (B,)


def test_a_learner_with_content_that_cannot_be_cut_waits_for_every_disk_of_the_set_to_be() -> None:
    found = membership((A, B), 1, {A: 20, B: 14, C: 20})
    found.guards = {C: Guard(C, LogIndex(10), LogIndex(15))}
    assert found.plan(set()) is None
    found.durable[B1] = LogIndex(15)
    target = found.plan(set())
    assert target is not None
    assert target.in_sync == (A, B, C)


def guarded(member: Member, index: int, uncuttable: int) -> Guard:
    return Guard(member, LogIndex(index), LogIndex(uncuttable))


def test_learners_with_content_that_cannot_be_cut_come_together_in_the_places_of_lost_disks() -> None:
    """Neither could come alone: of the other's lost disk nobody has heard."""
    b, c = (each._replace(disk=DiskId(f"new-{each.broker}")) for each in (B1, C1))
    found = membership((A, B, C), 3, {A: 20, b: 20, c: 20})
    found.guards = {b: guarded(b, 10, 15), c: guarded(c, 10, 16)}
    lost = {B.broker, C.broker}
    target = found.plan(lost)
    assert target is not None
    assert (target.in_sync, target.learners) == ((A, b, c), ())
    found.durable[b] = LogIndex(15)
    assert found.plan(lost) is None, "what cannot be cut of C's is not yet on B's"
    found.guards.pop(c)
    assert found.plan(lost) is None, "C's lost disk stays, and may have less"


def test_a_learner_with_too_much_that_cannot_be_cut_keeps_no_other_out() -> None:
    found = membership((A, B), 1, {A: 20, B: 14, C: 20, D: 20})
    found.guards = {C: guarded(C, 10, 15), D: guarded(D, 10, 14)}
    target = found.plan(set())
    assert target is not None
    assert target.in_sync == (A, B, D)


def test_members_of_a_swap_under_way_count_until_it_failed() -> None:
    found = membership((A, B), 1, {A: 9, B: 9}, ())
    found.guards = {C: Guard(C, LogIndex(0), LogIndex(0))}
    target = found.plan(set())
    assert target is not None
    found.sent(target)
    found.guards.clear()
    assert found.commit_candidate() == 0
    found.failed()
    assert found.commit_candidate() == 9


def test_a_swap_in_doubt_counts_until_a_later_one_moved_the_revision() -> None:
    """History 4: the delayed swap lands after all."""
    found = membership((A, B), 1, {A: 9, B: 9})
    found.guards = {D: Guard(D, LogIndex(0), LogIndex(0))}
    first = found.plan(set())
    assert first is not None
    found.sent(first)
    found.in_doubt()
    found.guards.clear()
    assert found.commit_candidate() == 0
    second = found.plan(set())
    assert second is not None
    assert (second.in_sync, second.change) == ((A, B), first.change + 1)
    found.sent(second)
    assert found.commit_candidate() == 0
    found.confirmed(second, 6)
    assert found.commit_candidate() == 9
    assert found.swap_state is SwapState.NONE


def test_a_swap_in_doubt_that_would_shrink_below_the_minimum_commits_nothing() -> None:
    """History 12: nothing is completed while either entry may be in force."""
    found = membership((A, B), 2, {A: 9, B: 9})
    found.sent(entry(1, A, min_in_sync=2))
    assert found.commit_candidate() == 0


def test_an_entry_is_ones_own_only_if_it_was_sent_and_not_settled() -> None:
    found = membership((A, B), 1, {A: 9})
    target = found.plan({B.broker})
    assert target is not None
    assert not found.is_own(target)
    found.sent(target)
    assert found.is_own(target)
    found.confirmed(target, 6)
    assert not found.is_own(target)


def test_a_swap_that_failed_leaves_those_in_doubt_counted() -> None:
    """History 4: its compare failed, and says nothing of one that was sent before."""
    found = membership((A, B), 1, {A: 9, B: 9})
    found.sent(replace(found.set_map, in_sync=(A, B, D), change=2))
    found.in_doubt()
    found.sent(replace(found.set_map, change=3))
    found.failed()
    assert found.swap_state is SwapState.IN_DOUBT
    assert D in found.counted()
    assert found.commit_candidate() == 0


def test_a_swap_that_failed_alone_leaves_nothing() -> None:
    found = membership((A, B), 1, {A: 9, B: 9})
    found.sent(replace(found.set_map, in_sync=(A, B, D), change=2))
    found.failed()
    assert found.swap_state is SwapState.NONE
    assert found.commit_candidate() == 9


class SwapsThatLandWhenTheyLike(RuleBasedStateMachine):
    """Law: nothing that was committed is missing on a disk of an entry that is in force, now or when a late swap lands."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = membership((A, B, C), 2, {A: 0, B: 0, C: 0})
        self.in_force, self.revision = self.membership.set_map, self.membership.revision
        self.on_their_way: list[tuple[int, SetMap]] = []
        self.committed = self.log_end = 0

    @rule(who=st.sets(st.sampled_from((A, B, C, D, B1, C1)), min_size=2))
    def append(self, who: set[Member]) -> None:
        """A record is durable at some; before it they had everything else or not, as the last one left it."""
        self.log_end += 1
        for each in who:
            self.membership.durable[each] = LogIndex(self.log_end)

    @rule(who=st.sampled_from((D, B1, C1)))
    def guard(self, who: Member) -> None:
        if who not in self.membership.set_map.in_sync:
            uncuttable = self.membership.durable.get(who, LogIndex(0))
            self.membership.guards[who] = Guard(who, LogIndex(self.log_end), uncuttable)

    @rule(who=st.sampled_from((D, B1, C1)))
    def lose_guard(self, who: Member) -> None:
        self.membership.guards.pop(who, None)

    @precondition(lambda self: self.membership.swap_state is not SwapState.SENT)
    @rule(lost=st.sets(st.sampled_from(("b", "c", "d"))))
    def swap(self, lost: set[str]) -> None:
        target = self.membership.plan({BrokerId(name) for name in lost})
        if target is not None:
            self.membership.sent(target)
            self.on_their_way.append((self.membership.revision, target))

    @precondition(lambda self: bool(self.on_their_way))
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.on_their_way) - 1))
        expected, target = self.on_their_way.pop(place)
        if expected == self.revision:
            self.in_force, self.revision = target, self.revision + 1

    @precondition(lambda self: self.membership.swap_state is SwapState.SENT)
    @rule(is_answer_lost=st.booleans())
    def answer(self, is_answer_lost: bool) -> None:
        """What the driver does: the entry is read again before anything but DONE is heard."""
        found = self.membership
        if self.in_force == found.latest_target() and not is_answer_lost:
            found.confirmed(self.in_force, self.revision)
            return
        is_on_its_way = any(target == found.latest_target() for _, target in self.on_their_way)
        if self.revision > found.revision:
            assert found.is_own(self.in_force)
            found.confirmed(self.in_force, self.revision)
        elif is_on_its_way:
            found.in_doubt()

    @rule()
    def read(self) -> None:
        if self.revision > self.membership.revision:
            assert self.membership.is_own(self.in_force)
            self.membership.confirmed(self.in_force, self.revision)

    @invariant()
    def nothing_committed_is_missing(self) -> None:
        self.committed = max(self.committed, self.membership.commit_candidate())
        landing = [target for expected, target in self.on_their_way if expected == self.revision]
        for each in (self.in_force, *landing):
            assert len(each.in_sync) >= each.min_in_sync
            assert all(self.membership.durable.get(who, 0) >= self.committed for who in each.in_sync)
            disks = {who.disk for who in each.in_sync}
            assert len(disks) == len(each.in_sync)
            assert A in each.in_sync


TestSwapsThatLandWhenTheyLike = SwapsThatLandWhenTheyLike.TestCase
TestSwapsThatLandWhenTheyLike.settings = profile(max_examples=100, stateful_step_count=30, deadline=None)


def test_whom_a_swap_that_is_not_settled_takes_in_may_be_promoted_as_well() -> None:
    found = membership((A, B), 1, {A: 9, C: 10}, (C,))
    target = found.plan({B.broker})
    assert target is not None and set(target.in_sync) == {A, B, C}
    assert set(found.in_sync_perhaps()) == {A, B}, "a guarded learner cannot"
    found.sent(target)
    found.in_doubt()
    assert set(found.in_sync_perhaps()) == {A, B, C}
    found.confirmed(target, 6)
    assert set(found.in_sync_perhaps()) == {A, B, C}
