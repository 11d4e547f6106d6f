"""Room for messages that came from the brokers and that their clients have not taken: what a worker holds of them has a limit.

Law: a connection holds what it may, over all of its links, and no more than it leaves of the worker's room; but where it holds
nothing it may always hold one message, so nobody waits for others for ever. What comes beyond that is not kept: it goes back to
its queue, and is asked for again when there is room. Credit cannot do that: it is given to each link before anybody knows how
much there is on it, and how large it is.
"""

from services.proxy.worker_room import HeldInRoom, WorkerRoom


class DeliveryRoom(HeldInRoom):
    """Of one connection, and lives as long as it. It has three: for messages that wait; for the rest of those of which its client
    has a part, which cannot go back, and others do not wait for them; and for those that its client has not settled."""

    def __init__(self, shared: WorkerRoom, bytes_max: int, always_bytes: int = 0) -> None:
        """`always_bytes`: what it may have however little others leave."""
        super().__init__(shared, bytes_max)
        self._always_bytes = always_bytes

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be asked for."""
        is_much = self.held >= self._bytes_max or self.held >= self._shared.left
        return is_much and self.held > self._always_bytes

    @property
    def is_over(self) -> bool:
        """Whether it holds more than it may."""
        return self.held > self._bytes_max or self.held > self._shared.left
