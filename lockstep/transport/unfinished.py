"""Memory for messages of which only a part is here.

Law: what a window has given may come, and is kept. A message that is bigger than its window needs more room before it is whole:
the one of its connection that came first always gets it, up to what its method allows; the others as far as the share of their
connection goes, and wait then. So every message becomes whole, however many come at once, and who sends slowly holds the others
up for a while only. The server has all of it, whoever sends; beyond that it refuses.
"""

from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from lockstep.transport.intake import Refused
    from lockstep.transport.stream import Stream

CONNECTION_EARLY_BYTES_MAX = 32 << 20
"""Beyond their windows, of all messages of one connection; the one that came first may have more."""
UNFINISHED_BYTES_MAX = 256 << 20
"""Of all connections of a server: a small part of a broker's memory, and several of the biggest messages."""
UNFINISHED_BYTES_LEFT = UNFINISHED_BYTES_MAX // 8 * 7
"""So many are left when there were too many: the next look for those who have most is far away."""
UNCOUNTED_BYTES_MAX = 4 << 10
"""So little of a message is not counted: nearly all messages are smaller, or whole at once."""
SLOW_SECONDS = 60.0
"""So long any message may take; this long may a link be gone while its connection lives."""
SLOW_BYTES_A_SECOND = 16 << 10
"""And so much of it has to come from then on: little enough for a slow link that many share."""


class Unfinished:
    """Of one server; lives as long as that."""

    def __init__(self, refused: "Refused") -> None:
        self.refused = refused
        self.slow_seconds = SLOW_SECONDS
        self.bytes = 0
        self._connections: dict[ConnectionUnfinished, None] = {}

    def of_connection(self) -> "ConnectionUnfinished":
        return ConnectionUnfinished(self)

    def changed(self, connection: "ConnectionUnfinished", size: int) -> None:
        """By so many bytes, which the connection has counted already."""
        self.bytes += size
        if connection.bytes:
            self._connections[connection] = None
        else:
            self._connections.pop(connection, None)
        if self.bytes > UNFINISHED_BYTES_MAX:
            self._refuse()

    def _refuse(self) -> None:
        """Messages of those connections that have most."""
        text = f"more than {UNFINISHED_BYTES_MAX} bytes of unfinished messages have come, of all clients"
        self.refused("unfinished_bytes_max", text)
        for connection in sorted(self._connections, key=lambda one: one.bytes, reverse=True):
            if self.bytes <= UNFINISHED_BYTES_LEFT:
                break
            connection.refuse_all(text)


class ConnectionUnfinished:
    """Of one connection; lives as long as that."""

    def __init__(self, of_server: Unfinished) -> None:
        self._of_server = of_server
        self.bytes = 0
        self._sizes: dict[Stream, int] = {}
        self._begun: dict[Stream, float] = {}
        self._early: dict[Stream, int] = {}
        """What each message has got beyond its window, or 0: it has asked. The one that asked first is the first."""
        self._early_bytes = 0
        self._held: dict[Stream, None] = {}
        """Those that were given nothing when they asked, in that order."""

    def count(self, stream: "Stream", size: int, now: float) -> None:
        """So much is here of a message that is not whole; 0: it is whole, or given up. `now`: seconds."""
        change = size - self._sizes.get(stream, 0)
        if size:
            self._sizes[stream] = size
            self._begun.setdefault(stream, now)
        else:
            self._sizes.pop(stream, None)
            self._begun.pop(stream, None)
        self.bytes += change
        if not size and stream in self._early:
            self._early_bytes -= self._early.pop(stream)
            self._held.pop(stream, None)
            self._go_on()
        self._of_server.changed(self, change)

    def may_have(self, stream: "Stream", size: int) -> bool:
        """Whether a message that is not whole gets room for so many bytes more. If so, they count as given; if not, its stream is
        asked to `give_back_early` again once there is some.
        """
        given = self._early.setdefault(stream, 0)
        if self._early_bytes + size > CONNECTION_EARLY_BYTES_MAX and stream is not next(iter(self._early)):
            self._held[stream] = None
            return False
        self._held.pop(stream, None)
        self._early[stream] = given + size
        self._early_bytes += size
        return True

    def _go_on(self) -> None:
        """One message less: the first goes on in any case, and of the others as many as there is room for now."""
        first = next(iter(self._early), None)
        if first is not None and first in self._held:
            first.give_back_early()
        while self._held:
            stream = next(iter(self._held))
            stream.give_back_early()
            if stream in self._held:
                break

    def refuse_all(self, text: str) -> None:
        for stream in list(self._sizes):
            _refuse(stream, text)

    def refuse_slow(self, now: float) -> None:
        """Those that have come too slowly. For a look now and then, by who has read all that there was."""
        for stream, size in list(self._sizes.items()):
            if stream.has_unread or stream in self._held:
                self._begun[stream] = now  # Its end may wait for the reader, or for room.
            elif now - self._begun[stream] > self._of_server.slow_seconds + size / SLOW_BYTES_A_SECOND:
                text = "a message comes too slowly"
                self._of_server.refused("slow_messages", text)
                _refuse(stream, text)


def _refuse(stream: "Stream", text: str) -> None:
    stream.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
