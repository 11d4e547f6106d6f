"""A commit hold: for a moment no transaction begins to be committed in its resource sets, and what is being committed gets
through. Then each is in all of its sets or in none, and a plan of committed events finds a closed cut there (DESIGN 7).

    OPEN --asked--> HOLDING --nobody wants it any more, or hold_ms_max--> RESTING --hold_rest times as long--> OPEN

Law: a hold ends by itself, and rests before the next: however many ask, commits are held for a small part of the time. Kept is
only what this coordinator has just decided: what may be committed somewhere already never waits. A decision is in the log
before it is kept, so any other coordinator finishes what a dead one has kept.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from lockstep.core.branch_names import GlobalId
from lockstep.core.clock import Now
from lockstep.core.errors import ErrorCode
from services.coordinator.core.messages import Effect, HeldAnswer, Refusal, RequestId
from services.coordinator.core.settings import CoordinatorLimits


class Decided(Protocol):
    """A transaction over the log, as a hold sees it."""

    @property
    def global_id(self) -> GlobalId: ...
    @property
    def is_being_committed(self) -> bool:
        """Whether a resource set that was told to commit it may still do so for the first time."""

    def tell_end(self, now: Now) -> None:
        """Its branches hear what was decided."""


class CommitHold:
    """Lives as long as the core, which drives it."""

    def __init__(self, limits: CoordinatorLimits, say: Callable[[Effect], None]) -> None:
        self._limits = limits
        self._say = say
        self._since_ms: int | None = None
        """CLOCK_BOOTTIME; None: OPEN or RESTING."""
        self._rested_ms = 0
        """OPEN from then on."""
        self._wanted_by: dict[RequestId, bool] = {}
        """Whether it was answered. Empty unless HOLDING."""
        self._under_way: set[GlobalId] = set()
        """Being committed. Empty unless HOLDING."""
        self._kept: list[Decided] = []
        """Empty unless HOLDING."""
        self.total = 0
        self.total_ms = 0
        """Of those that are over."""

    def ask(self, request: RequestId, in_hand: Iterable[Decided], now: Now) -> None:
        """Answered when nothing is being committed; refused while it rests, and when it ends before. `in_hand`: all that may be
        under way."""
        if self._since_ms is None:
            if now.boottime_ms < self._rested_ms:
                self._refuse(
                    request, f"commits were held just now: again in {self._rested_ms - now.boottime_ms} ms"
                )
                return
            self._since_ms = now.boottime_ms
            self._under_way = {one.global_id for one in in_hand if one.is_being_committed}
        self._wanted_by[request] = False
        self._answer(now)

    def drop(self, request: RequestId, now: Now) -> None:
        """Whoever asked needs it no more."""
        if self._wanted_by.pop(request, None) is not None and not self._wanted_by:
            self._end(now)

    def keep(self, transaction: Decided) -> bool:
        """Whether the branches of this one, just decided, hear of it when the hold is over, and not now."""
        if self._since_ms is not None:
            self._kept.append(transaction)
        return self._since_ms is not None

    def look(self, transaction: Decided, now: Now) -> None:
        """Something has happened to it."""
        if self._since_ms is None:
            return
        if transaction.is_being_committed:
            self._under_way.add(transaction.global_id)
        else:
            self._under_way.discard(transaction.global_id)
        self._answer(now)

    def tick(self, now: Now) -> None:
        if self._since_ms is not None and now.boottime_ms - self._since_ms >= self._limits.hold_ms_max:
            self._end(now)

    def _answer(self, now: Now) -> None:
        assert self._since_ms is not None, "asked for while it holds"
        if self._under_way:
            return
        left_ms = max(self._since_ms + self._limits.hold_ms_max - now.boottime_ms, 0)
        for request in [request for request, is_answered in self._wanted_by.items() if not is_answered]:
            self._wanted_by[request] = True
            self._say(HeldAnswer(request, left_ms))

    def _end(self, now: Now) -> None:
        assert self._since_ms is not None, "ended once"
        lasted_ms = now.boottime_ms - self._since_ms
        for request in [request for request, is_answered in self._wanted_by.items() if not is_answered]:
            self._refuse(request, f"{len(self._under_way)} commits were not answered in {lasted_ms} ms")
        kept, self._kept = self._kept, []
        self._since_ms, self._rested_ms = None, now.boottime_ms + self._limits.hold_rest * (lasted_ms + 1)
        self._wanted_by.clear()
        self._under_way.clear()
        self.total += 1
        self.total_ms += lasted_ms
        for transaction in kept:
            transaction.tell_end(now)

    def _refuse(self, request: RequestId, message: str) -> None:
        self._say(Refusal(request, ErrorCode.UNAVAILABLE, message))
