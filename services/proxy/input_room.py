"""Room for messages of clients that the brokers have not answered yet: what a worker holds of them has a limit.

Law: a connection that holds more of a worker's room than it leaves is not read until it holds half of what is left, or nothing.
So however many send to a set that has no primary, room is left for the next one, and where it is all used each brings a message
or what its socket gives at once. Credit cannot do that: it counts messages, and is given before their sizes are known (AMQP 1.0,
2.6.7). Who is not read waits for answers to his own messages alone, and each gets one, if only that nobody can tell: so nobody
waits for ever, nor for what he has still to say.
"""

from typing import Protocol

from services.proxy.worker_room import WorkerRoom


class Wire(Protocol):
    """What carries the bytes of the connection."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class InputRoom:
    """Of one connection; lives until the last of its messages is answered."""

    def __init__(self, wire: Wire, shared: WorkerRoom) -> None:
        self.is_paused = False
        """The connection is not read."""
        self._wire = wire
        self._shared = shared
        self._held = 0
        """Bytes; while it is paused there are some."""

    def take(self, size: int) -> None:
        """So many bytes (not 0) were handed on, or wait for that."""
        self._held += size
        self._shared.left -= size
        if self._held > self._shared.left and not self.is_paused:
            self.is_paused = True
            self._wire.pause_reading()

    def give_back(self, size: int) -> None:
        """So many are answered."""
        self._held -= size
        self._shared.left += size
        if self.is_paused and (2 * self._held <= self._shared.left or not self._held):
            self.is_paused = False
            self._wire.resume_reading()
