"""Plans are consistent cuts, and go on (DESIGN 7; histories 15 and 28)."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.ids import Epoch, LogIndex, SetName, TimeMs
from lockstep.core.server_messages import BranchEnd
from lockstep.core.xid import Xid
from services.broker.core.events.planning import (
    SPLIT_EVENTS,
    Cut,
    Cutting,
    JointCommit,
    LogView,
    Mark,
    Offset,
    choose,
    close,
    joint_commit,
    split_points,
)
from tests.unit.services.broker.core.events.planning_world import (
    EPOCH,
    START,
    Joint,
    World,
    at,
    global_id,
    make_plan,
    xid_of,
)

ONE, TWO, THREE = SetName("set0"), SetName("set1"), SetName("set2")
WORLDS = st.builds(World, st.randoms(use_true_random=True), st.integers(2, 4))


def quiet_world(sets: int = 2) -> World:
    """One that does only what a test says, with clocks that agree."""
    world = World(Random(0), sets)
    world.skews = dict.fromkeys(world.logs, 0)
    return world


def end(world: World, joint: Joint, name: SetName, *, is_committed: bool = True) -> None:
    joint.prepared.remove(name)
    joint.ended[name] = world.append(name, 1, joint.name if is_committed else None)
    if is_committed:
        joint.committed[name] = joint.ended[name]


def prepared(world: World, *names: SetName) -> Joint:
    joint = Joint(global_id(len(world.joints) + 1), [], list(names))
    for name in names:
        world.append(name)
    world.joints.append(joint)
    return joint


def chosen_without_closing(world: World) -> Cut:
    return choose({name: world.view(name, START) for name in world.logs}, 0)


# --- any world ----------------------------------------------------------------------------------------------------------


@pytest.mark.fuzz
@given(WORLDS, st.integers(0, 60), st.sampled_from((0, 1, 3, 10)))
def test_every_plan_is_closed_and_none_goes_back(world: World, steps: int, max_events: int) -> None:
    random = world.random
    known = dict.fromkeys(world.logs, START)
    for _ in range(steps):
        world.step()
        if random.random() < 0.4:
            lags = {name: random.choice((0, 0, 2, 7)) for name in world.logs}
            cut, logs = make_plan(world, known, max_events, lags)
            assert not list(world.torn(cut.ends)), "part of a transaction lies below the cut"
            for name, offset in cut.ends.items():
                assert known[name].index <= offset.index <= logs[name].end.index
                assert logs[name].events_up_to(offset) == world.events(name, known[name], offset)
            known = cut.ends


@pytest.mark.fuzz
@given(WORLDS, st.integers(0, 60), st.sampled_from((0, 1, 3, 10)))
def test_plans_reach_the_end_once_everything_has_ended_and_is_seen(
    world: World, steps: int, max_events: int
) -> None:
    for _ in range(steps):
        world.step()
    world.finish()
    known = dict.fromkeys(world.logs, START)
    everything = sum(len(log) for log in world.logs.values())
    for _ in range(everything + 1):
        cut, _ = make_plan(world, known, max_events)
        assert not list(world.torn(cut.ends))
        known = cut.ends
    for name, log in world.logs.items():
        assert world.events(name, known[name], at(len(log))) == 0, f"{name} is never planned to its end"


@pytest.mark.fuzz
@given(WORLDS, st.integers(0, 60))
def test_outcomes_that_are_forgotten_tear_nothing_that_is_looked_at(world: World, steps: int) -> None:
    """Who reads an old log: the commits are there, and nobody remembers the branches."""
    for _ in range(steps):
        world.step()
    world.finish()
    for lag in range(max(map(len, world.logs.values()), default=0)):
        logs = {name: world.view(name, START) for name in world.logs}
        cut = choose(logs, 0)
        cut.ends[ONE] = at(max(len(world.logs[ONE]) - lag, 0))
        close(cut, logs, {})
        both = [joint for joint in world.joints if len(joint.committed) == len(joint.ended)]
        world.joints = both
        assert not list(world.torn(cut.ends))


@pytest.mark.fuzz
@given(WORLDS, st.integers(0, 60), st.sampled_from((1, 3, 10)))
def test_a_reader_that_is_far_behind_gets_closed_plans_and_reaches_the_end(
    world: World, steps: int, max_events: int
) -> None:
    """The outcomes of all that it reads are forgotten, and it looks at a little at a time."""
    for _ in range(steps):
        world.step()
    world.finish()
    known = dict.fromkeys(world.logs, START)
    world.forgotten = {name: world.random.randint(0, len(log)) for name, log in world.logs.items()}
    for _ in range(sum(len(log) for log in world.logs.values()) + 1):
        cut, _ = make_plan(world, known, max_events)
        for joint in world.joints:
            halves = {index <= cut.ends[name].index for name, index in joint.committed.items()}
            assert len(halves) < 2, f"{joint.name.hex()} is torn"
        known = cut.ends
    for name, log in world.logs.items():
        assert world.events(name, known[name], at(len(log))) == 0, f"{name} is never planned to its end"


# --- many at once -------------------------------------------------------------------------------------------------------


def moved(world: World, many: int, *, with_moments: bool) -> int:
    """Of 30 plans, those that went on in every set."""
    plans, known = 0, dict.fromkeys(world.logs, START)
    for _ in range(30):
        for _ in range(4 * many):
            world.work(many)
        quiet = {name: len(log) for name, log in world.logs.items()}
        if with_moments:
            world.make_quiet()
            quiet = {name: len(log) for name, log in world.logs.items()}
            for _ in range(many):
                world.work(many)
        cut, _ = make_plan(world, known)
        assert not list(world.torn(cut.ends))
        if with_moments:
            assert all(cut.ends[name].index >= end for name, end in quiet.items()), "not below the moment"
        plans += all(cut.ends[name].index > known[name].index for name in world.logs)
        known = cut.ends
    return plans


@pytest.mark.parametrize("many", [16, 64])
def test_plans_go_on_although_transactions_overlap_without_end(many: int) -> None:
    assert moved(World(Random(many), 3), many, with_moments=True) == 30
    assert moved(World(Random(many), 3), many, with_moments=False) < 10, (
        "by chance there is hardly a closed cut"
    )


# --- histories ----------------------------------------------------------------------------------------------------------


def test_history_15_a_half_that_is_applied_later_holds_the_other() -> None:
    world = quiet_world()
    joint = prepared(world, ONE, TWO)
    world.now_ms += 11
    end(world, joint, TWO)
    world.now_ms += 1
    world.append(ONE, 1)
    torn = chosen_without_closing(world)
    assert list(world.torn(torn.ends)) == [joint.name], "one commit time alone is not enough"
    cut, _ = make_plan(world, dict.fromkeys(world.logs, START))
    assert cut.ends == {ONE: at(2), TWO: at(1)}
    assert cut.held_since_ms == {TWO: world.now_ms - 1}
    end(world, joint, ONE)
    cut, _ = make_plan(world, cut.ends)
    assert cut.ends == {ONE: at(3), TWO: at(2)}
    assert not cut.held_since_ms


def test_history_15_as_a_lagging_replica_sees_it() -> None:
    """The half is committed; who is asked for the log does not know it yet."""
    world = quiet_world()
    joint = prepared(world, ONE, TWO)
    end(world, joint, TWO)
    end(world, joint, ONE)
    known, lags = dict.fromkeys(world.logs, START), {ONE: 1}
    torn = choose({name: world.view(name, START, lag=lags.get(name, 0)) for name in world.logs}, 0)
    assert list(world.torn(torn.ends)) == [joint.name]
    cut, _ = make_plan(world, known, lags=lags)
    assert cut.ends == {ONE: at(1), TWO: at(1)}
    cut, _ = make_plan(world, cut.ends)
    assert cut.ends == {ONE: at(2), TWO: at(2)}


def test_history_28_any_outcome_of_a_branch_lets_its_siblings_go() -> None:
    world = quiet_world()
    joint = prepared(world, ONE, TWO)
    end(world, joint, ONE)
    cut, _ = make_plan(world, dict.fromkeys(world.logs, START))
    assert cut.ends[ONE] == at(1)
    end(world, joint, TWO, is_committed=False)
    cut, _ = make_plan(world, cut.ends)
    assert cut.ends == {ONE: at(2), TWO: at(2)}


def test_history_28_a_branch_that_is_lost_holds_nobody() -> None:
    world = quiet_world()
    joint = prepared(world, ONE, TWO)
    end(world, joint, ONE)
    joint.prepared.remove(TWO)
    cut, _ = make_plan(world, dict.fromkeys(world.logs, START))
    assert cut.ends == {ONE: at(2), TWO: at(1)}


# --- what holds whom ----------------------------------------------------------------------------------------------------


def test_only_the_sets_that_a_transaction_ties_are_held() -> None:
    world = quiet_world(3)
    joint = prepared(world, ONE, TWO)
    end(world, joint, ONE)
    world.append(ONE, 1)
    world.append(THREE, 1)
    cut, _ = make_plan(world, dict.fromkeys(world.logs, START))
    assert cut.ends == {ONE: at(1), TWO: at(1), THREE: at(1)}


def test_a_branch_that_an_operator_ended_holds_its_sibling_when_its_set_is_held() -> None:
    world = quiet_world()
    other, joint = prepared(world, ONE, TWO), prepared(world, ONE, TWO)
    end(world, other, TWO)
    end(world, joint, TWO, is_committed=False)
    end(world, joint, ONE)
    cut, _ = make_plan(world, dict.fromkeys(world.logs, START))
    assert cut.ends == {ONE: at(2), TWO: at(2)}


def test_a_set_that_is_held_for_long_does_not_hold_others_by_its_times() -> None:
    """What is looked at of a held set is always the same part of its log, while time goes on in the others."""
    world = quiet_world(3)
    joint = prepared(world, ONE, TWO)
    end(world, joint, ONE)
    known = dict.fromkeys(world.logs, START)
    for _ in range(50):
        world.now_ms += 10
        world.append(ONE, 1)
        world.append(THREE, 1)
        known = make_plan(world, known, max_events=4)[0].ends
    assert known[ONE] == at(1)
    assert known[THREE].index >= 48
    end(world, joint, TWO)
    for _ in range(50):
        known = make_plan(world, known, max_events=4)[0].ends
    assert known == {ONE: at(52), TWO: at(2), THREE: at(50)}


def test_transactions_that_hold_each_other_beyond_what_is_looked_at() -> None:
    world = quiet_world()
    first, second = prepared(world, ONE, TWO), prepared(world, ONE, TWO)
    end(world, first, ONE)
    end(world, second, TWO)
    for _ in range(30):
        world.now_ms += 1
        world.append(ONE, 1)
        world.append(TWO, 1)
    end(world, first, TWO)
    end(world, second, ONE)
    known = dict.fromkeys(world.logs, START)
    for _ in range(3):
        known = make_plan(world, known, max_events=2)[0].ends
    assert known == {ONE: at(34), TWO: at(34)}


def test_a_transaction_that_is_held_too_long_is_listed_as_split() -> None:
    world = quiet_world()
    joint = prepared(world, ONE, TWO)
    world.now_ms += 100
    end(world, joint, ONE)

    def plan(now_ms: int, hold_ms_max: int) -> Cut:
        logs = {name: world.view(name, START) for name in world.logs}
        cutting = Cutting(logs, 0, now_ms, hold_ms_max)
        while asked := cutting.questions():
            cutting.learn(world.answers(asked))
        return cutting.cut

    assert plan(world.now_ms + 999, 1_000).ends[ONE] == at(1)
    assert plan(world.now_ms + 10**9, 0).ends[ONE] == at(1), "0: for ever"
    late = plan(world.now_ms + 1_000, 1_000)
    assert late.ends[ONE] == at(2)
    assert late.split == [joint.name]
    assert not late.held_since_ms


def test_only_what_is_in_doubt_is_ever_split() -> None:
    """Who reads old data with a limit sees the one half, and the other has committed long ago."""
    world = quiet_world()
    joint = prepared(world, ONE, TWO)
    end(world, joint, ONE)
    for _ in range(9):
        world.append(TWO, 1)
    end(world, joint, TWO)
    logs = {name: world.view(name, START, 3) for name in world.logs}
    cutting = Cutting(logs, 3, world.now_ms + 10**9, 1_000)
    while asked := cutting.questions():
        cutting.learn(world.answers(asked))
    assert cutting.cut.ends[ONE] == at(1)
    assert not cutting.cut.split
    assert cutting.cut.is_short


def test_a_limit_that_is_smaller_than_the_first_events_does_not_stop_a_plan() -> None:
    world = quiet_world()
    world.append(ONE)
    world.now_ms += 1
    world.append(ONE, 50)
    view = LogView(START, [Mark(at(1), TimeMs(1), 0), Mark(at(2), TimeMs(2), 50), Mark(at(3), TimeMs(3), 1)])
    assert choose({ONE: view}, 10).ends[ONE] == at(2)


def test_a_plan_names_the_reign_of_the_logs_that_were_looked_at() -> None:
    log = LogView(START, reigns=((Epoch(1), 7),)).joined(LogView(at(1), reigns=((Epoch(2), 9),)))
    assert log.named(Offset(LogIndex(5), Epoch(2))).reign == 9
    assert log.named(Offset(LogIndex(5), Epoch(1))).reign == 7
    assert log.named(Offset(LogIndex(5), Epoch(3))).reign == 0, "nobody knows"
    assert log.named(Offset(LogIndex(5), Epoch(1), 3)).reign == 3, "so the reader has said"


def test_clocks_that_stand_behind_the_log_hold_nothing() -> None:
    """A primary whose clock was far ahead has died: its times stay in the log."""
    world = quiet_world()
    world.skews[ONE] = 3_600_000
    world.append(ONE, 1)
    world.append(TWO, 1)
    cut, _ = make_plan(world, dict.fromkeys(world.logs, START))
    assert cut.ends == {ONE: at(1), TWO: at(1)}


def test_a_plan_has_about_as_many_events_as_were_asked_for() -> None:
    world = quiet_world()
    for _ in range(60):
        world.now_ms += 1
        world.append(ONE, 1)
        world.append(TWO, 1)
    cut, logs = make_plan(world, dict.fromkeys(world.logs, START), max_events=20)
    planned = sum(log.events_up_to(cut.ends[name]) for name, log in logs.items())
    assert 15 <= planned <= 25
    assert abs(cut.ends[ONE].index - cut.ends[TWO].index) <= 3, "of both logs, up to one time"


def test_events_in_front_of_a_held_commit_are_planned_and_counted() -> None:
    world = quiet_world()
    joint = prepared(world, ONE, TWO)
    world.append(ONE, 5)
    end(world, joint, ONE)
    world.append(ONE, 7)
    cut, logs = make_plan(world, dict.fromkeys(world.logs, START))
    assert cut.ends[ONE] == at(2)
    assert logs[ONE].events_up_to(cut.ends[ONE]) == 5


# --- small words --------------------------------------------------------------------------------------------------------


def test_branches_of_other_coordinators_are_no_joint_commits() -> None:
    foreign = Xid(1, b"theirs", b"1").encode()
    assert joint_commit(foreign, LogIndex(5), EPOCH, TimeMs(1)) is None
    ours = joint_commit(xid_of(global_id(3)), LogIndex(5), EPOCH, TimeMs(1))
    assert ours is not None
    assert (ours.global_id, ours.before) == (global_id(3), at(4))


def test_a_long_range_may_be_read_in_parts_of_about_equal_size() -> None:
    marks = [Mark(at(index), TimeMs(0), SPLIT_EVENTS // 4) for index in range(1, 21)]
    assert split_points(START, at(20), marks) == [at(4), at(8), at(12), at(16)]
    assert split_points(START, at(3), marks) == []
    assert split_points(at(10), at(20), marks) == [at(14), at(18)]
    assert LogView(START, marks).events_up_to(at(20)) == 5 * SPLIT_EVENTS


@pytest.mark.parametrize("hold_ms_max", [0, 10_000])
def test_a_set_that_a_transaction_names_and_nobody_looked_at_holds_it(hold_ms_max: int) -> None:
    """Whoever plans has not heard of the set yet: it may be prepared there. A reader who cannot wait is told that it is split."""
    joint = joint_commit(xid_of(global_id(1)), LogIndex(5), EPOCH, TimeMs(50), (ONE, TWO))
    assert joint is not None
    log = LogView(START, [Mark(at(6), TimeMs(60), 1)], [joint], True, 100)
    for now_ms in (50 + 9_999, 50 + 10_000):
        cutting = Cutting({ONE: log}, 0, now_ms, hold_ms_max)
        assert not cutting.questions(), "there is nobody to be asked"
        is_split = bool(hold_ms_max) and now_ms >= 50 + hold_ms_max
        assert (cutting.cut.ends[ONE], cutting.cut.split) == (
            (at(6), [global_id(1)]) if is_split else (at(4), [])
        )


@pytest.mark.parametrize("are_told", [True, False])
def test_branches_without_events_do_not_hold_two_sets_by_each_other_for_ever(are_told: bool) -> None:
    """A reader so far behind that outcomes are forgotten, millions of events from what was looked at. Each of two transactions
    has an event in one set, and none in the other: where logs do not tell of these, they may be anywhere up to there.
    """

    def joint(number: int, index: int, *, is_empty: bool) -> list[JointCommit]:
        xid = xid_of(global_id(number))
        made = joint_commit(
            xid, LogIndex(index), EPOCH, TimeMs(index), (ONE, TWO), 0 if index == 1 else 1, is_empty=is_empty
        )
        assert made is not None
        return [made] if are_told or not is_empty else []

    marks = [Mark(at(10), TimeMs(10), 2)]
    logs = {
        ONE: LogView(START, marks, [*joint(1, 1, is_empty=False), *joint(2, 2, is_empty=True)], False, 100),
        TWO: LogView(START, marks, [*joint(1, 1, is_empty=True), *joint(2, 2, is_empty=False)], False, 100),
    }
    cutting = Cutting(logs, 1_000_000)
    while asked := cutting.questions():
        assert not are_told, "nobody needs to be asked"
        forgotten = BranchEnd(forgotten_up_to=LogIndex(9_000_000))
        cutting.learn({(name, one): forgotten for name, names in asked.items() for one in names})
    held = {ONE: joint(1, 1, is_empty=False)[0].before, TWO: at(1)}
    assert cutting.cut.ends == (dict.fromkeys(logs, at(10)) if are_told else held)


def test_a_branch_without_events_holds_nothing_though_its_siblings_have_no_outcome() -> None:
    joint = joint_commit(xid_of(global_id(1)), LogIndex(5), EPOCH, TimeMs(50), (ONE, TWO), is_empty=True)
    assert joint is not None
    log = LogView(START, [Mark(at(6), TimeMs(60), 1)], [joint], True, 100)
    cutting = Cutting({ONE: log, TWO: LogView(START, now_ms=100)}, 0)
    assert not cutting.questions()
    assert cutting.cut.ends[ONE] == at(6)


# --- several branches in one set ----------------------------------------------------------------------------------------


def log_with_two_branches(committed: int, *, says_sets: bool = True) -> LogView:
    """A set in which two workers have a branch each of one transaction, prepared by 2, committed at 3 and 5."""
    view = LogView(START, marks := [], joints := [], True, 1_000_000)
    for index in range(1, committed + 1):
        if index in (3, 5):
            sets = (ONE, ONE) if says_sets else ()
            found = joint_commit(xid_of(global_id(1)), LogIndex(index), EPOCH, TimeMs(index), sets)
            assert found is not None
            joints.append(found)
        marks.append(Mark(at(index), TimeMs(index), int(index >= 3)))
    return view


@pytest.mark.parametrize("says_sets", [True, False])
@pytest.mark.parametrize("committed", [3, 4, 5])
@pytest.mark.parametrize("max_events", [0, 1, 2])
def test_a_plan_has_all_branches_of_a_transaction_in_one_set_or_none(
    committed: int, max_events: int, says_sets: bool
) -> None:
    """The second one is prepared, or has committed behind what a backup knows, or behind what a plan may take."""
    log = log_with_two_branches(committed, says_sets=says_sets)
    cutting = Cutting({ONE: log}, max_events)
    while asked := cutting.questions():
        stands = (
            BranchEnd(index=LogIndex(5), is_committed=True) if committed == 5 else BranchEnd(is_prepared=True)
        )
        cutting.learn({(name, joint): stands for name, joints in asked.items() for joint in joints})
    assert not 3 <= cutting.cut.ends[ONE].index < 5, "one half of it"


def test_branches_of_one_set_hold_each_other_when_their_outcomes_are_forgotten() -> None:
    """A reader is far behind, and what was looked at ends between them."""
    log = log_with_two_branches(4)
    log.is_end = False
    cutting = Cutting({ONE: log}, 4)
    while asked := cutting.questions():
        stands = BranchEnd(forgotten_up_to=LogIndex(9))
        cutting.learn({(name, joint): stands for name, joints in asked.items() for joint in joints})
    assert cutting.cut.ends[ONE].index < 3 and cutting.cut.is_short
