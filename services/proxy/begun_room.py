"""Room for what clients have begun and not ended: their sessions and links, and all that they have said of these.

Law: a connection has no more of its worker's room than it leaves, but some of it in any case. One that begins more ends: of what
it has begun nothing could be taken from it otherwise. The engine keeps fields that nobody reads, in lists and maps that take up
to 75 times as much memory as they have bytes; so what is long counts as that.
"""

from services.proxy.worker_room import WorkerRoom

SESSION_BYTES, LINK_BYTES = 4_096, 6_144
"""Of one whose frame is short. Measured: 4,100; 4,200 of a link on which the client sends, 6,100 where it receives."""
SHORT_BYTES = 1_024
"""Of a frame that takes no more than that."""
LONG_FACTOR = 75
"""What each byte more counts. Measured: 17 for a filter with texts of 20 characters, some 75 where each byte is a value."""
ALWAYS_BYTES = 64 * 1024
"""What a connection may have in any case: a session with ten links."""


def bytes_of(frame_bytes: int, short_bytes: int) -> int:
    """What an open, begin or attach of so many bytes counts. `short_bytes`: where its frame is short."""
    return short_bytes + LONG_FACTOR * max(frame_bytes - SHORT_BYTES, 0)


class BegunRoom:
    """Lives as long as its connection."""

    def __init__(self, shared: WorkerRoom) -> None:
        self.held = 0
        """Bytes."""
        self._shared = shared

    def hold(self, size: int) -> None:
        """The client has begun so much in all, and not ended it."""
        self._shared.left += self.held - size
        self.held = size

    @property
    def is_over(self) -> bool:
        """Whether it is more than it may be."""
        return self.held > self._shared.left and self.held > ALWAYS_BYTES
