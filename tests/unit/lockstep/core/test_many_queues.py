"""What is published to many queues is put into them in short steps, and comes to the same as in one."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import ne
from typing import Any

import pytest

from lockstep.core.apply_messages import MOVING_COST_MAX, QUEUE_COST, SHARES_AT_ONCE, SHARES_IN_ONE
from lockstep.core.ids import QueuePosition, SessionKey, place
from lockstep.core.invariants import check_invariants
from lockstep.core.queues import Queue
from lockstep.core.records import AcceptCommand, CommandRef, Message, Move, OpenSession, Publish
from lockstep.core.set_state import CALLED_IN_ONE, SetState
from lockstep.core.state_hash import state_hash
from lockstep.core.state_listener import StateListener
from tests.unit.lockstep.core.history import SET, Log, bodies, message

MANY = SHARES_AT_ONCE + 700


@pytest.fixture(scope="module")
def wired() -> Log:
    """A log that has declared many queues, every third of which is not durable, and nothing more."""
    log = Log()
    for number in range(MANY):
        log.queue(f"q{number}", is_durable=bool(number % 3))
    log.flush()
    return log


def lengths(state: SetState) -> int:
    """Entries of all queues."""
    return sum(queue.length for queue in state.queues.by_id.values())


def everywhere(log: Log, *bodies: bytes) -> list[Message]:
    return [message(tuple(log.state.queues.by_id.values()), body) for body in bodies]


def unlike(log: Log) -> list[Message]:
    """Messages for many queues, each of which gets some of them."""
    queues = list(log.state.queues.by_id.values())
    return [message(tuple(queues[number::2] + queues[: 5 * number]), b"%d" % number) for number in range(6)]


def publishes(log: Log) -> None:
    log.publish(*everywhere(log, b"1"))


def publishes_some(log: Log) -> None:
    log.publish(*everywhere(log, *[b"some"] * 10))


def publishes_transients(log: Log) -> None:
    log.publish(*everywhere(log, b"1"), is_durable=False)


def publishes_unlike(log: Log) -> None:
    log.publish(*unlike(log))


def commits(log: Log) -> None:
    key = log.begin()
    log.publish(*everywhere(log, b"1"), transaction=key)
    log.publish(*everywhere(log, *[b"some"] * 10), transaction=key)
    log.publish(*unlike(log), transaction=key)
    log.commit(key)


def commits_one(log: Log) -> None:
    key = log.begin()
    log.flush()
    log.publish(*everywhere(log, b"1"), transaction=key)
    log.commit(key)


def commits_with_an_accept(log: Log) -> None:
    queue = log.state.queues.by_name["q1"]
    log.publish(message((queue,)))
    log.flush()
    key = log.begin()
    log.flush()
    log.dequeue(queue, *queue.positions(), transaction=key)
    log.publish(*everywhere(log, b"1"), transaction=key)
    log.commit(key)


def move(log: Log, count: int, targets: int, **options: Any) -> None:
    """So many messages go from one queue to so many others."""
    ids = [queue.id for queue in log.state.queues.by_id.values()]
    source = log.state.queues.by_id[ids[1]]
    log.publish(*[message((source,), priority=number % 7) for number in range(count)])
    log.flush()
    log.append(
        Move(None, 0, source.id, tuple(source.positions()), tuple(ids[-targets:]), time_ms=1, **options)
    )


def moves(log: Log) -> None:
    move(log, 1, MANY)


def moves_back(log: Log) -> None:
    move(log, 3, MANY, expires_ms=tuple(range(MANY)))


KINDS = [
    publishes,
    publishes_some,
    publishes_transients,
    publishes_unlike,
    commits,
    commits_one,
    commits_with_an_accept,
    moves,
    moves_back,
]


class Calls(StateListener):
    """What a listener hears."""

    def __init__(self) -> None:
        self.enqueues: dict[int, int] = {}
        self.since = 0

    def enqueued(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        assert queue.length >= len(positions)
        self.enqueues[queue.id] = self.enqueues.get(queue.id, 0) + len(positions)
        self.since += 1


def begun(wired: Log, listener: StateListener | None = None) -> SetState:
    state = SetState(SET, listener, page_entries=5)
    state.clearing.is_in_pieces = True
    for frame in wired.frames:
        state.apply_frame(frame)
    return state


def log_behind(wired: Log) -> Log:
    """One of its own, that goes on behind what is declared."""
    return Log(begun(wired), epoch=wired.epoch)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_done_in_short_steps_and_comes_to_the_same(wired: Log, kind: Callable[[Log], None]) -> None:
    log = log_behind(wired)
    kind(log)
    log.flush()
    log.state.finish()
    calls = Calls()
    one, listened, at_once = begun(wired), begun(wired, calls), begun(wired)
    at_once.clearing.is_in_pieces = False
    for frame in log.frames:
        assert most_in_one(one, one.apply_in_steps(frame)) <= 2 * SHARES_IN_ONE
        for _ in listened.apply_in_steps(frame):
            assert calls.since <= CALLED_IN_ONE
            calls.since = 0
        at_once.apply_frame(frame)
    check_invariants(one)
    assert state_hash(one) == state_hash(at_once) == state_hash(log.state)
    assert state_hash(listened) == state_hash(one)
    assert sum(calls.enqueues.values()) >= lengths(one) >= MANY


def most_in_one(state: SetState, steps: Iterator[int]) -> int:
    """Queues that got something in the longest step."""
    most, before = 0, [queue.length for queue in state.queues.by_id.values()]
    for _ in chain(steps, (0,)):
        now = [queue.length for queue in state.queues.by_id.values()]
        most, before = max(most, sum(map(ne, now, before))), now
    return most


@pytest.mark.parametrize(("count", "targets"), [(800, 3), (40, 400), (1200, 1), (1, 1200)])
def test_many_messages_that_move_to_several_queues_do_so_in_short_steps(
    wired: Log, count: int, targets: int
) -> None:
    log = log_behind(wired)
    move(log, count, targets)
    log.flush()
    log.state.finish()
    state, published = begun(wired), log.frames.pop(0)
    state.apply_frame(published)
    most = 0
    before = there = state.queues.by_name["q1"].length, lengths(state)
    for _ in chain(state.apply_in_steps(log.frames[0]), (0,)):
        there = state.queues.by_name["q1"].length, lengths(state)
        most, before = max(most, abs(before[0] - there[0]), abs(before[1] - there[1])), there
    assert there[0] == 0 and most <= 250 + 2 * MOVING_COST_MAX // QUEUE_COST
    assert state_hash(state) == state_hash(log.state)
    places = [*range(place(state.applied, 0), place(state.applied, count))]
    assert all([*queue.positions()] == places for queue in [*state.queues.by_id.values()][-targets:])


@pytest.mark.parametrize("is_durable", [True, False])
def test_what_is_not_durable_moves_nothing_durable(is_durable: bool) -> None:
    log = Log()
    log.begin_epoch()
    source, target = log.queue("source"), log.queue("target")
    log.publish(message((source,), b"durable"))
    log.publish(message((source,), b"transient"), is_durable=False)
    log.append(Move(None, 0, source.id, tuple(source.positions()), (target.id,)), is_durable)
    left, moved = ([], [b"durable", b"transient"]) if is_durable else ([b"durable"], [b"transient"])
    assert bodies(source) == left and bodies(target) == moved
    check_invariants(log.state)


def test_what_many_queues_reserved_is_given_back_by_few_publishes_in_a_step(wired: Log) -> None:
    log = log_behind(wired)
    key = log.begin()
    for _ in range(5):
        log.publish(*everywhere(log, b"1"), transaction=key)
    log.rollback(key)
    log.flush()
    log.state.finish()
    state = begun(wired)
    most, before = 0, 0
    for _ in chain(state.apply_in_steps(log.frames[0]), (0,)):
        now = sum(queue.reserved_length for queue in state.queues.by_id.values())
        most, before = max(most, before - now), now
    assert before == 0 and 0 < most <= 2 * MANY
    assert state_hash(state) == state_hash(log.state)


def test_it_is_answered_before_all_is_done_and_heard_behind_it(wired: Log) -> None:
    log, calls = log_behind(wired), Calls()
    state = log.state
    session = log.append(OpenSession(None, "s", 0), is_durable=False)
    state.set_listener(calls)
    log.append(Publish(CommandRef(SessionKey(session), 1), None, 0, tuple(everywhere(log, b"1"))))
    assert state.unfinished is not None and not calls.enqueues
    opened = state.sessions.get(SessionKey(session))
    assert opened is not None and opened.answers[1].value == MANY
    log.append(AcceptCommand(CommandRef(SessionKey(session), 2)), is_durable=False)
    assert not calls.enqueues, "nobody hears of a part"
    state.finish()
    assert len(calls.enqueues) == MANY


def test_the_next_record_finds_it_done(wired: Log) -> None:
    log = log_behind(wired)
    publishes(log)
    assert lengths(log.state) < MANY
    log.publish(message((log.state.queues.by_name["q0"],)))
    assert log.state.unfinished is None and lengths(log.state) == MANY + 1


def test_what_a_store_writes_down_is_whole_at_once(wired: Log) -> None:
    class Items(StateListener):
        def items_changed(self, keys: object) -> None:
            """Hears of each."""

    log = log_behind(wired)
    log.state.set_listener(Items())
    publishes(log)
    assert log.state.unfinished is None and lengths(log.state) == MANY
