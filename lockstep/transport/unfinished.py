"""Memory for messages of which only a part is here.

Law: a connection has a share of it and the server has all of it, whoever sends; who sends slowly holds it for a while only. A
message that is the only one of its connection may be as big as its method allows.
"""

from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from lockstep.transport.intake import Refused
    from lockstep.transport.stream import Stream

CONNECTION_UNFINISHED_BYTES_MAX = 64 << 20
"""Of all messages that have begun on one connection: the windows of sixteen calls."""
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
        self._of_server.changed(self, change)
        if self.bytes > CONNECTION_UNFINISHED_BYTES_MAX and len(self._sizes) > 1:
            text = f"more than {CONNECTION_UNFINISHED_BYTES_MAX} bytes of unfinished messages have come, of one client"
            self._of_server.refused("connection_unfinished_bytes_max", text)
            _refuse(max(self._sizes, key=self._sizes.__getitem__), text)

    def refuse_all(self, text: str) -> None:
        for stream in list(self._sizes):
            _refuse(stream, text)

    def refuse_slow(self, now: float) -> None:
        """Those that have come too slowly. For a look now and then, by who has read all that there was."""
        for stream, size in list(self._sizes.items()):
            if stream.has_unread:
                self._begun[stream] = now  # Its end may wait for the reader.
            elif now - self._begun[stream] > self._of_server.slow_seconds + size / SLOW_BYTES_A_SECOND:
                text = "a message comes too slowly"
                self._of_server.refused("slow_messages", text)
                _refuse(stream, text)


def _refuse(stream: "Stream", text: str) -> None:
    stream.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
