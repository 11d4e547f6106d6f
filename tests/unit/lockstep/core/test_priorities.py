"""Priorities of a queue against a sorted list, and what follows from contents through restarts and joins; and their costs."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.content import DroppedMessage, without_body
from lockstep.core.ids import LogIndex, QueuePosition, place
from lockstep.core.invariants import check_invariants
from lockstep.core.item_values import decode_content, encode_content, is_bodiless
from lockstep.core.priorities import Priorities, SortedPositions
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.queues import Queue
from lockstep.core.records import Dequeue, Message, Move, Prepare
from lockstep.core.set_state import SetState
from tests.counted_work import CountedOpcodes
from tests.unit.lockstep.core.history import SET, Log, message


@pytest.mark.fuzz
@given(st.data())
def test_sorted_positions_are_a_sorted_list(data: st.DataObject) -> None:
    found, model = SortedPositions(), list[int]()
    for _ in range(data.draw(st.integers(0, 12))):
        if data.draw(st.booleans()) or not model:
            begin = data.draw(st.integers(0, 5000))
            fresh = sorted(set(range(begin, begin + data.draw(st.integers(1, 1500)))) - set(model))
            if data.draw(st.booleans()):
                fresh.reverse()
            for position in fresh:
                found.add(QueuePosition(position))
            model = sorted([*model, *fresh])
        else:
            at = data.draw(st.integers(0, len(model) - 1))
            gone = model[at : at + data.draw(st.integers(1, 1500))]
            for position in gone:
                found.remove(QueuePosition(position))
            del model[at : at + len(gone)]
        start, limit = data.draw(st.integers(0, 7000)), data.draw(st.integers(1, 2000))
        at = bisect_left(model, start)
        assert list(found) == model and bool(found) == bool(model)
        assert found.from_(start, limit) == model[at : at + limit]


@pytest.mark.fuzz
@given(st.data())
def test_priorities_are_a_dict_in_the_order_of_delivery(data: st.DataObject) -> None:
    found, model, index = Priorities(), dict[QueuePosition, int](), 0
    for _ in range(data.draw(st.integers(0, 12))):
        if data.draw(st.booleans()) or not model:
            index += data.draw(st.integers(1, 100))
            positions = [QueuePosition(place(index, each)) for each in range(data.draw(st.integers(1, 9)))]
            levels = [data.draw(st.sampled_from((0, 4, 4, 5, 9))) for _ in positions]
            found.add(positions, levels)
            given_levels = zip(positions, levels, strict=True)
            model |= {position: level for position, level in given_levels if level != PRIORITY_DEFAULT}
        else:
            gone = data.draw(st.lists(st.sampled_from(sorted(model)), unique=True))
            found.remove([*gone, QueuePosition(place(index + 7, 0))])
            model = {position: level for position, level in model.items() if position not in gone}
        assert dict(found.items()) == model and bool(found) == bool(model)
        assert found.levels() == sorted({*model.values(), PRIORITY_DEFAULT}, reverse=True)
        for level in (0, 5, 9):
            of_level = sorted(position for position, its in model.items() if its == level)
            assert found.of_level(level, 0, 100) == of_level
            assert all(found.level(position) == level for position in of_level)
        urgent = sorted((-level, position) for position, level in model.items() if level > PRIORITY_DEFAULT)
        assert found.above_default(3) == [position for _, position in urgent][:3]


def test_what_one_costs_does_not_grow_with_how_many_there_are() -> None:
    costs = []
    for many in (2_000, 64_000):
        priorities = Priorities()
        positions = [QueuePosition(place(index, 0)) for index in range(1, many + 1)]
        priorities.add(positions, [9] * many)
        middle, behind = positions[many // 2], QueuePosition(place(many + 1, 0))
        with CountedOpcodes() as opcodes:
            priorities.remove([middle])
            priorities.add([behind], [9])
            assert priorities.level(behind) == 9 and priorities.of_level(9, middle, 10)
        costs.append(opcodes.total)
    assert costs[1] <= costs[0] + 100, f"bytecodes: {costs}"


def _priorities(queue: Queue) -> dict[QueuePosition, int]:
    return dict(queue.priorities.items()) if queue.priorities is not None else {}


@pytest.mark.parametrize("with_bodies", [True, False])
@pytest.mark.parametrize("in_blocks", [True, False])
def test_a_snapshot_has_them_with_its_contents(with_bodies: bool, in_blocks: bool) -> None:
    log = Log()
    queue, fleeting = log.queue("q"), log.queue("fleeting", is_durable=False)
    log.publish(*[message((queue,), b"%d" % number, priority=number % 10) for number in range(40)])
    log.publish(*[message((queue,), b"same", priority=9) for _ in range(20)])
    log.publish(*[message((queue,), b"plain") for _ in range(20)])
    log.publish(message((fleeting,), b"x", False, priority=0), is_durable=False)
    tx = log.begin()
    log.publish(message((queue,), b"later", priority=7), transaction=tx)
    log.flush()
    state = SetState.from_items(SET, log.state.items(bodies=with_bodies, in_blocks=in_blocks))
    check_invariants(state)
    for name in ("q", "fleeting"):
        known = log.state.queues.by_name[name]
        assert _priorities(state.queues.by_name[name]) == _priorities(known) and known.priorities
    for each in (log.state, state):
        before = len(_priorities(each.queues.by_name["q"]))
        index = LogIndex(each.applied + 1)
        each.apply(index, log.epoch, Prepare(None, tx, True), True)
        after = _priorities(each.queues.by_name["q"])
        assert len(after) == before + 1 and after[QueuePosition(place(index, 0))] == 7


def test_what_is_laid_over_comes_between_what_is_durable() -> None:
    log = Log()
    queue = log.queue("q")
    for number in range(12):
        is_durable = number % 3 > 0
        log.publish(message((queue,), b"x", is_durable, priority=number % 2 * 9), is_durable=is_durable)
    log.flush()
    state = SetState.from_items(SET, log.state.items(transient=False))
    state.overlay(tuple(log.state.items(durable=False)))
    check_invariants(state)
    found = state.queues.by_name["q"]
    assert found.priorities is not None and queue.priorities is not None
    for level in (0, 9):
        assert found.priorities.of_level(level, 0, 99) == queue.priorities.of_level(level, 0, 99)


def test_who_leaves_takes_its_priority_along_and_who_moves_keeps_it() -> None:
    log = Log()
    queue, dead = log.queue("q"), log.queue("dead")
    log.publish(*[message((queue,), b"x", priority=priority) for priority in (9, 4, 0)])
    urgent, plain, slow = queue.positions()
    index = log.append(Move(None, 0, queue.id, (plain, slow), (dead.id,)))
    assert _priorities(dead) == {QueuePosition(place(index, 1)): 0}
    assert _priorities(queue) == {urgent: 9}
    log.append(Dequeue(None, None, 0, queue.id, (urgent,)))
    assert queue.priorities is None


@pytest.mark.parametrize("priority", range(10))
def test_a_content_whose_body_is_away_has_its_priority(priority: int) -> None:
    whole = Message((), b"p", b"body", 7, True, priority)
    dropped = without_body(whole)
    assert dropped.priority == priority and without_body(dropped) is dropped
    assert (type(dropped) is DroppedMessage) == (priority == PRIORITY_DEFAULT)
    for content in (whole, dropped):
        value = encode_content(content)
        assert decode_content(value) == content and is_bodiless(value) == (content is dropped)
    other = without_body(Message((), b"p", b"body", 7, True, (priority + 1) % 10))
    assert dropped != other and other != dropped
