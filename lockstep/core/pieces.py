"""Work in pieces: what a core has to do that is too much for one step, and can be left where it is for a while.

Law: a step of a core does one piece and no more, and asks for another turn (`WakeAt`, answered by `Woken`). In between the driver
lets everybody else have theirs: lease renewals, heartbeats, other inputs of the same core, other sets. So what a work leaves
between two of its pieces must be such that any input may come.

A work is an iterator whose steps are short; each says what it cost, in units of about a microsecond. Small works are done in the
step that begins them, if that goes on with them at once: nobody waits a turn for little.
"""

from collections import deque
from collections.abc import Generator, Iterator
from typing import TypeVar

from lockstep.core.clock import Now
from lockstep.core.effects import WakeAt
from lockstep.core.ids import SetName

PIECE_COST = 2000
"""Of one piece, but for what its last step adds: some milliseconds, where much else runs on the same processors."""
STEP_COST_MIN = 0
"""What a step counts as at least: many small ones say that they cost nothing. With 1, as in some simulations, a piece ends behind
any step."""
_Made = TypeVar("_Made")


def at_once(steps: Generator[object, None, _Made]) -> _Made:
    """What these steps make, all of them one behind the other: of few, for they are one step then. Raises what they raise."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: _Made = end.value
            return made


def do_piece(works: deque[Iterator[int]], cost_max: int) -> None:
    """Steps of the first of these works, and of those behind it when it has ended, until they have cost so much."""
    cost = 0
    while works and cost < cost_max:
        step = next(works[0], None)
        if step is None:
            works.popleft()
        else:
            cost += step or STEP_COST_MIN


class Pieces:
    """The works of one core that are under way; it lives as long as that."""

    def __init__(self, cost_max: int = PIECE_COST) -> None:
        """`cost_max`: of one piece; the simulator draws its own."""
        self._cost_max = cost_max
        self.works: deque[Iterator[int]] = deque()
        """Those under way; none: there is nothing more to do."""
        self._in_turn: deque[Iterator[int]] = deque()
        """Those of which one goes on at a time."""
        self._is_going_on = False
        self._wakes_ms = 0
        """When another turn was asked for last."""

    def begin(self, work: Iterator[int]) -> None:
        """A work that is done beside those that are under way."""
        self.works.append(work)

    def begin_in_turn(self, work: Iterator[int]) -> None:
        """The same behind all works that were begun like this: what many may ask for, and each keeps much in hand."""
        self._in_turn.append(work)
        if len(self._in_turn) == 1:
            self.begin(self._one_by_one())

    def _one_by_one(self) -> Iterator[int]:
        while self._in_turn:
            yield from self._in_turn[0]
            self._in_turn.popleft()

    def go_on(self) -> None:
        """One piece, of one work if that is long: they take turns. What a work begins is done behind its own step."""
        if self._is_going_on:
            return
        self._is_going_on = True
        do_piece(self.works, self._cost_max)
        self.works.rotate(-1)
        self._is_going_on = False

    def give_up(self) -> None:
        """Nothing is gone on with any more: whoever has what they worked on next begins such works anew."""
        self.works.clear()
        self._in_turn.clear()

    def ask(self, set_name: SetName, now: Now, is_more: bool = False) -> list[WakeAt]:
        """What asks for another turn, if there is more to do; no more than one each millisecond, whoever else asks for some.
        `is_more`: there is, of what goes on with any input.
        """
        if not (self.works or is_more) or self._wakes_ms > now.boottime_ms:
            return []
        self._wakes_ms = now.boottime_ms + 1
        return [WakeAt(set_name, self._wakes_ms)]
