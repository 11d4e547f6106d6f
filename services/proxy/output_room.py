"""Room for messages to a client that reads slower than its credit says.

Law: what waits to be written has a limit; behind it the links hold their messages until they are told that there is room.
"""

from typing import Protocol

from services.proxy.engine_path import path
from services.proxy.engine_words import Handle
from services.proxy.surroundings import Wire


class HeldUp(Protocol):
    """A link that has something to send."""

    def resume(self) -> None: ...


class OutputRoom:
    """Lives as long as its connection."""

    def __init__(self, wire: Wire, bytes_max: int) -> None:
        self._wire = wire
        self._bytes_max = bytes_max
        self._held_up: dict[HeldUp, None] = {}

    def left(self, link: Handle) -> int:
        """Bytes of messages that may wait to be written to the client, beside those of the link's session that do."""
        return self._bytes_max - self._wire.waiting_bytes() - path.unsent_bytes(link)

    def hold_up(self, link: HeldUp) -> None:
        """There is no room for what it has to send: it is told when there may be."""
        self._held_up[link] = None

    def forget(self, link: HeldUp) -> None:
        """It is gone."""
        self._held_up.pop(link, None)

    def resume(self) -> None:
        """There may be room again."""
        if self._held_up:
            held_up, self._held_up = self._held_up, {}
            for link in held_up:
                link.resume()
