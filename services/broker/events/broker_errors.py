"""Why nobody gives what a set's brokers were asked for, one after the other.

Law: that it is gone is believed when every broker in sync has said so: one that was not heard may have it. Learners, and others
that hold the set no more, do not matter then.
"""

from collections.abc import Collection

from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import BrokerId, SetName


class BrokerErrors:
    """Of one question."""

    def __init__(self, set_name: SetName, in_sync: Collection[BrokerId]) -> None:
        self._in_sync = in_sync
        self._unheard: LockstepError | None = None
        self._gone: LockstepError | None = None
        self._last: LockstepError = Rejected(
            ErrorCode.UNAVAILABLE, f"nobody serves {set_name!r}", set_name=set_name
        )

    def add(self, broker: BrokerId, error: LockstepError) -> None:
        """What a broker said, or why it said nothing. Raises it if nobody can know better: an offset that is not in the log of a
        broker in sync is in none.
        """
        if error.code is ErrorCode.OUT_OF_RANGE:
            self._gone = self._gone or error
        elif broker not in self._in_sync:
            self._last = error
        elif error.code is ErrorCode.WRONG_EPOCH:
            raise error
        else:
            self._unheard = self._unheard or error

    def conclusion(self) -> LockstepError:
        """What to raise when all were asked."""
        return self._unheard or self._gone or self._last
