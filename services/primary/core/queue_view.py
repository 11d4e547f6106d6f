"""Views of a queue: how far somebody has looked along it, and what he is offered next.

Law: a view offers what it may offer in the order of priorities and, of one priority, of positions, and each message again when
it came back; it stops at a message whose body is away, until it is fed, and at one that is coming back, until that is committed,
so that none overtakes it. What is taken is the taker's to hold: a view only looks.

Nothing is kept for a message that waits: a cursor goes along the queue, and only what came back behind it is remembered. Where
there are priorities, one goes along each level.
"""

from collections.abc import Collection, Iterator, Set
from heapq import heappop, heappush, nsmallest

from lockstep.core.ids import MessageId, QueuePosition
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.queues import Queue
from lockstep.core.records import Message
from lockstep.core.taking_apart import emptied
from services.primary.core.hands import Hands
from services.primary.core.lane import Lane

LOOK_AHEAD = 4096
"""Positions ahead of a view that are looked through for bodies to read back: some batches."""
MANY = 8
"""Messages from which on looking at all of them at once is faster than one by one."""
STEP = 256
"""Positions that are looked up at a time by a view that does not offer everything, or not in the order of positions."""
Offered = list[tuple[QueuePosition, Message]]
_NOTHING: Set[QueuePosition] = frozenset()


