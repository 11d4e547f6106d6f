"""Candidacies: who may ask to be promoted, with which entry (R4, R5, R7, R9, histories 22 to 24)."""

import pytest

from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation
from services.broker.core.map_rebuilding import EPOCHS_LEFT_FREE
from services.broker.core.promotion import Standing, candidacy, data_loss_candidacy
from tests.unit.services.replicas import entry, member

A, B, C = member("a"), member("b"), member("c")
A1, B1 = member("a", 1), member("b", 1)
Presences = dict[BrokerId, tuple[Incarnation, int]]


def standing(who: Member, is_memory_whole: bool = True) -> Standing:
    return Standing(who.broker, who.disk, who.incarnation, is_memory_whole)


def present(*members: Member) -> Presences:
    return {each.broker: (each.incarnation, 5) for each in members}


@pytest.mark.parametrize(
    ("set_map", "who", "is_memory_whole", "presences", "expected", "is_restarted"),
    [
        pytest.param(entry(1, A, B), B, True, (), (B,), False, id="the dead primary goes"),
        pytest.param(
            entry(1, A, B, min_in_sync=2), B, True, (), (A, B), False, id="but not below the minimum"
        ),
        pytest.param(entry(1, A, B, C), B, True, (C,), (B, C), False, id="the others stay, here or not"),
        pytest.param(entry(1, A, B, C), B, False, (C,), None, True, id="without its memory it waits for one"),
        pytest.param(entry(1, A, B, C), B1, True, (C,), None, True, id="and so with another one"),
        pytest.param(entry(1, A, B, C), B1, False, (A,), None, True, id="the primary's memory counts too"),
        pytest.param(entry(1, A, B, C), B1, False, (member("c", 1),), (B1, C), True, id="nobody kept any"),
        pytest.param(entry(1, A), A1, False, (), (A1,), True, id="a single broker restarts"),
        pytest.param(
            entry(1, A, B), A1, False, (), (A1, B), True, id="the restarted primary keeps the others"
        ),
        pytest.param(entry(1, A, B), C, True, (), None, False, id="a stranger never"),
        pytest.param(entry(1, A, B, learners=(C,)), C, True, (), None, False, id="nor a learner"),
    ],
)
def test_who_may_be_promoted(
    set_map: SetMap,
    who: Member,
    is_memory_whole: bool,
    presences: tuple[Member, ...],
    expected: tuple[Member, ...] | None,
    is_restarted: bool,
) -> None:
    found = candidacy(set_map, standing(who, is_memory_whole), present(*presences))
    if found is None or expected is None:
        assert found is None
        assert expected is None
        return
    target = found.target
    assert (target.in_sync, found.is_restarted) == (expected, is_restarted)
    assert (target.epoch, target.primary, target.primary_incarnation) == (2, who.broker, who.incarnation)
    assert target.changed_by == who.incarnation
    assert not set(target.in_sync) & set(target.learners)


def test_a_restarted_one_has_the_absence_of_every_other_memory_compared_again() -> None:
    found = candidacy(entry(1, A, B, C), standing(B1, False), present(member("c", 4)))
    assert found is not None
    assert found.presences == (("a", "", 0), ("c", "c.4", 5))


def test_one_that_kept_its_memory_compares_nobody() -> None:
    found = candidacy(entry(1, A, B, C), standing(B), present(A, C))
    assert found is not None
    assert found.presences == ()


def test_a_new_disk_of_a_member_is_a_stranger() -> None:
    """History 24."""
    new = Member(B.broker, DiskId("new"), B.incarnation)
    assert candidacy(entry(1, A, B), standing(new), {}) is None


def test_a_disk_in_another_brokers_hands_is_not_the_member() -> None:
    moved = Member(C.broker, B.disk, C.incarnation)
    assert candidacy(entry(1, A, B), standing(moved), {}) is None


def test_a_set_that_was_never_served_begins_with_whoever_asks() -> None:
    found = candidacy(entry(0, A), standing(B, False), {})
    assert found is not None
    assert (found.target.epoch, found.target.in_sync) == (1, (B,))


def test_accepted_data_loss_leaves_this_disk_alone_above_every_epoch_seen() -> None:
    found = data_loss_candidacy(entry(3, A, B, min_in_sync=2), standing(C, False), Epoch(7))
    assert (found.target.epoch, found.target.in_sync, found.is_restarted) == (
        7 + EPOCHS_LEFT_FREE,
        (C,),
        True,
    )
    assert found.target.learners == (A, B)
