"""Deliveries that clients still have of an epoch that is over: the new primary delivers their messages again, and they are these.

Law: a message that comes again is not sent again to a client that has it and has not said what becomes of it; the delivery
that the client has is from then on the new one (DESIGN T6: the session holds it). What comes to another worker, or not at
all, is void: what the client says of it is refused.
"""

from collections.abc import Iterable
from typing import Protocol

from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.server_messages import DeliveredMessage


class Holder(Protocol):
    """Whose client has deliveries."""

    def reclaim(self, epoch: Epoch, position: QueuePosition) -> bool: ...


class Reclaims:
    """Lives as long as its worker, whose session holds what all of its links deliver."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, QueuePosition], Holder] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def expect(self, queue: str, positions: Iterable[QueuePosition], holder: Holder) -> None:
        """The holder's client has these, of an epoch that is over."""
        for position in positions:
            self._holders[queue, position] = holder

    def forget(self, queue: str, positions: Iterable[QueuePosition], holder: Holder) -> None:
        """It has not any more."""
        for position in positions:
            if self._holders.get((queue, position)) is holder:
                del self._holders[queue, position]

    def take(
        self, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]
    ) -> tuple[DeliveredMessage, ...]:
        """Of messages that have arrived those that no client has already."""
        if not self._holders:
            return messages
        fresh = []
        for message in messages:
            holder = self._holders.pop((queue, message.position), None)
            if holder is None or not holder.reclaim(epoch, message.position):
                fresh.append(message)
        return tuple(fresh)
