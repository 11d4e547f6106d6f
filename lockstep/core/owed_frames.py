"""Frames that a store lacks and whoever writes to it has in memory, on their way there again.

Law: they leave in order, some in each request, and each request when what left before it is durable: there may be hundreds of
thousands, and no step takes longer for that.
"""

from collections import deque

from lockstep.core.frames import Frame
from lockstep.core.ids import LogIndex
from lockstep.core.replication import FRAMES_IN_ONE

REQUEST_BYTES = 1 << 20
"""In one request, about: one sync makes it durable."""


class OwedFrames:
    """Lives from the opening of a store that lacks some until the last has left."""

    def __init__(self, frames: deque[Frame]) -> None:
        """`frames`: nobody else's from now on."""
        self._waiting = frames
        self.sent = LogIndex(0)
        """The last index of what has left; 0: nothing."""

    def __bool__(self) -> bool:
        """Whether any has not left."""
        return bool(self._waiting)

    def put(self, frame: Frame) -> None:
        """One more, behind them all."""
        self._waiting.append(frame)

    def request(self, durable: LogIndex) -> tuple[bytes, ...]:
        """The durable parts that leave now; none while the store, which has all up to `durable`, lacks what left before."""
        if durable < self.sent:
            return ()
        parts: list[bytes] = []
        size, count = 0, min(len(self._waiting), FRAMES_IN_ONE)
        while len(parts) < count and size < REQUEST_BYTES:
            frame = self._waiting.popleft()
            parts.append(frame.durable)
            size += len(frame.durable)
            self.sent = frame.header.last
        return tuple(parts)
