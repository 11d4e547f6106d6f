"""Room for messages of which clients have sent a part and not the rest: what a worker holds of them has a limit.

Law: a connection has no more than it may by itself, nor more of its worker's room than it leaves, but some of that in any case.
The link on which more comes ends. Not to read its connection would not do: nobody else can end what that has begun, so where the
room is full of beginnings all would wait for ever.
"""

from services.proxy.worker_room import WorkerRoom

ALWAYS_BYTES = 64 * 1024
"""What a connection may have of its worker's room in any case: a message in some frames of a client that has small ones."""


class PartialRoom:
    """Lives as long as its connection."""

    def __init__(self, shared: WorkerRoom, bytes_max: int) -> None:
        """`bytes_max`: of this connection by itself."""
        self.held = 0
        """Bytes."""
        self._shared = shared
        self._bytes_max = bytes_max

    def take(self, size: int) -> None:
        """So many bytes more of unfinished messages came."""
        self.held += size
        self._shared.left -= size

    def give_back(self, size: int) -> None:
        """So many are of messages that have come whole, or will not."""
        self.held -= size
        self._shared.left += size

    @property
    def exceeded(self) -> str:
        """Which limit it is above; "": none."""
        if self.held > self._bytes_max:
            return "partial_bytes_max"
        if self.held > self._shared.left and self.held > ALWAYS_BYTES:
            return "partials_bytes_max"
        return ""
