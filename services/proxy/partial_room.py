"""Room for messages of which clients have sent a part and not the rest: what a worker holds of them has a limit.

Law: a connection has no more than it may by itself, nor more of its worker's room than it leaves, but some of that in any case.
The link on which more comes ends. Not to read its connection would not do: nobody else can end what that has begun, so where the
room is full of beginnings all would wait for ever.
"""

from services.proxy.worker_room import HeldInRoom

ALWAYS_BYTES = 64 * 1024
"""What a connection may have of its worker's room in any case: a message in some frames of a client that has small ones."""


class PartialRoom(HeldInRoom):
    """Of one connection: for messages that have not come whole."""

    @property
    def exceeded(self) -> str:
        """Which limit it is above; "": none."""
        if self.held > self._bytes_max:
            return "partial_bytes_max"
        if self.held > self._shared.left and self.held > ALWAYS_BYTES:
            return "partials_bytes_max"
        return ""
