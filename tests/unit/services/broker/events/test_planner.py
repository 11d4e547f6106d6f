"""What one call of a reader does in all resource sets, over brokers that lag and sets that come."""

import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import cast

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.requests import SubscriptionChange
from lockstep.runtime.clock import read_now
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import BranchStands, LogView, Offset
from services.broker.events.planner import Planner
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.sources import NOTHING, EventSources, offset_of, wire_offset
from tests.unit.services.broker.core.events.planning_world import Joint, World, at, global_id, xid_of

ONE, TWO, THREE = SetName("set0"), SetName("set1"), SetName("set2")


class Sources:
    """Of a world: primaries that are up to date, and backups that lag."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names = sorted(world.logs)
        self.groups: dict[SetName, dict[str, tuple[Offset, bool]]] = {name: {} for name in world.logs}
        self.left_behind: dict[SetName, set[str]] = {name: set() for name in world.logs}
        self.changes_left = 1_000_000
        """So many calls are answered, then primaries are away."""
        self.lags: dict[SetName, int] = {}
        self.before_opening: dict[SetName, Callable[[], None]] = {}

    def set_names(self) -> list[SetName]:
        return self.names

    def addresses(self, set_name: SetName) -> list[str]:
        return [f"{set_name}:1", f"{set_name}:2"]

    async def log_of(
        self, set_name: SetName, start: Offset, max_events: int, at_least: LogIndex = NOTHING.index
    ) -> LogView:
        committed = len(self.world.logs[set_name])
        lag = min(self.lags.get(set_name, 0), committed - at_least)
        return self.world.view(set_name, start, max_events, lag)

    async def change(
        self,
        set_name: SetName,
        group: str,
        change: SubscriptionChange,
        floor: Offset | None = None,
        *,
        is_earliest: bool = False,
        is_left_behind: bool = False,
    ) -> pb.ChangeSubscriptionResponse:
        if not self.changes_left:
            raise Rejected(ErrorCode.UNAVAILABLE, "away")
        self.changes_left -= 1
        groups, left_behind = self.groups[set_name], self.left_behind[set_name]
        if change is SubscriptionChange.CLOSE and is_left_behind:
            left_behind |= groups.keys() & {group}
        elif change is SubscriptionChange.CLOSE:
            groups.pop(group, None)
            left_behind.discard(group)
        elif change is not SubscriptionChange.NONE and group in left_behind:
            raise Rejected(ErrorCode.OUT_OF_RANGE, "left behind")
        elif change is SubscriptionChange.OPEN:
            self.before_opening.pop(set_name, lambda: None)()
            groups.setdefault(group, (floor or at(len(self.world.logs[set_name])), False))
        elif change is not SubscriptionChange.NONE:
            if group not in groups:
                raise Rejected(ErrorCode.NOT_FOUND, "no group")
            known, is_started = groups[group]
            if floor is not None and not (is_started and change is SubscriptionChange.START):
                known = max(known, floor, key=lambda offset: offset.index)
            groups[group] = known, True
        return pb.ChangeSubscriptionResponse(
            groups=[
                pb.ChangeSubscriptionResponse.Group(
                    group=name,
                    floor=wire_offset(set_name, known),
                    is_started=is_started,
                    is_left_behind=name in left_behind,
                )
                for name, (known, is_started) in sorted(groups.items())
            ]
        )

    async def stands(
        self, set_name: SetName, xids: Sequence[bytes]
    ) -> tuple[list[BranchStands], list[bytes], LogIndex]:
        by_xid = {xid_of(joint.name): joint.name for joint in self.world.joints}
        names = [by_xid[xid] for xid in xids]
        found = self.world.stands(names)
        prepared = [xid_of(joint.name) for joint in self.world.joints if set_name in joint.prepared]
        return [found[name][set_name] for name in names], prepared, LogIndex(len(self.world.logs[set_name]))


class Moments:
    """Quiet ones, of the coordinators of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_possible = False
        self.made_total = 0

    async def make(self) -> bool:
        if self.is_possible:
            self._world.make_quiet()
            self.made_total += 1
        return self.is_possible


