"""What a session held when all of it became void: told apart by queue, consumer and epoch, in pieces.

Law: a consumer hears once of all that it had of one queue and epoch, in ascending order; queues come in the order of their names,
consumers in that of their numbers. How much there is makes no step longer.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Generator
from itertools import chain, islice

from lockstep.client.session_events import AllVoided, DeliveriesVoided
from lockstep.core.ids import Epoch, QueuePosition

LOOKED_AT_ONCE = 5_000
"""Deliveries that one step looks at, or puts in order: a millisecond's work."""
MARKED_EACH = LOOKED_AT_ONCE // 10


def _cost(count: int) -> int:
    """Of looking at so many, in microseconds."""
    return 1 + count // 5


def told_apart(voided: AllVoided) -> Generator[int, None, list[DeliveriesVoided]]:
    """What consumers are told of it, in this order. Its steps say what they cost (`lockstep/core/pieces.py`)."""
    told: list[DeliveriesVoided] = []
    for queue in sorted(set[str]().union(*voided.held.values())):
        found: defaultdict[tuple[int, Epoch], list[QueuePosition]] = defaultdict(list)
        for epoch, by_queue in voided.held.items():
            held = by_queue.get(queue, {})
            deliveries = iter(held.items())
            for first in range(0, len(held), LOOKED_AT_ONCE):
                for position, number in islice(deliveries, LOOKED_AT_ONCE):
                    found[number, epoch].append(position)
                yield _cost(min(LOOKED_AT_ONCE, len(held) - first))
        for number, arrived in sorted(found):
            positions = yield from in_order(found[number, arrived])
            told.append(DeliveriesVoided(number, queue, arrived, positions))
    return told


def in_order(positions: list[QueuePosition]) -> Generator[int, None, tuple[QueuePosition, ...]]:
    """Sorts runs of them, and joins these from mark to mark. Leaves nothing of the list, and says what its steps cost."""
    runs: list[list[QueuePosition]] = []
    while positions:
        # From behind, and none is kept twice: to let go of very many takes long, too.
        runs.append(sorted(positions[-LOOKED_AT_ONCE:]))
        del positions[-LOOKED_AT_ONCE:]
        yield _cost(len(runs[-1]))
    if len(runs) == 1:
        return tuple(runs[0])
    runs.reverse()
    marks = sorted(chain.from_iterable(run[::MARKED_EACH] for run in runs))
    ordered: list[QueuePosition] = []
    begins = [0] * len(runs)
    for end in [*marks[10::10], max(run[-1] for run in runs) + 1]:
        some: list[QueuePosition] = []
        for number, run in enumerate(runs):
            begin = begins[number]
            begins[number] = bisect_left(run, end, begin)
            some += run[begin : begins[number]]
        some.sort()
        ordered += some
        yield _cost(len(some) + 5 * len(runs))
    return tuple(ordered)
