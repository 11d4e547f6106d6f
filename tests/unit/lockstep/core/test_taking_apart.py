"""What nobody has any more is emptied in steps that take out little each, and nothing of it is left then."""

from collections import deque
from collections.abc import Iterator
from itertools import islice, pairwise
from random import Random
from typing import Any

import pytest

from lockstep.core.content import size_of
from lockstep.core.content_shelf import Shelf
from lockstep.core.entry_pages import PAGE_ENTRIES
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.log_copy import LogCopy
from lockstep.core.outcomes import Outcome
from lockstep.core.records import DeleteQueue, Requeue
from lockstep.core.restoration import Restoration
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from lockstep.core.taking_apart import TAKEN_OUT_IN_ONE, emptied
from lockstep.core.transaction_states import TransactionState
from tests.unit.lockstep.core.history import SET, Log, Writer, message

MANY = 20 * TAKEN_OUT_IN_ONE
BIG = 1 << 20
"""Bytes."""


def long_state() -> SetState:
    log = Log()
    log.begin_epoch()
    queue, other = log.queue("q"), log.queue("other")
    for _ in range(MANY // 10):
        log.publish(*(message((queue, other), b"x"),) * 10)
    key = log.begin()
    positions = queue.positions()
    for begin in range(0, MANY, TAKEN_OUT_IN_ONE):
        log.dequeue(queue, *positions[begin : begin + TAKEN_OUT_IN_ONE], transaction=key)
    log.append(Requeue(None, other.id, tuple(other.positions())))
    for number in range(MANY):
        ended = (LogIndex(10_000_000 + number), Epoch(1))
        log.state.outcomes.record(ended, Outcome(TransactionState.COMMITTED, 0, LogIndex(number + 1)))
    log.flush()
    return log.state


def held_by(shelf: Shelf) -> int:
    """Bytes of what is there."""
    return sum(run.resident_bytes for run in shelf.runs.values()) + sum(map(size_of, shelf.single.values()))


def is_empty(state: SetState) -> bool:
    parts = (
        state.contents.shelves,
        state.queues.by_id,
        state.queues.by_name,
        state.clearing.queues,
        state.exchanges.by_id,
        state.sessions.by_key,
        state.transactions.live,
        state.outcomes.all(),
    )
    return not any(parts)


@pytest.mark.parametrize(
    "held", [dict.fromkeys(range(MANY)), set(range(MANY)), [0] * MANY, deque([0] * MANY)]
)
def test_containers_are_emptied_a_few_at_a_time(held: Any) -> None:
    assert list(emptied(held)) == [TAKEN_OUT_IN_ONE] * (MANY // TAKEN_OUT_IN_ONE)
    assert not held


def test_a_state_is_taken_apart_in_as_many_steps_as_it_is_long() -> None:
    state = long_state()
    queues = list(state.queues.by_id.values())
    assert len(queues[0].locks) == MANY == len(queues[1].delivery_counts)
    costs = list(state.take_apart())
    assert max(costs) <= TAKEN_OUT_IN_ONE + 2 * PAGE_ENTRIES
    assert sum(costs) >= 6 * MANY, "contents, entries twice, locks, counts and outcomes"
    assert is_empty(state) and state.is_taken_apart
    assert [(queue.positions(), len(queue.locks), len(queue.delivery_counts)) for queue in queues] == [
        ([], 0, 0)
    ] * 2


def test_what_is_big_counts_by_its_bytes() -> None:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    for number in range(20):
        # By itself, and two in a row.
        log.publish(*[message((queue,), bytes(BIG))] * (1 + number % 2))
        log.flush()
    copy = LogCopy(log.state, log.state.applied, 1 << 30)
    copy.retained.extend(log.frames[::2])
    copy.suffix.extend(log.frames[1::2])
    shelves = list(copy.state.contents.shelves.values())

    def bytes_left() -> int:
        frames = sum(len(frame.durable) for frame in (*copy.retained, *copy.suffix))
        return frames + sum(map(held_by, shelves))

    left = [bytes_left(), *(bytes_left() for _ in copy.take_apart())]
    assert left[0] >= 2 * 30 * BIG and left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= 5 * BIG


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_left_of_any_state(seed: int) -> None:
    log = Writer(Random(seed)).write(200)
    copy = LogCopy(log.state, log.state.applied, 1 << 30)
    for _ in copy.take_apart():
        pass
    assert is_empty(copy.state)
    assert not (copy.retained or copy.suffix)


def test_whoever_clears_it_meanwhile_finds_nothing_more() -> None:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    for _ in range(MANY // 10):
        log.publish(*(message((queue,), b"x"),) * 10)
    log.state.clearing.is_in_pieces = True
    log.append(DeleteQueue(None, queue.id))
    turns = log.state.clearing.turns()
    assert turns is not None
    next(turns)
    work = log.state.take_apart()
    next(work)
    assert list(turns) == []
    for _ in work:
        pass
    assert is_empty(log.state) and queue.positions() == []


def steps(work: Iterator[int], count: int | None) -> list[int]:
    return list(islice(work, count))


@pytest.mark.parametrize("settled", [0, 1, 10, 30])
def test_a_restoration_that_is_void_is_taken_apart_wherever_it_is(settled: int) -> None:
    items = list(long_state().items(transient=False))
    state = SetState(SET)
    restoration = Restoration(state)
    restoration.take(items)
    steps(restoration.settle_in_steps(), settled)
    costs = [*restoration.take_apart(), *state.take_apart()]
    assert max(costs) <= TAKEN_OUT_IN_ONE + 2 * PAGE_ENTRIES
    assert sum(costs) >= 2 * MANY
    assert is_empty(state)


def test_a_restoration_that_is_done_keeps_nothing() -> None:
    original = long_state()
    state = SetState(SET)
    restoration = Restoration(state)
    restoration.take(original.items(transient=False))
    costs = list(restoration.settle_in_steps())
    assert max(costs) <= TAKEN_OUT_IN_ONE + 2 * PAGE_ENTRIES
    assert list(restoration.take_apart()) == []
    assert state_hash(state) == state_hash(original, durable_only=True)
