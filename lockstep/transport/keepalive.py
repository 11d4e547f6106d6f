"""Keepalive of a connection: whether the other side still lives, as far as bytes tell.

Law: a side that says nothing for a round is asked, and given up after one more in which nothing came. A slow link is not silence:
while bytes that were sent before the question still pass, the question has not got through. And who was late himself, or held
back what came, has not looked.
"""

import enum

from lockstep.transport.stream import MOVED_BYTES

KEEPALIVE_SECONDS = 2.0
"""Silence behind which the other side is asked for a sign of life, and behind which it is given up, once more."""
KEEPALIVE_SECONDS_RARE = 300.0
"""The same for a server that says it is asked too often: those of gRPC's libraries allow that, unless they are told otherwise."""


class Finding(enum.Enum):
    """What a round found."""

    ALIVE = enum.auto()
    """As far as is known."""
    TO_ASK = enum.auto()
    """Send a ping."""
    SILENT = enum.auto()
    """It was asked, and nothing came."""


class Keepalive:
    """Lives as long as its connection, which tells it of all that comes in and makes a round when one is due."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: of a round."""
        self.seconds = seconds
        self.due_at = 0.0
        """Of the next round, in the loop's time."""
        self.has_heard = True
        """Something came since the last round."""
        self._is_asked = False
        self._passed = 0
        """Bytes that had passed at the last round."""
        self._asked_at = 0
        """Bytes that had been sent when the other side was asked last."""

    def is_late(self, now: float) -> bool:
        """Whether this side comes to its round, at `now` in the loop's time, so late that it may not have heard what came."""
        return now - self.due_at > self.seconds / 4

    def look(self, has_looked: bool, sent_bytes: int, passed_bytes: int) -> Finding:
        """A round is due. `has_looked`: at what came. `passed_bytes`: of those sent, what the other side's kernel has."""
        passed_before, self._passed = self._passed, passed_bytes
        is_moving = passed_before < self._asked_at and passed_bytes - passed_before >= MOVED_BYTES
        has_heard = self.has_heard or not has_looked
        self.has_heard = False
        if has_heard:
            self._is_asked = False
        elif not self._is_asked:
            self._is_asked, self._asked_at = True, sent_bytes
            return Finding.TO_ASK
        elif not is_moving:
            return Finding.SILENT
        return Finding.ALIVE
