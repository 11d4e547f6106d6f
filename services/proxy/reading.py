"""Whether a client is read: not while anybody on its connection has enough for now.

Law: what a client sends meanwhile stays in the kernel, which makes it wait; it is read again when the last of them has room.
"""

from services.proxy.surroundings import Wire


class Reading:
    """Lives as long as its connection. Whoever pauses it resumes it, once."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._pauses = 0

    @property
    def is_paused(self) -> bool:
        """The client is not read."""
        return self._pauses > 0

    def pause_reading(self) -> None:
        self._pauses += 1
        if self._pauses == 1:
            self._wire.pause_reading()

    def resume_reading(self) -> None:
        self._pauses -= 1
        if not self._pauses:
            self._wire.resume_reading()