class Rig:
    def __init__(self, sets: int = 2) -> None:
        self.world = World(Random(0), sets)
        self.world.skews = dict.fromkeys(self.world.logs, 0)
        self.sources = Sources(self.world)
        self.moments = Moments(self.world)
        self.planner = Planner(cast(EventSources, self.sources), cast(QuietMoments, self.moments))

    def prepared(self, *names: SetName) -> Joint:
        joint = Joint(global_id(len(self.world.joints) + 1), [], list(names))
        for name in names:
            self.world.append(name)
        self.world.joints.append(joint)
        return joint

    def commit(self, joint: Joint, name: SetName) -> None:
        joint.prepared.remove(name)
        joint.ended[name] = joint.committed[name] = self.world.append(name, 1, joint.name)

    async def open(self) -> dict[str, Offset]:
        opened = await self.planner.open(pb.OpenSubscriptionRequest(group="spark"))
        return {one.resource_set: offset_of(one) for one in opened.offsets}

    async def close(self) -> None:
        await self.planner.close(pb.CloseSubscriptionRequest(group="spark"))

    async def reader_with(self, events: int) -> dict[str, Offset]:
        """A reader that was given so many in each set, and is done with them; where it is then."""
        known = await self.open()
        for name in self.sources.names:
            for _ in range(events):
                self.world.append(name, 1)
        planned = [one.to for one in (await self.plan(known)).ranges]
        await self.planner.acknowledge(pb.AcknowledgeEventsRequest(group="spark", offsets=planned))
        return {one.resource_set: offset_of(one) for one in planned}

    async def plan(
        self, known: dict[str, Offset] | None = None, max_events: int = 0, wait_ms: int = 0
    ) -> pb.PlanResponse:
        offsets = [wire_offset(name, offset) for name, offset in (known or {}).items()]
        return await self.planner.plan(
            pb.PlanRequest(group="spark", known=offsets, max_events=max_events, wait_ms=wait_ms)
        )


def ends(response: pb.PlanResponse) -> dict[str, Offset]:
    return {one.to.resource_set: offset_of(one.to) for one in response.ranges}


async def test_a_group_begins_at_a_closed_cut_though_backups_lag() -> None:
    """A transaction commits in both sets between the opening in one and in the other, and no backup of the first knows it yet."""
    rig = Rig()
    joint = rig.prepared(ONE, TWO)

    def commits() -> None:
        rig.commit(joint, ONE)
        rig.commit(joint, TWO)

    rig.sources.before_opening[TWO] = commits
    rig.sources.lags = {ONE: 5, TWO: 5}
    begun = await rig.open()
    assert begun == {ONE: at(2), TWO: at(2)}, "not behind the first half of it"


async def test_a_group_that_begins_waits_for_what_is_being_committed() -> None:
    rig = Rig()
    joint = rig.prepared(ONE, TWO)

    def half() -> None:
        rig.commit(joint, TWO)

    rig.sources.before_opening[TWO] = half
    original = rig.sources.stands
    looks = 0

    async def stands(
        set_name: SetName, xids: Sequence[bytes]
    ) -> tuple[list[BranchStands], list[bytes], LogIndex]:
        nonlocal looks
        looks += 1
        if looks == 10:
            rig.commit(joint, ONE)
        return await original(set_name, xids)

    rig.sources.stands = stands  # type: ignore[method-assign]
    assert await rig.open() == {ONE: at(2), TWO: at(2)}


async def test_opening_again_finds_the_group_and_a_new_set_from_its_beginning() -> None:
    rig = Rig(3)
    rig.sources.names = [ONE, TWO]
    rig.world.append(ONE, 1)
    begun = await rig.open()
    rig.sources.names = [ONE, TWO, THREE]
    rig.world.append(ONE, 1)
    rig.world.append(THREE, 1)
    assert await rig.open() == {**begun, THREE: NOTHING}


