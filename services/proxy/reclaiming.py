"""Deliveries that clients still have and that are void: their messages are delivered again, and they are these.

Law: a message that comes again is not sent again to a client that has it and has not said what becomes of it; the delivery
that the client has is from then on the new one (DESIGN T6: the session holds it). What comes to another worker, or not at
all, is void: what the client says of it is refused.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.server_messages import DeliveredMessage

VOIDED_AT_ONCE = 2_000
"""Deliveries that are looked at between two places where what is void may wait: a millisecond's work."""


def voided_cost(count: int) -> int:
    """Of looking at so many, in microseconds."""
    return 2 * count // 5


class Holder(Protocol):
    """Whose client has deliveries."""

    def reclaim(self, epoch: Epoch, position: QueuePosition) -> bool: ...
    def void(self, epoch: Epoch, positions: Collection[QueuePosition]) -> Iterator[int]: ...


class Reclaims:
    """Lives as long as its worker, whose session holds what all of its links deliver."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, QueuePosition], Holder] = {}
        self._reclaimed: dict[tuple[str, QueuePosition], Holder] = {}
        """Who has what came again: the session may have it for another link."""

    def __len__(self) -> int:
        return len(self._holders)

    def expect(self, queue: str, positions: Iterable[QueuePosition], holder: Holder) -> None:
        """The holder's client has these, and they are void."""
        for position in positions:
            self._holders[queue, position] = holder

    def forget(self, queue: str, positions: Iterable[QueuePosition], holder: Holder) -> None:
        """It has not any more."""
        for position in positions:
            for known in self._holders, self._reclaimed:
                if known.get((queue, position)) is holder:
                    del known[queue, position]

    def void(self, queue: str, epoch: Epoch, positions: Sequence[QueuePosition]) -> Iterator[int]:
        """What came again is void once more: tells its holders, of whichever link the session says so. In pieces."""
        voided: dict[Holder, set[QueuePosition]] = {}
        for first in range(0, len(positions) if self._reclaimed else 0, VOIDED_AT_ONCE):
            some = positions[first : first + VOIDED_AT_ONCE]
            for position in some:
                if (holder := self._reclaimed.pop((queue, position), None)) is not None:
                    voided.setdefault(holder, set()).add(position)
            yield voided_cost(len(some))
        for holder, its_positions in voided.items():
            yield from holder.void(epoch, its_positions)

    def take(
        self, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]
    ) -> tuple[DeliveredMessage, ...]:
        """Of messages that have arrived those that no client has already."""
        if not self._holders:
            return messages
        fresh = []
        for message in messages:
            holder = self._holders.pop((queue, message.position), None)
            if holder is not None and holder.reclaim(epoch, message.position):
                self._reclaimed[queue, message.position] = holder
            else:
                fresh.append(message)
        return tuple(fresh)