class QueueView(Lane):
    """The main view, which all consumers without one of their own share; itself the lane of the default priority. Lives as long
    as the queue.
    """

    __slots__ = (
        "_lanes",
        "_read_lane",
        "hands",
        "is_at_end",
        "is_barred",
        "is_gone",
        "is_reading",
        "is_stalled",
        "looked",
        "read_from",
    )

    def __init__(self, hands: Hands) -> None:
        super().__init__()
        self.hands = hands
        self._lanes: dict[int, Lane] = {}
        """Of other priorities, as far as there were messages of them."""
        self.is_stalled = False
        """The last `take` ended at a message whose body is away."""
        self.is_at_end = False
        """The last `take` ended because there was nothing more."""
        self.is_barred = False
        """The last `take` ended at a message that is coming back."""
        self.looked = 0
        """What the last `take` cost, in messages."""
        self.is_reading = False
        """Bodies are being read back for it."""
        self.read_from = 0
        """From here on bodies were read back the last time: when this is reached, the next ones are asked for. 0: none were."""
        self._read_lane: Lane | None = None
        """Where `read_from` is; None: in its own."""
        self.is_gone = False
        """Nobody looks through it any more."""

    @property
    def queue(self) -> Queue:
        return self.hands.queue

    @property
    def is_hungry(self) -> bool:
        """Whether it waits for bodies, or soon will."""
        return self.is_stalled or (self.read_from > 0 and (self._read_lane or self).cursor >= self.read_from)

    def reads_from(self, position: QueuePosition | None) -> None:
        """From here on bodies are read back now; None: none are."""
        self.read_from = position or 0
        lane = self._lane_of(position) if position is not None else self
        self._read_lane = lane if lane is not self else None

    def take_apart(self) -> Iterator[int]:
        """Nobody looks through it any more: leave nothing, in steps that say what they cost (`taking_apart`)."""
        for lane in (self, *self._lanes.values()):
            yield from emptied(lane.back)

    def lane(self, level: int) -> Lane:
        """That of a priority."""
        if level == PRIORITY_DEFAULT:
            return self
        found = self._lanes.get(level)
        if found is None:
            found = self._lanes[level] = Lane()
        return found

    def _lane_of(self, position: QueuePosition) -> Lane:
        return self.lane(self.queue.priority(position))

    def begin_as(self, view: "QueueView") -> None:
        """Offer what `view` would."""
        self.begin_at(view)
        for level, lane in view._lanes.items():
            self.lane(level).begin_at(lane)

    def take(self, limit: int, bytes_max: int, end: int, look_max: int) -> Offered:
        """The next messages below position `end` that are free, at most `limit`, cut behind `bytes_max`.

        `look_max` bounds what a view looks at that does not offer everything as it comes. The caller holds what it is given.
        """
        taken: Offered = []
        self.is_stalled = self.is_barred = False
        if self.hands.queue.priorities is not None:
            self._take_by_level(taken, limit, bytes_max, end, look_max)
            return taken
        self._take(taken, limit, bytes_max, end)
        self.looked = len(taken)
        self.is_at_end = not (taken or self.is_stalled or self.is_barred)
        return taken

    def _take(self, taken: Offered, limit: int, bytes_max: int, end: int) -> None:
        hands, queue, back = self.hands, self.queue, self.back
        locks, barrier = queue.locks.pages, hands.barrier
        leaving = hands.leaving.few or hands.leaving.pages
        size = 0
        while back and len(taken) < limit and size < bytes_max:
            if back[0] >= barrier:
                self.is_barred = True
                return
            position = heappop(back)
            is_repeated = bool(taken) and taken[-1][0] == position
            if hands.is_free(position) and not is_repeated:
                message = queue.message(position)
                if message is None:
                    heappush(back, position)
                    self.is_stalled = True
                    return
                taken.append((position, message))
                size += len(message.body) + len(message.properties)
        while len(taken) < limit and size < bytes_max:
            found = queue.positions(self.cursor + 1, limit - len(taken))
            messages = queue.messages(found)
            is_any_held = self.cursor < hands.held_to
            not_free = hands.not_free(found, is_any_held) if locks or leaving or is_any_held else _NOTHING
            if (
                len(messages) >= MANY
                and not not_free
                and found[-1] < min(end, barrier)
                and len(messages) == len(found)
            ):
                arriving = sum([len(message.body) + len(message.properties) for message in messages])
                if size + arriving <= bytes_max:
                    taken.extend(zip(found, messages, strict=True))
                    size += arriving
                    self.cursor = found[-1]
                    continue
            for position, message in zip(found, messages, strict=False):
                if position >= barrier:
                    self.is_barred = True
                    return
                if position >= end or size >= bytes_max:
                    return
                self.cursor = position
                if position not in not_free:
                    taken.append((position, message))
                    size += len(message.body) + len(message.properties)
            if len(messages) < len(found):
                position = found[len(messages)]
                if position >= barrier:
                    self.is_barred = True
                    break
                if position >= end:
                    break
                if position not in not_free:
                    self.is_stalled = True
                    break
                self.cursor = position
            elif not found:
                break

    def _take_by_level(self, taken: Offered, limit: int, bytes_max: int, end: int, look_max: int) -> None:
        """The same, priority by priority, looking at each message."""
        self.is_at_end = False
        self.looked = 0
        priorities, bytes_left = self.queue.priorities, bytes_max
        for level in priorities.levels() if priorities is not None else (PRIORITY_DEFAULT,):
            bytes_left = self._walk(level, taken, limit, bytes_left, end, look_max)
            if bytes_left <= 0 or len(taken) == limit or self.looked >= look_max:
                return
        self.is_at_end = True

    def _walk(self, level: int, taken: Offered, limit: int, bytes_max: int, end: int, look_max: int) -> int:
        """What there is of one priority; answers how many bytes more are to be taken."""
        lane, barrier, priorities = self.lane(level), self.hands.barrier_in(level), self.queue.priorities
        bytes_left = self._walk_back(lane, barrier, taken, limit, bytes_max, look_max)
        while len(taken) < limit and bytes_left > 0 and self.looked < look_max:
            found = self._positions(level, lane.cursor + 1, min(look_max - self.looked, STEP))
            if not found or found[0] >= end:
                break
            for position in found:
                is_enough = len(taken) == limit or bytes_left <= 0 or self.looked >= look_max
                if position >= end or is_enough:
                    break
                if priorities is not None and priorities.level(position) != level:
                    self.looked += 1
                    lane.cursor = position
                    continue
                if position >= barrier:
                    self.is_barred = True
                    return 0
                size = self._look(position, taken)
                if size is None:
                    self.is_stalled = True
                    return 0
                bytes_left -= size
                lane.cursor = position
        return bytes_left

    def _walk_back(
        self, lane: Lane, barrier: int, taken: Offered, limit: int, bytes_max: int, look_max: int
    ) -> int:
        """What came back of it; answers the same."""
        back, bytes_left = lane.back, bytes_max
        while back and len(taken) < limit and bytes_left > 0 and self.looked < look_max:
            if back[0] >= barrier:
                self.is_barred = True
                return 0
            position = heappop(back)
            if taken and taken[-1][0] == position:
                continue
            size = self._look(position, taken)
            if size is None:
                heappush(back, position)
                self.is_stalled = True
                return 0
            bytes_left -= size
        return bytes_left

    def _positions(self, level: int, start: int, limit: int) -> list[QueuePosition]:
        """Some from `start` on among which are all of a priority."""
        priorities = self.queue.priorities
        if level == PRIORITY_DEFAULT or priorities is None:
            return self.queue.positions(start, limit)
        return priorities.of_level(level, start, limit)

    def _look(self, position: QueuePosition, taken: Offered) -> int | None:
        """Take the message if it is offered; answers its bytes, or None if that cannot be told: its body is away."""
        self.looked += 1
        if not self.hands.is_free(position):
            return 0
        message = self.queue.message(position)
        if message is None:
            return None
        taken.append((position, message))
        return len(message.body) + len(message.properties)

    def come_back(self, positions: Collection[QueuePosition]) -> None:
        """These may be offered again; they take their old place in the queue."""
        if not positions:
            return
        queue = self.hands.queue
        if queue.priorities is not None:
            for position in positions:
                self._lane_of(position).take_back(position)
            for lane in self._lanes.values():
                lane.clear_away(queue)
        else:
            for position in positions:
                self.take_back(position)
        self.clear_away(queue)

    def ahead(self) -> dict[MessageId, QueuePosition]:
        """What will be offered next, in that order, as far as it is worth looking."""
        priorities = self.queue.priorities
        ahead: dict[QueuePosition, None] = {}
        for level in priorities.levels() if priorities is not None else (PRIORITY_DEFAULT,):
            if len(ahead) >= LOOK_AHEAD:
                break
            lane = self.lane(level)
            ahead.update(dict.fromkeys(self.queue.present(nsmallest(LOOK_AHEAD, lane.back))))
            for position in self._positions(level, lane.cursor + 1, LOOK_AHEAD):
                if priorities is None or priorities.level(position) == level:
                    ahead[position] = None
        free = [position for position in ahead if self.hands.is_nobodys(position)]
        return dict(zip(self.queue.message_ids(free), free, strict=True))