async def test_a_plan_takes_in_a_set_that_came_since() -> None:
    rig = Rig(3)
    rig.sources.names = [ONE, TWO]
    known = await rig.open()
    rig.sources.names = [ONE, TWO, THREE]
    rig.world.append(THREE, 1)
    for given in (known, {}):
        response = await rig.plan(given)
        assert offset_of(response.ranges[2].start) == NOTHING
        assert response.ranges[2].events == 1
    assert rig.sources.groups[THREE]["spark"] == (NOTHING, True)


async def test_a_plan_of_a_group_that_is_not_open_is_refused() -> None:
    with pytest.raises(Rejected) as caught:
        await Rig().plan()
    assert caught.value.code is ErrorCode.NOT_FOUND


async def test_a_group_that_was_closed_does_not_begin_again_in_a_set_that_came_since() -> None:
    rig = Rig(3)
    rig.sources.names = [ONE, TWO]
    known = await rig.reader_with(3)
    await rig.close()
    rig.sources.names = [ONE, TWO, THREE]
    with pytest.raises(Rejected) as caught:
        await rig.plan(known)
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert not rig.sources.groups[THREE]


async def is_told(asked: Awaitable[object], set_name: SetName) -> None:
    with pytest.raises(Rejected) as caught:
        await asked
    assert (caught.value.code, caught.value.details) == (ErrorCode.OUT_OF_RANGE, {"set_name": set_name})
    assert "'spark' was left behind" in caught.value.message


async def test_a_reader_that_one_set_left_behind_is_told_so_until_it_begins_anew() -> None:
    """The other one's primary has changed since, and counts from its beginning."""
    rig = Rig(3)
    rig.sources.names = [ONE, TWO]
    known = await rig.reader_with(3)
    rig.sources.left_behind[TWO].add("spark")
    for _ in range(2):
        await is_told(rig.open(), TWO)
        await is_told(rig.plan(), TWO)
        await is_told(rig.plan({ONE: known[ONE]}), TWO)
    rig.sources.names = [ONE, TWO, THREE]
    await is_told(rig.plan(known), TWO)
    assert not rig.sources.groups[THREE], "nothing is begun for it"
    (listed,) = (await rig.planner.list(pb.ListSubscriptionsRequest())).subscriptions
    assert (listed.group, list(listed.left_behind)) == ("spark", [str(TWO)])
    assert {one.resource_set: offset_of(one) for one in listed.acknowledged} == known
    await rig.close()
    rig.world.append(ONE, 1)
    assert await rig.open() == {ONE: at(4), TWO: at(3), THREE: NOTHING}
    assert ends(await rig.plan()) == {ONE: at(4), TWO: at(3), THREE: NOTHING}


@pytest.mark.parametrize("answered", range(5))
async def test_a_close_that_ended_half_way_is_repeated_before_the_group_begins_anew(answered: int) -> None:
    rig = Rig()
    known = await rig.reader_with(3)
    rig.sources.changes_left = answered
    if answered < 4:
        with pytest.raises(Rejected):
            await rig.close()
    else:
        await rig.close()
    rig.sources.changes_left = 1_000_000
    if answered == 0:
        assert await rig.open() == known
    elif answered < 4:
        await is_told(rig.open(), TWO if answered == 3 else ONE)
    await rig.close()
    rig.world.append(ONE, 1)
    assert await rig.open() == {ONE: at(4), TWO: at(3)}


async def test_a_plan_waits_and_answers_what_is_known_if_nothing_came() -> None:
    rig = Rig()
    known = await rig.open()
    rig.world.append(ONE, 0)
    begun = time.monotonic()
    response = await rig.plan(known, wait_ms=250)
    assert time.monotonic() - begun >= 0.25
    assert ends(response) == known, "records that are no events are no reason for a plan"
    rig.world.append(ONE, 1)
    begun = time.monotonic()
    assert ends(await rig.plan(known, wait_ms=60_000)) == {ONE: at(2), TWO: NOTHING}
    assert time.monotonic() - begun < 30


