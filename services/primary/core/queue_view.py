"""Views of a queue: how far somebody has looked along it, and what he is offered next.

Law: a view offers what it may offer in the order of positions, and each message again when it came back; it stops at a message
whose body is away, until it is fed, and at one that is coming back, until that is committed, so that none overtakes it. What is
taken is the taker's to hold: a view only looks.

Nothing is kept for a message that waits: a cursor goes along the queue, and only what came back behind it is remembered.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush, nsmallest

from lockstep.core.ids import MessageId, QueuePosition, SessionKey
from lockstep.core.queues import Queue
from lockstep.core.records import Message

LOOK_AHEAD = 4096
"""Positions ahead of a view that are looked through for bodies to read back: some batches."""
SLACK = 64
"""Positions that came back and left since, and that nobody has to clear away yet."""
MANY = 8
"""Messages from which on looking at all of them at once is faster than one by one."""
STEP = 256
"""Positions that are looked up at a time by a view that does not offer everything."""
NO_BARRIER = 1 << 63
"""Behind every position."""
Offered = list[tuple[QueuePosition, Message]]
_NOTHING: frozenset[QueuePosition] = frozenset()


@dataclass(slots=True)
class Hands:
    """A queue's messages that are there and not free, but for those that a transaction has locked. Lives as long as the queue."""

    queue: Queue
    held: set[QueuePosition] = field(default_factory=set)
    by_session: dict[SessionKey, set[QueuePosition]] = field(default_factory=dict)
    """The same, of each session that holds some, or did: when it ends nobody looks through what others hold."""
    coming_back: set[QueuePosition] = field(default_factory=set)
    """Given back by records that are not committed: a successor without them may still have them locked (P3)."""
    leaving: set[QueuePosition] = field(default_factory=set)
    """Dead letters as soon as their bodies have been read: nobody is offered them."""
    barrier: int = NO_BARRIER
    """The first of those; nothing behind it is offered meanwhile, or it would be out of order."""
    held_to: int = 0
    """Ahead of the main view's cursor nothing behind this position was ever held."""
    too_costly: int = 0
    """Looks that a selector would not take (any more): whoever tells of them sets it back."""

    def of(self, session: SessionKey) -> set[QueuePosition] | frozenset[QueuePosition]:
        """What a session holds."""
        return self.by_session.get(session, _NOTHING)

    def let_go(self, session: SessionKey, positions: Collection[QueuePosition]) -> None:
        """A session does not hold these any more, which it does."""
        self.held.difference_update(positions)
        if positions:
            self.by_session[session].difference_update(positions)

    def begin_return(self, positions: Collection[QueuePosition]) -> None:
        """Records that are not committed gave these back."""
        self.coming_back.update(positions)
        self.barrier = min(self.barrier, min(positions, default=NO_BARRIER))

    def end_return(self, positions: Collection[QueuePosition]) -> None:
        """They are committed."""
        self.coming_back.difference_update(positions)
        self.barrier = min(self.coming_back, default=NO_BARRIER)

    def is_free(self, position: QueuePosition) -> bool:
        """Whether the message is there and nobody's."""
        return self.is_nobodys(position) and position in self.queue

    def is_nobodys(self, position: QueuePosition) -> bool:
        """The same of a message that is there."""
        return (
            position not in self.held
            and position not in self.queue.locks
            and position not in self.coming_back
            and position not in self.leaving
        )


class QueueView:
    """The main view, which all consumers without one of their own share. Lives as long as the queue."""

    __slots__ = (
        "back",
        "cursor",
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
        self.hands = hands
        self.cursor = 0
        """The highest position that was looked at."""
        self.back: list[QueuePosition] = []
        """Heap of positions up to the cursor that may be offered again; may name some that left meanwhile, or one twice."""
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
        self.is_gone = False
        """Nobody looks through it any more."""

    @property
    def queue(self) -> Queue:
        return self.hands.queue

    @property
    def is_hungry(self) -> bool:
        """Whether it waits for bodies, or soon will."""
        return self.is_stalled or (self.read_from > 0 and self.cursor >= self.read_from)

    def take(self, limit: int, bytes_max: int, end: int, look_max: int) -> Offered:
        """The next messages below position `end` that are free, at most `limit`, cut behind `bytes_max`.

        `look_max` bounds what a view looks at that does not offer everything. The caller holds what it is given.
        """
        taken: Offered = []
        self.is_stalled = self.is_barred = False
        self._take(taken, limit, bytes_max, end)
        self.looked = len(taken)
        self.is_at_end = not (taken or self.is_stalled or self.is_barred)
        return taken

    def _take(self, taken: Offered, limit: int, bytes_max: int, end: int) -> None:
        hands, queue, back = self.hands, self.queue, self.back
        locks, leaving, barrier = queue.locks, hands.leaving, hands.barrier
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
            held = hands.held if self.cursor < hands.held_to else _NOTHING
            found = queue.positions(self.cursor + 1, limit - len(taken))
            messages = queue.messages(found)
            if (
                len(messages) >= MANY
                and not (locks or held or leaving)
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
                if position not in locks and position not in held and position not in leaving:
                    taken.append((position, message))
                    size += len(message.body) + len(message.properties)
            if len(messages) < len(found):
                position = found[len(messages)]
                if position >= barrier:
                    self.is_barred = True
                    break
                if position >= end:
                    break
                if position not in locks and position not in held and position not in leaving:
                    self.is_stalled = True
                    break
                self.cursor = position
            elif not found:
                break

    def come_back(self, positions: Iterable[QueuePosition]) -> None:
        """These may be offered again; they take their old place in the queue."""
        for position in positions:
            if position <= self.cursor:
                heappush(self.back, position)
        if len(self.back) > 2 * self.queue.length + SLACK:
            self.back = sorted(self.queue.present(set(self.back)))

    def ahead(self) -> dict[MessageId, QueuePosition]:
        """What will be offered next, in that order, as far as it is worth looking."""
        back = self.queue.present(nsmallest(LOOK_AHEAD, self.back))
        ahead = self.queue.positions(self.cursor + 1, LOOK_AHEAD)
        free = [position for position in dict.fromkeys((*back, *ahead)) if self.hands.is_nobodys(position)]
        return dict(zip(self.queue.message_ids(free), free, strict=True))
