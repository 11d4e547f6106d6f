"""Room that a worker has for something of all its connections, in bytes: each of these takes of it what it holds.

Law: what is left is one number, which says by itself how much a connection may have; nobody keeps a list of who has what.
"""


class WorkerRoom:
    """Lives as long as its worker, whose connections share it."""

    def __init__(self, bytes_max: int) -> None:
        self.left = bytes_max
        """Negative: connections hold what each may hold however little others leave."""
