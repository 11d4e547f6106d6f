"""Works that are done in pieces: how much is a piece, who has a turn, and when another one is asked for."""

from collections.abc import Iterator

from lockstep.core.clock import Now
from lockstep.core.effects import WakeAt
from lockstep.core.ids import SetName
from lockstep.core.pieces import Pieces

SET = SetName("orders")


class Work:
    """So many steps, of which each costs so much."""

    def __init__(self, steps: int, cost: int) -> None:
        self.steps = steps
        self.cost = cost
        self.done = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.steps):
            self.done += 1
            yield self.cost


def test_a_piece_is_as_much_as_may_be_done_in_one_go() -> None:
    pieces, work = Pieces(cost_max=10), Work(9, 4)
    pieces.begin(iter(work))
    assert work.done == 0
    pieces.go_on()
    assert work.done == 3
    pieces.go_on()
    assert work.done == 6
    while pieces.works:
        pieces.go_on()
    assert work.done == 9


def test_small_works_are_all_done_in_one_go() -> None:
    pieces, works = Pieces(cost_max=10), [Work(1, 2), Work(2, 2), Work(0, 2)]
    for work in works:
        pieces.begin(iter(work))
    pieces.go_on()
    assert not pieces.works
    assert [work.done for work in works] == [1, 2, 0]


def test_long_works_take_turns() -> None:
    pieces, one, other = Pieces(cost_max=10), Work(100, 10), Work(100, 10)
    pieces.begin(iter(one))
    pieces.begin(iter(other))
    for _ in range(6):
        pieces.go_on()
    assert (one.done, other.done) == (3, 3)


def test_a_work_may_begin_another_one() -> None:
    pieces, other = Pieces(cost_max=10), Work(1, 1)

    def begin() -> Iterator[int]:
        pieces.begin(iter(other))
        pieces.go_on()
        assert other.done == 0, "a step is done before another one begins"
        yield 1

    pieces.begin(begin())
    pieces.go_on()
    assert other.done == 1
    assert not pieces.works


def test_another_turn_is_asked_for_once_a_millisecond_while_there_is_more_to_do() -> None:
    pieces = Pieces(cost_max=10)
    assert pieces.ask(SET, Now(1000, 0)) == []
    pieces.begin(iter(Work(2, 10)))
    assert pieces.ask(SET, Now(1000, 0)) == [WakeAt(SET, 1001)]
    assert pieces.ask(SET, Now(1000, 0)) == []
    pieces.go_on()
    assert pieces.ask(SET, Now(1001, 0)) == [WakeAt(SET, 1002)]
    pieces.go_on()
    pieces.go_on()
    assert pieces.ask(SET, Now(1002, 0)) == []


def test_of_works_in_turn_one_goes_on_at_a_time_beside_others() -> None:
    pieces, works = Pieces(cost_max=10), [Work(4, 10), Work(4, 10), Work(4, 10)]
    pieces.begin_in_turn(iter(works[0]))
    pieces.begin_in_turn(iter(works[1]))
    pieces.begin(iter(works[2]))
    for _ in range(4):
        pieces.go_on()
    assert [work.done for work in works] == [2, 0, 2]
    while pieces.works:
        pieces.go_on()
    assert [work.done for work in works] == [4, 4, 4]
    pieces.begin_in_turn(iter(Work(1, 1)))
    pieces.go_on()
    assert not pieces.works
