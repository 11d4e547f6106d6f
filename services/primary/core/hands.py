"""A queue's messages that are there and not free: who holds which, and which are on their way back, or out.

Law: what is coming back goes to nobody before that is committed, and holds back whatever is delivered behind it.
"""

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field

from lockstep.core.ids import QueuePosition, SessionKey
from lockstep.core.position_sets import FEW_MAX, PositionSet
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.queues import Queue

NO_BARRIER = 1 << 63
"""Behind every position."""
_NOTHING = PositionSet()


@dataclass(slots=True)
class Hands:
    """But for those that a transaction has locked. Lives as long as the queue."""

    queue: Queue
    held: PositionSet = field(default_factory=PositionSet)
    by_session: dict[SessionKey, PositionSet] = field(default_factory=dict)
    """The same, of each session that holds some, or did: when it ends nobody looks through what others hold."""
    coming_back: PositionSet = field(default_factory=PositionSet)
    """Given back by records that are not committed: a successor without them may still have them locked (P3)."""
    leaving: PositionSet = field(default_factory=PositionSet)
    """Dead letters as soon as their turn has come, or their bodies have been read: nobody is offered them."""
    barrier: int = NO_BARRIER
    """The first of those that come back; where all have one priority nothing behind it is offered meanwhile, or it would be out
    of order."""
    held_to: int = 0
    """Ahead of the main view's cursor nothing behind this position was ever held."""
    too_costly: int = 0
    """Looks that a selector would not take (any more): whoever tells of them sets it back."""
    _by_level: dict[int, PositionSet] = field(default_factory=dict)
    """Those that come back and have not the default priority, by theirs."""
    _next_back: tuple[int, QueuePosition] | None = None
    """Of those that come back, which is delivered first: (level, negative; position, or one before it). None: not known."""

    def of(self, session: SessionKey) -> PositionSet:
        """What a session holds."""
        return self.by_session.get(session, _NOTHING)

    def hold(self, session: SessionKey, positions: Collection[QueuePosition]) -> None:
        """A session that has been seen here holds these, too."""
        held, own = self.held, self.by_session[session]
        if held.pages or len(held.few) + len(positions) > FEW_MAX:
            held.update(positions)
            own.update(positions)
        else:
            held.few.update(positions)
            own.few.update(positions)

    def let_go(self, session: SessionKey, positions: Collection[QueuePosition]) -> None:
        """A session does not hold these any more, which it does."""
        held = self.held
        if held.pages:
            held.difference_update(positions)
            self.by_session[session].difference_update(positions)
        elif positions:
            # Nobody holds more than there are.
            held.few.difference_update(positions)
            self.by_session[session].few.difference_update(positions)

    def begin_return(self, positions: Collection[QueuePosition]) -> None:
        """Records that are not committed gave these back."""
        if self._next_back is not None and positions:
            self._next_back = min(self._next_back, self._first_of(positions))
        self.coming_back.update(positions)
        if self.queue.priorities is not None:
            self._note_levels(positions)
        self.barrier = min(self.barrier, min(positions, default=NO_BARRIER))

    def end_return(self, positions: Collection[QueuePosition]) -> None:
        """They are committed."""
        if not positions:
            return
        self.coming_back.difference_update(positions)
        for level in list(self._by_level):
            self._by_level[level].difference_update(positions)
            if not self._by_level[level]:
                del self._by_level[level]
        first = self.coming_back.first()
        self.barrier = first if first is not None else NO_BARRIER
        self._next_back = None

    def barrier_in(self, level: int) -> int:
        """From which position on nothing of a level is offered: what is coming back is delivered before that."""
        if not self.coming_back:
            return NO_BARRIER
        if self._next_back is None:
            self._next_back = self._find_next_back()
        returning, position = -self._next_back[0], self._next_back[1]
        if level > returning:
            return NO_BARRIER
        return position if level == returning else 0

    def _note_levels(self, positions: Collection[QueuePosition]) -> None:
        levels: dict[int, list[QueuePosition]] = {}
        for position in positions:
            levels.setdefault(self.queue.priority(position), []).append(position)
        for level, some in levels.items():
            if level != PRIORITY_DEFAULT:
                self._by_level.setdefault(level, PositionSet()).update(some)

    def _find_next_back(self) -> tuple[int, QueuePosition]:
        """However many there are, few of them are looked at."""
        firsts = {level: some.first() for level, some in self._by_level.items()}
        if len(self.coming_back) > sum(map(len, self._by_level.values())):
            firsts[PRIORITY_DEFAULT] = self.coming_back.first()
        return min([(-level, first) for level, first in firsts.items() if first is not None])

    def _first_of(self, positions: Collection[QueuePosition]) -> tuple[int, QueuePosition]:
        priority = self.queue.priority
        return min([(-priority(position), position) for position in positions])

    def is_free(self, position: QueuePosition) -> bool:
        """Whether the message is there and nobody's."""
        return self.is_nobodys(position) and position in self.queue

    def is_nobodys(self, position: QueuePosition) -> bool:
        """The same of a message that is there."""
        locks, held, back, leaving = self.queue.locks, self.held, self.coming_back, self.leaving
        return not (
            (locks.pages and position in locks)
            or position in (held if held.pages else held.few)
            or position in (back if back.pages else back.few)
            or position in (leaving if leaving.pages else leaving.few)
        )

    def not_free(self, positions: Sequence[QueuePosition], is_any_held: bool) -> Set[QueuePosition]:
        """Those of these, which are there, that are locked, about to leave or held; `is_any_held`: one of them may be."""
        found = self.queue.locks.among(positions) if self.queue.locks.pages else set()
        if self.leaving:
            found |= self.leaving.among(positions)
        if is_any_held:
            found |= self.held.among(positions)
        return found

    def take_apart(self) -> Iterator[int]:
        """Nobody has it any more: leave nothing, in steps that say what they cost (`taking_apart`)."""
        others = *self._by_level.values(), *self.by_session.values()
        for each in (self.held, self.coming_back, self.leaving, *others):
            yield from each.take_apart()
