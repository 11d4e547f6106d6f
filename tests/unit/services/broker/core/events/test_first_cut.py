"""Where groups begin: closed cuts above their floors, also over what is forgotten."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.branch_names import GlobalId
from lockstep.core.ids import Epoch, LogIndex, SetName, TimeMs
from lockstep.core.server_messages import BranchEnd
from services.broker.core.events.first_cut import BranchStands, Commits, Stands, first_cut, perhaps_halves
from services.broker.core.events.planning import JointCommit, Offset, joint_commit
from tests.unit.services.broker.core.events.planning_world import EPOCH, World, at, global_id, xid_of

ONE, TWO, THREE = SetName("set0"), SetName("set1"), SetName("set2")
WORLDS = st.builds(World, st.randoms(use_true_random=True), st.integers(2, 4))


@pytest.mark.fuzz
@given(WORLDS, st.integers(1, 60))
def test_a_group_begins_at_a_closed_cut(world: World, steps: int) -> None:
    floors: dict[SetName, Offset] = {}
    names = sorted(world.logs)
    for step in range(steps):
        world.step()
        # The sets are asked one after the other, while the world goes on.
        if step % (steps // len(names) + 1) == 0:
            floors[names[len(floors)]] = at(len(world.logs[names[len(floors)]]))
    for name in names[len(floors) :]:
        floors[name] = at(len(world.logs[name]))
    cut = first_cut(floors, world.stands(joint.name for joint in world.joints))
    if cut is None:
        world.finish()
        cut = first_cut(floors, world.stands(joint.name for joint in world.joints))
    assert cut is not None, "everything has ended"
    assert not list(world.torn(cut))
    assert all(cut[name].index >= floor.index for name, floor in floors.items())


@pytest.mark.fuzz
@given(WORLDS, st.sampled_from((2, 16, 64)))
def test_a_group_begins_in_a_quiet_moment_at_the_latest(world: World, many: int) -> None:
    floors: dict[SetName, Offset] = {}
    for name in sorted(world.logs):
        for _ in range(2 * many):
            world.work(many)
        floors[name] = at(len(world.logs[name]))
    world.make_quiet()
    quiet = {name: len(log) for name, log in world.logs.items()}
    for _ in range(many):
        world.work(many)
    cut = first_cut(floors, world.stands(joint.name for joint in world.joints))
    assert cut is not None
    assert not list(world.torn(cut))
    assert all(floors[name].index <= cut[name].index <= end for name, end in quiet.items())


def looked_at(world: World, floors: Mapping[SetName, Offset]) -> tuple[Stands, Commits]:
    """As whoever opens a group does it: at what is prepared, and at what has committed behind the floors."""
    commits: dict[GlobalId, dict[SetName, list[JointCommit]]] = {}
    for name, floor in floors.items():
        for joint in world.view(name, floor).joint_commits:
            commits.setdefault(joint.global_id, {}).setdefault(name, []).append(joint)
    prepared = [joint.name for joint in world.joints if joint.prepared]
    return world.stands([*prepared, *commits]), commits


@pytest.mark.fuzz
@given(WORLDS, st.integers(1, 60))
def test_a_group_begins_at_a_closed_cut_though_outcomes_are_forgotten(world: World, steps: int) -> None:
    """Its floors lie anywhere, as somebody gives them or as the log goes back."""
    for _ in range(steps):
        world.step()
    floors = {name: at(world.random.randint(0, len(log))) for name, log in world.logs.items()}
    world.forgotten = {name: world.random.randint(0, len(log)) for name, log in world.logs.items()}
    stands, commits = looked_at(world, floors)
    halves = {joint.name for joint in world.joints if joint.prepared and joint.committed}
    cut = first_cut(floors, stands, commits)
    if cut is None or halves & {*perhaps_halves(stands)}:
        world.finish()
        cut = first_cut(floors, *looked_at(world, floors))
    assert cut is not None, "everything has ended"
    # An operator's outcome, which is forgotten, and shows in no log, is not found.
    world.joints = [joint for joint in world.joints if len(joint.committed) == len(joint.ended)]
    assert not list(world.torn(cut))
    assert all(cut[name].index >= floor.index for name, floor in floors.items())


def test_a_first_cut_waits_for_a_transaction_that_has_ended_below_it_in_one_set_only() -> None:
    stand = {
        ONE: BranchStands(BranchEnd(index=LogIndex(4)), EPOCH),
        TWO: BranchStands(BranchEnd(True), EPOCH),
    }
    assert first_cut({ONE: at(4), TWO: at(9)}, {global_id(1): stand}) is None
    assert first_cut({ONE: at(3), TWO: at(9)}, {global_id(1): stand}) == {ONE: at(3), TWO: at(9)}


def test_a_first_cut_takes_in_the_halves_of_what_lies_below_it() -> None:
    def stands(one: int, two: int) -> dict[SetName, BranchStands]:
        return {
            ONE: BranchStands(BranchEnd(index=LogIndex(one)), EPOCH),
            TWO: BranchStands(BranchEnd(index=LogIndex(two)), Epoch(2)),
        }

    floors = {ONE: at(4), TWO: at(9)}
    assert first_cut(floors, {}) == floors
    chained = {global_id(1): stands(4, 12), global_id(2): stands(7, 11)}
    assert first_cut(floors, chained) == {ONE: at(7), TWO: Offset(LogIndex(12), Epoch(2))}
    assert first_cut(floors, {global_id(1): stands(5, 12)}) == floors


def test_a_group_begins_behind_all_branches_of_a_transaction_in_one_set_or_before_them() -> None:
    """The first of them ended at 3, the group's floor is at 4, and the second one ended at 5, or is prepared."""
    both = BranchEnd(index=LogIndex(5), is_committed=True, first_index=LogIndex(3))
    assert first_cut({ONE: at(4)}, {global_id(1): {ONE: BranchStands(both, EPOCH)}}) == {ONE: at(5)}
    half = BranchEnd(is_prepared=True, index=LogIndex(3), is_committed=True)
    assert first_cut({ONE: at(4)}, {global_id(1): {ONE: BranchStands(half, EPOCH)}}) is None
    assert first_cut({ONE: at(2)}, {global_id(1): {ONE: BranchStands(both, EPOCH)}}) == {ONE: at(2)}


