"""Room that a worker has for something of all its connections, in bytes: each of these takes of it what it holds.

Law: what is left is one number, which says by itself how much a connection may have; nobody keeps a list of who has what.
"""


class WorkerRoom:
    """Lives as long as its worker, whose connections share it."""

    def __init__(self, bytes_max: int) -> None:
        self.left = bytes_max
        """Negative: connections hold what each may hold however little others leave."""


class HeldInRoom:
    """What a connection holds of it; lives as long as that."""

    def __init__(self, shared: WorkerRoom, bytes_max: int) -> None:
        """`bytes_max`: of this connection by itself."""
        self.held = 0
        """Bytes."""
        self._shared = shared
        self._bytes_max = bytes_max

    def take(self, size: int) -> None:
        """So many bytes more are held."""
        self.held += size
        self._shared.left -= size

    def give_back(self, size: int) -> None:
        """So many are not any more."""
        self.held -= size
        self._shared.left += size
