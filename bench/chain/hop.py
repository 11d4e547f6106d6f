"""What all hops have: an inbox with bytes, and turns in which they take them.

Law: a hop takes all that has come for it in one turn, as a process does that many write to.
"""

from collections import deque
from collections.abc import Callable

from lockstep.core.ids import LogIndex, SetName
from lockstep.core.log_copy import LogCopy
from lockstep.core.set_state import SetState
from lockstep.runtime.wire import Serialized
from services.backup.core.settings import BackupSettings

SET = SetName("chain")
Take = Callable[[bytes], None]
"""What a hop does with the bytes of one message."""


def empty_copy() -> LogCopy:
    """What a broker's memory of a new set is."""
    settings = BackupSettings()
    return LogCopy(SetState(SET), LogIndex(0), settings.retained_bytes_max, settings.resident_body_bytes_max)


class Hop:
    """Lives as long as its chain. `name` is the kind of process whose work it does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inbox: deque[tuple[Take, bytes]] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._inbox)

    def post(self, take: Take, data: Serialized) -> None:
        """`take` gets the bytes in the next turn."""
        self._inbox.append((take, data if isinstance(data, bytes) else b"".join(data)))

    def turn(self) -> None:
        """All that has come, and what it causes."""
        while self._inbox:
            take, data = self._inbox.popleft()
            take(data)
        self.end_turn()

    def end_turn(self) -> None:
        """What is done once for all that came together."""

    def aside(self) -> None:
        """What is done behind a turn and not counted as its work."""