def commit_at(index: int, *sets: SetName) -> JointCommit:
    found = joint_commit(xid_of(global_id(1)), LogIndex(index), EPOCH, TimeMs(index), sets)
    assert found is not None
    return found


FORGOTTEN = BranchStands(BranchEnd(forgotten_up_to=LogIndex(1_000)), Epoch(0))
ENDED = BranchStands(BranchEnd(index=LogIndex(5), is_committed=True), EPOCH)


@pytest.mark.parametrize("other", [ENDED, FORGOTTEN])
def test_a_group_begins_behind_a_half_whose_other_half_is_forgotten(other: BranchStands) -> None:
    floors, name = {ONE: at(9), TWO: at(4)}, global_id(1)
    stands = {name: {ONE: FORGOTTEN, TWO: other}}
    assert first_cut(floors, stands, {name: {TWO: [commit_at(5, ONE, TWO)]}}) == {ONE: at(9), TWO: at(5)}
    assert first_cut(floors, stands, {name: {TWO: [commit_at(5, TWO, THREE)]}}) == floors, (
        "it is not in the first"
    )
    assert first_cut(floors, stands, {name: {TWO: [commit_at(5)]}}) == floors, "it does not say where it is"
    both = {ONE: [commit_at(10, ONE, TWO)], TWO: [commit_at(5, ONE, TWO)]}
    assert first_cut(floors, stands, {name: both}) == floors, "the log shows that all of it is behind"


def test_a_group_begins_behind_one_branch_in_a_set_whose_other_one_there_is_forgotten() -> None:
    name = global_id(1)
    old = BranchStands(BranchEnd(index=LogIndex(5), is_committed=True, may_be_forgotten=True), EPOCH)
    for stand in (FORGOTTEN, old):
        assert first_cut({ONE: at(4)}, {name: {ONE: stand}}, {name: {ONE: [commit_at(5, ONE, ONE)]}}) == {
            ONE: at(5)
        }
        assert first_cut({ONE: at(4)}, {name: {ONE: stand}}, {name: {ONE: [commit_at(5, ONE)]}}) == {
            ONE: at(4)
        }


def test_what_is_prepared_and_may_be_forgotten_elsewhere_is_perhaps_a_half() -> None:
    old, prepared = (
        BranchStands(BranchEnd(may_be_forgotten=True), EPOCH),
        BranchStands(BranchEnd(True), EPOCH),
    )
    stands = {global_id(1): {ONE: old, TWO: prepared}, global_id(2): {ONE: FORGOTTEN, TWO: prepared}}
    stands[global_id(3)] = {ONE: old, TWO: ENDED}
    assert perhaps_halves(stands) == [global_id(1)]
