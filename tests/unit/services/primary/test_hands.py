"""What is coming back to a queue holds back what is delivered behind it, and however much it is, finding that looks at few."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.ids import QueuePosition
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.queues import Queue
from services.primary.core.hands import NO_BARRIER, Hands
from tests.counted_work import CountedCalls
from tests.unit.lockstep.core.history import Log, message

LEVELS = (0, PRIORITY_DEFAULT, 7, 9)
TOGETHER = 500


def filled(count: int, priority: int = PRIORITY_DEFAULT) -> Queue:
    log = Log()
    queue = log.queue("q")
    for _ in range(0, count, TOGETHER):
        log.publish(*[message((queue,), priority=priority)] * TOGETHER)
    return queue


def test_finding_what_is_delivered_first_of_what_comes_back_looks_at_as_few_however_much_that_is() -> None:
    looks = []
    for priority in (PRIORITY_DEFAULT, 9):
        for count in (20_000, 60_000):
            hands = Hands(filled(count, priority))
            positions = hands.queue.positions()
            hands.begin_return(positions)
            hands.end_return(positions[:TOGETHER])
            assert hands.barrier_in(priority) == positions[TOGETHER]
            hands.end_return(positions[TOGETHER : 2 * TOGETHER])
            with CountedCalls() as calls:
                hands.barrier_in(priority)
            looks.append(calls.total)
    assert max(looks) < 100


@given(st.randoms(use_true_random=True), st.integers(1, 60))
def test_nothing_overtakes_what_is_coming_back_whatever_its_priority(random: Random, count: int) -> None:
    """What comes back of a level may hold back more of it than has to wait, and never less."""
    log = Log()
    queue = log.queue("q")
    for _ in range(count):
        log.publish(message((queue,), priority=random.choice(LEVELS)))
    hands, back = Hands(queue), list[QueuePosition]()
    for _ in range(20):
        some = random.sample(queue.positions(), random.randint(0, count))
        if random.random() < 0.6:
            hands.begin_return(some)
            back = sorted({*back, *some})
        else:
            hands.end_return(some)
            back = [position for position in back if position not in some]
        first = min([(-queue.priority(position), position) for position in back], default=None)
        for level in LEVELS:
            least = NO_BARRIER
            if first is not None and level <= -first[0]:
                least = first[1] if level == -first[0] else 0
            assert hands.barrier_in(level) <= least
            assert back or hands.barrier_in(level) == NO_BARRIER
