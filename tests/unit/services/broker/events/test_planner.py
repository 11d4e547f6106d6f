"""What one call of a reader does in all resource sets, over brokers that lag and sets that come."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SetName
from lockstep.runtime.clock import read_now
from services.broker.core.events.first_cut import first_cut
from services.broker.core.events.planning import Cutting, LogView
from services.broker.events.sources import NOTHING, offset_of
from tests.unit.services.broker.core.events.planning_world import at
from tests.unit.services.broker.events.planner_rig import ONE, THREE, TWO, Rig, ends


async def test_a_plan_takes_in_a_set_that_came_since() -> None:
    rig = Rig(3)
    rig.sources.names.there = [ONE, TWO]
    known = await rig.open()
    rig.sources.names.there = [ONE, TWO, THREE]
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


async def test_a_set_that_comes_while_a_plan_waits_is_taken_in() -> None:
    """Its half of what commits meanwhile is waited for, like that of every other set."""
    rig = Rig()
    rig.sources.names.there = [ONE]
    known = await rig.reader_with(1)
    waiting = asyncio.ensure_future(rig.plan(known, wait_ms=60_000))
    await asyncio.sleep(0.05)
    rig.sources.names.there = [ONE, TWO]
    joint = rig.prepared(ONE, TWO)
    rig.commit(joint, ONE)
    await asyncio.sleep(0.25)
    assert not waiting.done(), "it is still prepared in the set that came"
    rig.commit(joint, TWO)
    assert ends(await waiting) == {ONE: at(3), TWO: at(2)}


@pytest.mark.parametrize("is_said", [False, True])
async def test_a_set_that_comes_while_logs_are_looked_at_is_looked_at_too(is_said: bool) -> None:
    """Also where the log does not say in which sets a transaction is: those of branches that others prepare."""
    rig = Rig()
    rig.world.says_sets = is_said
    rig.sources.names.there = [ONE]
    known = await rig.open()
    original = rig.sources.log_of

    async def log_of(set_name: SetName, *more: Any) -> LogView:
        if TWO not in rig.sources.names.there:
            rig.sources.names.there = [ONE, TWO]
            rig.commit(rig.prepared(ONE, TWO), ONE)
        return await original(set_name, *more)

    rig.sources.log_of = log_of  # type: ignore[assignment, method-assign]
    planned = ends(await rig.plan(known))
    assert planned.keys() == {ONE, TWO}
    assert planned[ONE].index < 2, "half of a transaction"


async def test_a_broker_that_has_not_heard_of_a_set_does_not_plan_halves_of_what_is_in_it() -> None:
    rig = Rig()
    rig.sources.names.there = [ONE]
    known = await rig.reader_with(1)
    rig.sources.names.there, rig.sources.names.unheard = [ONE, TWO], {TWO}
    joint = rig.prepared(ONE, TWO)
    rig.commit(joint, ONE)
    response = await rig.plan(known, wait_ms=150)
    assert ends(response) == {ONE: at(1)}
    assert response.has_more
    rig.commit(joint, TWO)
    assert ends(await rig.plan(known)) == {ONE: at(1)}, "nor when it is over: the set is not in the plan"
    rig.sources.names.unheard.clear()
    assert ends(await rig.plan(known)) == {ONE: at(3), TWO: at(2)}


@pytest.mark.parametrize("is_etcd_silent", [False, True])
async def test_a_branch_that_names_a_set_which_is_not_there_holds_no_reader(is_etcd_silent: bool) -> None:
    """A client can prepare a branch of such a name by hand, with any list, and all readers would wait for it for ever. Where etcd
    does not answer, it may be a set that came since."""
    rig = Rig(3)
    rig.sources.names.there = [ONE, TWO]
    known = await rig.reader_with(1)
    joint = rig.prepared(ONE, TWO)
    joint.sets = [ONE, TWO, THREE]
    for name in (ONE, TWO):
        rig.commit(joint, name)
        rig.world.append(name, 1)
    if is_etcd_silent:
        rig.sources.names.refusal = Rejected(ErrorCode.UNAVAILABLE, "etcd is silent")
        assert ends(await rig.plan(known))[ONE].index < joint.committed[ONE]
    else:
        assert ends(await rig.plan(known)) == {ONE: at(4), TWO: at(4)}


async def test_logs_are_compared_in_another_thread_than_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many transactions they have, nobody else waits for that."""
    threads: set[int] = set()

    def seen(compare: Callable[..., Any]) -> Callable[..., Any]:
        def compared(*given: Any) -> Any:
            threads.add(threading.get_ident())
            return compare(*given)

        return compared

    monkeypatch.setattr(Cutting, "__init__", seen(Cutting.__init__))
    monkeypatch.setattr(Cutting, "questions", seen(Cutting.questions))
    monkeypatch.setattr("services.broker.events.beginnings.first_cut", seen(first_cut))
    rig = Rig()
    known = await rig.open()
    rig.world.append(ONE, 1)
    assert ends(await rig.plan(known))[ONE] == at(1)
    assert threads and threading.get_ident() not in threads
