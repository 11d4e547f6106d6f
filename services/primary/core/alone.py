"""Alone: what a primary has to do as a whole and is too much for one step, because of what one client has.

Law: nothing comes between. While such a work is under way the core hears nothing else (what is said waits, in its order), says
nothing and cuts no frame, so nobody sees it half done; others on the same event loop have their turns. What it has done leaves
before the next such work is begun. A work is an iterator whose steps are short and say what they cost, as those of `Pieces`; what
costs little is done in the step that begins it.
"""

from collections import deque
from collections.abc import Iterator

from lockstep.core.clock import Now
from lockstep.core.effects import WakeAt
from lockstep.core.ids import SetName
from lockstep.core.pieces import PIECE_COST, do_piece


class LongCommand(Exception):
    """A command does more than is done in one step: nothing was done yet. Nothing may come between what is done."""

    def __init__(self, work: Iterator[int]) -> None:
        """`work`: does it, in steps that say what they cost."""
        super().__init__()
        self.work = work


class Alone:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, cost_max: int = PIECE_COST) -> None:
        """`cost_max`: of one piece."""
        self._cost_max = cost_max
        self.works: deque[Iterator[int]] = deque()
        """Those under way: only this changes it. Whoever has to know whether there is any looks here, for each message."""
        self._is_begun = False
        """Nothing is begun beside them: they have had a piece, or have it now."""
        self._wakes_ms = 0
        """When another turn was asked for last."""

    def do(self, work: Iterator[int]) -> None:
        """Begin it, and end it if that is little; behind what is under way."""
        self.works.append(work)
        if not self._is_begun:
            self.go_on()

    def leave(self, work: Iterator[int]) -> None:
        """What a record does still (`SetState.leave`): it goes on with what is begun next, if it is not a part of a work."""
        if not self.works:
            self.works.append(work)

    def go_on(self) -> None:
        """One piece. What a work begins is done behind it."""
        self._is_begun = True
        do_piece(self.works, self._cost_max)
        self._is_begun = bool(self.works)

    def ask(self, set_name: SetName, now: Now) -> list[WakeAt]:
        """What asks for another turn, once each millisecond."""
        if self._wakes_ms > now.boottime_ms:
            return []
        self._wakes_ms = now.boottime_ms + 1
        return [WakeAt(set_name, self._wakes_ms)]
