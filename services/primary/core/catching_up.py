"""Catching up: the frames that were cut while a newcomer was sent everything, on their way behind it (R8).

Law: they leave in order, in turns, each when most of what left before it is durable over there; so a network, a newcomer's memory
and its store carry a few megabytes at a time, however long the snapshot took. New frames join at the end.
"""

from collections import deque

from lockstep.core.frames import Frame
from lockstep.core.ids import LogIndex
from lockstep.core.replication import FRAMES_IN_ONE


class CatchingUp:
    """Of one subscription; lives from its whole snapshot's first part until nothing waits behind it."""

    def __init__(self) -> None:
        self._waiting: deque[Frame] = deque()
        self._on_way: deque[tuple[LogIndex, int]] = deque()
        """(last index, bytes) of each turn that is not known to be durable over there."""
        self._on_way_bytes = 0
        self.bytes = 0
        """Of what waits."""
        self.sent = LogIndex(0)
        """Up to where the newcomer was sent the log, the snapshot included; 0 while a part of that is lacking."""

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._waiting)

    def put(self, frame: Frame) -> None:
        self._waiting.append(frame)
        self.bytes += _size(frame)

    def turn(self, acknowledged: LogIndex, turn_bytes: int, on_way_bytes_max: int) -> list[Frame]:
        """What leaves now, about `turn_bytes`, and no more frames than a message has; nothing while `on_way_bytes_max` are on
        their way behind `acknowledged`.
        """
        while self._on_way and self._on_way[0][0] <= acknowledged:
            self._on_way_bytes -= self._on_way.popleft()[1]
        frames: list[Frame] = []
        size = 0
        most = min(len(self._waiting), FRAMES_IN_ONE)
        while len(frames) < most and size < turn_bytes and self._on_way_bytes + size < on_way_bytes_max:
            frames.append(self._waiting.popleft())
            size += _size(frames[-1])
        if frames:
            self._on_way.append((frames[-1].header.last, size))
            self._on_way_bytes += size
            self.bytes -= size
            self.sent = frames[-1].header.last
        return frames

    def rest(self) -> list[Frame]:
        """All that waits, at once: the reign ends for another."""
        frames = list(self._waiting)
        self._waiting.clear()
        self.bytes = 0
        return frames


def _size(frame: Frame) -> int:
    return len(frame.durable) + len(frame.transient)
