"""Room for messages to a client that reads slower than its credit says.

Law: what waits to be written has a limit; behind it the links hold their messages until they are told that there is room.
"""

from collections.abc import Iterator
from typing import Protocol

from services.proxy.engine_path import path
from services.proxy.engine_words import Handle
from services.proxy.steps import go_on
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
        self._to_tell: dict[HeldUp, None] = {}
        """Those of them that are told now, as many in a step as there is time for."""
        self._is_closed = False

    def close(self) -> None:
        """Nothing more is said to the client: there is no room any more."""
        self._is_closed = True

    def left(self, link: Handle) -> int:
        """Bytes of messages that may wait to be written to the client, beside those of the link's session that do."""
        if self._is_closed:
            return 0
        return self._bytes_max - self._wire.waiting_bytes() - path.unsent_bytes(link)

    def hold_up(self, link: HeldUp) -> None:
        """There is no room for what it has to send: it is told when there may be."""
        self._held_up[link] = None

    def forget(self, link: HeldUp) -> None:
        """It is gone."""
        self._held_up.pop(link, None)
        self._to_tell.pop(link, None)

    def resume(self) -> bool:
        """There may be room again. Answers whether some are still to be told of it, in another step."""
        if self._is_closed:
            return False
        if not self._to_tell:
            if not self._held_up:
                return False
            self._to_tell, self._held_up = self._held_up, {}
        go_on(self._tell())
        return bool(self._to_tell)

    def _tell(self) -> Iterator[None]:
        while self._to_tell:
            link = next(iter(self._to_tell))
            del self._to_tell[link]
            link.resume()
            yield