async def test_what_is_old_is_planned_though_it_has_no_events() -> None:
    rig = Rig()
    known = await rig.open()
    rig.world.append(ONE, 0)
    rig.world.now_ms += 60_001
    assert ends(await rig.plan(known))[ONE] == at(1)


async def test_a_range_counts_what_stands_in_front_of_a_held_commit() -> None:
    rig = Rig()
    known = await rig.open()
    joint = rig.prepared(ONE, TWO)
    rig.world.append(ONE, 4)
    rig.commit(joint, ONE)
    response = await rig.plan(known)
    one = response.ranges[0]
    assert (one.to.index, one.events, one.held_since_ms) == (2, 4, rig.world.now_ms)
    assert response.has_more
    assert one.brokers == ["set0:1", "set0:2"]


async def test_transactions_that_hold_each_other_are_looked_for_further_on() -> None:
    rig = Rig()
    known = await rig.open()
    first, second = rig.prepared(ONE, TWO), rig.prepared(ONE, TWO)
    rig.commit(first, ONE)
    rig.commit(second, TWO)
    for _ in range(40):
        rig.world.now_ms += 1
        rig.world.append(ONE, 1)
        rig.world.append(TWO, 1)
    rig.commit(first, TWO)
    rig.commit(second, ONE)
    for _ in range(3):
        known = ends(await rig.plan(known, max_events=2))
        assert not list(rig.world.torn({SetName(name): offset for name, offset in known.items()}))
    assert known == {ONE: at(44), TWO: at(44)}


async def test_a_held_set_is_told_by_the_metrics() -> None:
    rig = Rig()
    known = await rig.open()
    rig.world.now_ms = time.time_ns() // 1_000_000 - 5_000
    rig.commit(rig.prepared(ONE, TWO), ONE)
    await rig.plan(known)
    assert rig.planner.held_seconds()[ONE] == pytest.approx(5.0, abs=2.0)


async def test_a_plan_that_is_held_for_long_has_a_quiet_moment_made() -> None:
    rig = Rig(3)
    known = await rig.open()
    for _ in range(300):
        rig.world.work(16)
    rig.world.now_ms = read_now().wall_ms
    stuck = ends(await rig.plan(known))
    rig.moments.is_possible = True
    rig.sources.lags = dict.fromkeys(rig.world.logs, 9)
    reached = ends(await rig.plan(known))
    assert rig.moments.made_total == 1
    assert all(reached[name].index > stuck[name].index for name in rig.world.logs)
    assert not list(rig.world.torn({SetName(name): offset for name, offset in reached.items()}))


async def test_a_short_hold_is_only_waited_for() -> None:
    rig = Rig()
    known = await rig.open()
    rig.moments.is_possible = True
    rig.world.now_ms = read_now().wall_ms
    joint = rig.prepared(ONE, TWO)
    rig.commit(joint, ONE)
    await rig.plan(known)
    assert not rig.moments.made_total


async def test_a_reader_that_catches_up_holds_nobody() -> None:
    """Its limit is what keeps it from the present."""
    rig = Rig()
    known = await rig.open()
    rig.moments.is_possible = True
    for _ in range(400):
        rig.world.work(2)
    rig.world.finish()
    for _ in range(400):
        response = await rig.plan(known, max_events=5)
        known = ends(response)
        assert not rig.moments.made_total
        if not response.has_more:
            break
    assert {name: offset.index for name, offset in known.items()} == {
        name: len(log) for name, log in rig.world.logs.items()
    }


async def test_a_group_that_begins_among_overlapping_transactions_has_a_quiet_moment_made() -> None:
    rig = Rig(3)

    def goes_on() -> None:
        for _ in range(100):
            rig.world.work(64)

    goes_on()
    rig.sources.before_opening = dict.fromkeys(rig.world.logs, goes_on)
    rig.moments.is_possible = True
    begun = await rig.open()
    assert rig.moments.made_total
    assert not list(rig.world.torn({SetName(name): offset for name, offset in begun.items()}))
