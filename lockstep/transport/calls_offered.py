"""Calls that a connection offers to its client at a time.

Law: calls that stay, as sessions do, take no room from those that come and go: more are offered in their place, up to a limit.
"""

from collections.abc import Mapping

from lockstep.transport.stream import Stream

CALLS_OFFERED = 512
"""At a time on one connection, at first; stock clients keep the others waiting, in their order. So many keep a broker busy, and a
client with thousands at once waits at its own side, where that costs nobody anything. Those that stay are offered
again, below: they are not worked at."""
CALLS_FREE_MIN = 384
"""Of those offered, so many are to be left for calls that come and go: whoever has hundreds of sessions on a connection, or calls
that wait for a message, has room for others beside them."""
CALLS_OFFERED_STEP = 128
"""So many more are offered then."""
KEPT_MAX = 4096
"""Calls that stay on one connection: six times the sessions that any client was seen to have. Each has windows and a handler."""


class CallsOffered:
    """Lives as long as its connection, of a server."""

    def __init__(self) -> None:
        self.count = CALLS_OFFERED
        self._kept = 0
        """Calls that are to stay."""
        self._old_below = 0
        """Streams with a lower number were there at the last round of keepalive."""

    def keep(self, stream: Stream) -> bool:
        """The call is to stay; False: as many do as may."""
        if self._kept >= KEPT_MAX:
            return False
        stream.is_kept = True
        self._kept += 1
        return True

    def keep_old(self, streams: Mapping[int, Stream], highest: int) -> None:
        """Calls that wait since the last round at least keep no others waiting. `highest`: of all numbers so far."""
        if self.count - len(streams) < CALLS_FREE_MIN:
            for number, stream in streams.items():
                if not stream.is_kept and number < self._old_below and not self.keep(stream):
                    break
        self._old_below = highest

    def forget(self, stream: Stream) -> None:
        """The call is over."""
        self._kept -= stream.is_kept

    def grow(self) -> bool:
        """Offer more, once those that stay have taken too many; whether it was done."""
        count = self.count
        while count - self._kept < CALLS_FREE_MIN:
            count += CALLS_OFFERED_STEP
        has_grown = count != self.count
        self.count = count
        return has_grown
