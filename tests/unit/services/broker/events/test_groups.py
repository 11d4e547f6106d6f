"""Where groups begin, and that they begin and end in all sets, over brokers that lag and sets that come."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import permutations
from random import Random
from typing import Any

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.requests import SubscriptionChange
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.first_cut import BranchStands
from services.broker.core.events.planning import Offset
from services.broker.events.sources import NOTHING, offset_of, wire_offset
from tests.unit.services.broker.core.events.planning_world import Joint, at
from tests.unit.services.broker.events.planner_rig import ONE, THREE, TWO, Rig, ends


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


def at_the_tenth_look(rig: Rig, act: Callable[[], None]) -> None:
    """Something happens while it is asked again and again how branches stand."""
    original, looks = rig.sources.stands, 0

    async def stands(
        set_name: SetName, xids: Sequence[bytes]
    ) -> tuple[list[BranchStands], list[bytes], LogIndex]:
        nonlocal looks
        looks += 1
        if looks == 10:
            act()
        return await original(set_name, xids)

    rig.sources.stands = stands  # type: ignore[method-assign]


async def test_a_group_that_begins_waits_for_what_is_being_committed() -> None:
    rig = Rig()
    joint = rig.prepared(ONE, TWO)

    def half() -> None:
        rig.commit(joint, TWO)

    rig.sources.before_opening[TWO] = half
    at_the_tenth_look(rig, lambda: rig.commit(joint, ONE))
    assert await rig.open() == {ONE: at(2), TWO: at(2)}


async def test_opening_again_finds_the_group_and_a_new_set_from_its_beginning() -> None:
    rig = Rig(3)
    rig.sources.names.there = [ONE, TWO]
    rig.world.append(ONE, 1)
    begun = await rig.open()
    rig.sources.names.there = [ONE, TWO, THREE]
    rig.world.append(ONE, 1)
    rig.world.append(THREE, 1)
    assert await rig.open() == {**begun, THREE: NOTHING}


async def test_a_group_that_was_closed_does_not_begin_again_in_a_set_that_came_since() -> None:
    rig = Rig(3)
    rig.sources.names.there = [ONE, TWO]
    known = await rig.reader_with(3)
    await rig.close()
    rig.sources.names.there = [ONE, TWO, THREE]
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
    rig.sources.names.there = [ONE, TWO]
    known = await rig.reader_with(3)
    rig.sources.left_behind[TWO].add("spark")
    for _ in range(2):
        await is_told(rig.open(), TWO)
        await is_told(rig.plan(), TWO)
        await is_told(rig.plan({ONE: known[ONE]}), TWO)
    rig.sources.names.there = [ONE, TWO, THREE]
    await is_told(rig.plan(known), TWO)
    assert not rig.sources.groups[THREE], "nothing is begun for it"
    (listed,) = (await rig.groups.list(pb.ListSubscriptionsRequest())).subscriptions
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


async def test_a_group_begins_behind_nothing_that_was_not_looked_at() -> None:
    """What it waits for ends while it is asked for, behind the half of another transaction that began and ended meanwhile."""
    rig = Rig()
    first = rig.prepared(ONE, TWO)
    rig.commit(first, ONE)
    original = rig.sources.stands
    second = None

    async def stands(
        set_name: SetName, xids: Sequence[bytes]
    ) -> tuple[list[BranchStands], list[bytes], LogIndex]:
        nonlocal second
        if xids and second is None:
            second = rig.prepared(ONE, TWO)
            rig.commit(second, TWO)
            rig.commit(first, TWO)
            rig.commit(second, ONE)
        return await original(set_name, xids)

    rig.sources.stands = stands  # type: ignore[method-assign]
    begun = await rig.open()
    assert not list(rig.world.torn({SetName(name): offset for name, offset in begun.items()}))


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


async def test_a_group_begins_in_a_set_that_came_while_it_was_opened() -> None:
    """What commits in it meanwhile has its other half before the group in the set that was opened first."""
    rig = Rig()
    rig.sources.names.there = [ONE]

    def comes() -> None:
        rig.sources.names.there = [ONE, TWO]
        joint = rig.prepared(ONE, TWO)
        rig.commit(joint, ONE)
        rig.commit(joint, TWO)

    rig.sources.before_opening[ONE] = comes
    begun = await rig.open()
    assert begun == {ONE: at(2), TWO: at(2)}
    assert ends(await rig.plan(begun)) == begun, "nothing of it is told"


async def test_a_group_begins_in_a_set_that_came_while_its_first_cut_was_looked_for() -> None:
    """Where it began would be told the one half of a transaction, which has its other half in the new set, whole."""
    rig = Rig(3)
    rig.sources.names.there = [ONE, TWO]
    first = rig.prepared(ONE, TWO)

    def half() -> None:
        rig.commit(first, TWO)

    def others() -> None:
        rig.sources.names.there = [ONE, TWO, THREE]
        second = rig.prepared(ONE, THREE)
        for name in (ONE, THREE):
            rig.commit(second, name)
        rig.commit(first, ONE)

    rig.sources.before_opening[TWO] = half
    at_the_tenth_look(rig, others)
    begun = await rig.open()
    assert begun == {ONE: at(4), TWO: at(2), THREE: at(2)}, "behind the other half of the second"


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_set_that_this_broker_has_not_heard_of_is_passed_by_in_no_group(is_closed: bool) -> None:
    rig = Rig()
    if is_closed:
        await rig.open()
    rig.sources.names.unheard = {TWO}
    if is_closed:
        await rig.close()
        assert not rig.sources.groups[TWO], (
            "it would be taken for a group that has begun, and be told from the beginning"
        )
    else:
        rig.world.append(TWO, 1)
        assert await rig.open() == {ONE: NOTHING, TWO: at(1)}


async def test_a_group_does_not_begin_where_nobody_knows_which_sets_there_are() -> None:
    rig = Rig()
    rig.sources.names.refusal = Rejected(ErrorCode.UNAVAILABLE, "etcd is silent")
    for asked in (rig.open, rig.close):
        with pytest.raises(Rejected) as caught:
            await asked()
        assert caught.value.code is ErrorCode.UNAVAILABLE
    assert not any(rig.sources.groups.values())


async def test_a_set_that_comes_while_a_group_is_closed_keeps_nothing_of_it() -> None:
    rig = Rig()
    rig.sources.names.there = [ONE]
    known = await rig.reader_with(1)
    original = rig.sources.change

    async def change(
        set_name: SetName, group: str, what: SubscriptionChange, **more: Any
    ) -> pb.ChangeSubscriptionResponse:
        response = await original(set_name, group, what, **more)
        if TWO not in rig.sources.names.there:
            rig.sources.names.there = [ONE, TWO]
            rig.sources.groups[TWO]["spark"] = (NOTHING, True)  # by another broker, whose plan was under way
        return response

    rig.sources.change = change  # type: ignore[method-assign, assignment]
    await rig.close()
    assert known and not any(rig.sources.groups.values())


async def test_a_set_that_comes_while_two_open_a_group_has_it_from_where_that_is_closed() -> None:
    """The first of two callers (a call whose answer took long, and was repeated) has begun the group; then a set comes, and a
    transaction commits in it and in an old one; the second caller takes the new set in."""
    rig = Rig(3)
    rig.sources.names.there = [ONE, TWO]
    first = rig.prepared(ONE, TWO)
    rig.sources.before_opening[TWO] = lambda: rig.commit(first, TWO)
    slow = asyncio.ensure_future(rig.open())
    await asyncio.sleep(0.02)  # It waits for the other half of that.
    rig.commit(first, ONE)
    await rig.open()
    rig.sources.names.there = [ONE, TWO, THREE]
    second = rig.prepared(ONE, THREE)
    for name in (ONE, THREE):
        rig.commit(second, name)
    again = await slow
    planned = ends(await rig.plan(again))
    told_of = {
        name: again[name].index < second.committed[name] <= planned[name].index for name in (ONE, THREE)
    }
    assert told_of == {ONE: True, THREE: True}, f"the second transaction, by half: {again}, {planned}"


@pytest.mark.parametrize("turns", sorted(set(permutations("xxyyy"))), ids="".join)
async def test_two_open_a_group_and_one_of_them_knows_a_set_that_came_meanwhile(
    turns: tuple[str, ...],
) -> None:
    """X has looked for a cut when the third set comes, and a transaction commits there and in each of the others. Y opens the
    group in all three, and both have it begin, in any order: `turns` says whose call comes next.
    """
    rig = Rig(3)
    rig.sources.names.there = [ONE, TWO]
    waiting, original = list(turns), rig.sources.change
    x_has_looked, y_has_looked = asyncio.Event(), asyncio.Event()

    async def change(
        set_name: SetName, group: str, what: SubscriptionChange, *more: Any, **others: Any
    ) -> pb.ChangeSubscriptionResponse:
        task = asyncio.current_task()
        assert task is not None
        me = task.get_name()
        if what is SubscriptionChange.START and me in waiting:
            (x_has_looked if me == "x" else y_has_looked).set()
            await y_has_looked.wait()
            while me in waiting and waiting[0] != me:
                await asyncio.sleep(0)
            if me in waiting:
                waiting.remove(me)
        return await original(set_name, group, what, *more, **others)

    async def opens(name: str) -> dict[str, Offset]:
        try:
            return await rig.open()
        finally:
            waiting[:] = [turn for turn in waiting if turn != name]

    rig.sources.change = change  # type: ignore[method-assign, assignment]
    x = asyncio.create_task(opens("x"), name="x")
    await x_has_looked.wait()
    rig.sources.names.there = [ONE, TWO, THREE]
    for pair in ((ONE, THREE), (TWO, THREE)):
        joint = rig.prepared(*pair)
        for name in pair:
            rig.commit(joint, name)
    y = asyncio.create_task(opens("y"), name="y")
    for asked in (x, y):
        begun = await asked
        await rig.plan(begun)
    stands = {name: rig.sources.groups[name]["spark"][0] for name in (ONE, TWO, THREE)}
    assert not list(rig.world.torn(stands)), stands
    assert {name: stands[SetName(name)] for name in begun} == begun, "both were told the same"


async def test_openers_in_any_order_begin_a_group_whole() -> None:
    """Three callers at once, in a world that goes on and whose sets come one by one."""
    for seed in range(300):
        random = Random(seed)
        rig = Rig(4)
        names = sorted(rig.world.logs)
        rig.sources.names.there = names[:2]
        original = rig.sources.change

        def goes_on(rig: Rig = rig, random: Random = random, names: list[SetName] = names) -> None:
            there = rig.sources.names.there
            if len(there) < len(names) and random.random() < 0.05:
                rig.sources.names.there = there = names[: len(there) + 1]
            if random.random() < 0.5:
                joint = rig.prepared(*random.sample(there, 2))
                for name in list(joint.prepared):
                    rig.commit(joint, name)

        async def change(
            *args: Any,
            original: Any = original,
            random: Random = random,
            goes_on: Callable[[], None] = goes_on,
            **more: Any,
        ) -> pb.ChangeSubscriptionResponse:
            for _ in range(random.randrange(4)):
                goes_on()
                await asyncio.sleep(0)
            return await original(*args, **more)  # type: ignore[no-any-return]

        rig.sources.change = change  # type: ignore[method-assign]
        for begun in await asyncio.gather(*(rig.open() for _ in range(3))):
            await rig.plan(begun)
        stands = {name: rig.sources.groups[name]["spark"][0] for name in rig.sources.names.there}
        assert not list(rig.world.torn(stands)), (seed, stands)


@pytest.mark.parametrize("answered", range(10))
async def test_a_group_whose_opening_ended_half_way_begins_where_it_was_decided(answered: int) -> None:
    """A set comes and transactions commit in it, before the next caller opens the group."""
    rig = Rig(3)
    rig.sources.names.there = [ONE, TWO]
    early = rig.prepared(ONE, TWO)

    def commits() -> None:
        rig.commit(early, ONE)
        rig.commit(early, TWO)

    rig.sources.before_opening[TWO] = commits
    rig.sources.changes_left = answered
    begun: dict[str, Offset] | None = None
    if answered < 8:
        with pytest.raises(Rejected):
            await rig.open()
    else:
        begun = await rig.open()
    rig.sources.changes_left = 1_000_000
    rig.sources.names.there = [ONE, TWO, THREE]
    for pair in ((ONE, THREE), (TWO, THREE)):
        joint = rig.prepared(*pair)
        for name in pair:
            rig.commit(joint, name)
    again = await rig.open()
    assert not list(rig.world.torn({SetName(name): offset for name, offset in again.items()}))
    assert begun is None or again == {**begun, THREE: NOTHING}


async def test_a_primary_of_an_older_version_keeps_no_decision_and_a_group_begins_all_the_same() -> None:
    rig = Rig()
    rig.sources.knows_begins = False
    joint = rig.prepared(ONE, TWO)
    rig.commit(joint, ONE)
    rig.commit(joint, TWO)
    begun = await rig.open()
    assert begun == {ONE: at(2), TWO: at(2)} == await rig.open()


@pytest.mark.parametrize("is_opened", [False, True])
async def test_a_group_that_is_closed_meanwhile_begins_in_no_set_that_came_since(is_opened: bool) -> None:
    """Whoever plans, or opens it again, has seen it in the other sets; it is closed before he begins it in the new one."""
    rig = Rig(3)
    rig.sources.names.there = [ONE, TWO]
    known = await rig.reader_with(3)
    rig.sources.names.there = [ONE, TWO, THREE]
    original = rig.sources.change
    is_closed = False

    async def change(
        set_name: SetName, group: str, what: SubscriptionChange, *floor: Any, **more: Any
    ) -> pb.ChangeSubscriptionResponse:
        nonlocal is_closed
        if what is SubscriptionChange.OPEN and not is_closed:
            is_closed = True
            await rig.close()
        return await original(set_name, group, what, *floor, **more)

    rig.sources.change = change  # type: ignore[method-assign, assignment]
    with contextlib.suppress(Rejected):
        await (rig.open() if is_opened else rig.plan(known))
    assert all(not is_started for groups in rig.sources.groups.values() for _, is_started in groups.values())
    rig.world.append(ONE, 1)
    begun = {ONE: at(3 if is_opened else 4), TWO: at(3), THREE: NOTHING}
    assert await rig.open() == begun, "a new one, from when it was opened"


def told_of(rig: Rig, joint: Joint, begun: dict[str, Offset]) -> set[bool]:
    """Whether a group that began there is told of each half of a transaction."""
    return {begun[name].index < index for name, index in joint.committed.items()}


async def test_a_group_that_begins_waits_for_what_has_ended_so_long_ago_that_it_is_forgotten() -> None:
    """One set was away while others committed their half of a transaction, and forgot how that ended: it was long, or they ended
    very many since."""
    rig = Rig()
    joint = rig.prepared(ONE, TWO)
    rig.commit(joint, ONE)
    rig.world.forgotten[ONE] = len(rig.world.logs[ONE])
    asyncio.get_running_loop().call_later(0.3, rig.commit, joint, TWO)
    begun = await rig.open()
    await asyncio.sleep(0.4)
    assert told_of(rig, joint, begun) == {False}
    planned = ends(await rig.plan(begun))
    assert all(index <= planned[name].index for name, index in joint.committed.items())


async def test_a_group_begins_behind_a_half_whose_other_half_is_forgotten() -> None:
    rig = Rig()
    joint = rig.prepared(ONE, TWO)
    rig.commit(joint, ONE)
    original = rig.sources.stands

    async def stands(
        set_name: SetName, xids: Sequence[bytes]
    ) -> tuple[list[BranchStands], list[bytes], LogIndex]:
        if joint.prepared:
            rig.commit(joint, TWO)
            rig.world.forgotten = {name: len(log) for name, log in rig.world.logs.items()}
        return await original(set_name, xids)

    rig.sources.stands = stands  # type: ignore[method-assign]
    begun = await rig.open()
    assert begun == {ONE: at(2), TWO: at(2)}
    assert not rig.decisions.asked_total, "nothing is prepared"


async def test_a_group_that_begins_does_not_wait_for_what_is_undecided_however_old_it_is() -> None:
    """A worker has not come back, and his coordinator has not given up yet."""
    rig = Rig()
    old, young = rig.prepared(TWO), rig.prepared(ONE, TWO)
    for name in (ONE, TWO):
        rig.commit(young, name)
    rig.world.forgotten[ONE] = len(rig.world.logs[ONE])
    assert await rig.open() == {ONE: at(2), TWO: at(3)}
    assert rig.decisions.asked_total == 1
    assert old.prepared == [TWO]


async def test_a_group_does_not_begin_where_nobody_knows_whether_a_half_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.broker.events.beginnings.FIRST_CUT_SECONDS", 0.3)
    rig = Rig()
    joint = rig.prepared(ONE, TWO)
    rig.commit(joint, ONE)
    rig.world.forgotten[ONE] = len(rig.world.logs[ONE])
    rig.decisions.is_silent = True
    with pytest.raises(Rejected, match="so long ago that they do not know it any more") as caught:
        await rig.open()
    assert caught.value.code is ErrorCode.UNAVAILABLE
    rig.commit(joint, TWO)
    assert told_of(rig, joint, await rig.open()) == {False}


@pytest.mark.parametrize(
    ("start", "begun"),
    [
        (pb.OpenSubscriptionRequest.START_OFFSETS, {ONE: at(1), TWO: at(2)}),
        (pb.OpenSubscriptionRequest.START_EARLIEST, {ONE: at(3), TWO: at(2)}),
        (pb.OpenSubscriptionRequest.START_LATEST, {ONE: at(3), TWO: at(2)}),
    ],
)
async def test_a_group_begins_at_the_offsets_that_it_is_given_if_it_is_to_begin_at_offsets(
    start: pb.OpenSubscriptionRequest.Start.ValueType, begun: dict[str, Offset]
) -> None:
    """In a set of which none is given, and else, where the set says."""
    rig = Rig()
    for name, many in ((ONE, 3), (TWO, 2)):
        for _ in range(many):
            rig.world.append(name, 1)
    given = [wire_offset(ONE, at(1))]
    request = pb.OpenSubscriptionRequest(group="spark", start=start, offsets=given)
    opened = await rig.groups.open(request)
    assert {one.resource_set: offset_of(one) for one in opened.offsets} == begun
    assert rig.sources.earliest == dict.fromkeys((ONE, TWO), start != pb.OpenSubscriptionRequest.START_LATEST)
