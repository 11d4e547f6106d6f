"""Room for messages to clients that read slower than their credit says: what a worker holds of them has a limit.

Law: what the engine holds for a connection, over all of its sessions, and what waits for its socket are one sum. A session has no
more of it than it leaves, nor has a connection of its worker's room; but some of that a connection may always have. So whoever
takes what he was sent is sent more, however much is held for others, and whoever is held up waits for his own client to take
some. Behind the limits links keep their messages until they are told that there is room. A connection ends in which a link has
no room for what will never be sent: it would wait for ever.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from services.proxy.engine_path import path
from services.proxy.engine_words import Handle
from services.proxy.settings import MESSAGE_BYTES, ProxyLimits
from services.proxy.steps import go_on
from services.proxy.worker_room import WorkerRoom

ALWAYS_BYTES = 64 * 1024
"""What a connection may have of its worker's room in any case: enough to keep a client busy that takes it at once, and about what
the connection itself takes."""


class Wire(Protocol):
    """What carries the bytes of the connection."""

    def waiting_bytes(self) -> int: ...


class Sending(Protocol):
    """A link that has something to send."""

    @property
    def session(self) -> Handle: ...
    @property
    def unsent(self) -> int: ...
    @property
    def leaves_unsent(self) -> bool: ...
    def resume(self) -> None: ...


class OutputRoom:
    """Lives as long as its connection."""

    def __init__(
        self, wire: Wire, shared: WorkerRoom, limits: ProxyLimits, refused: Callable[[str, str], None]
    ) -> None:
        """`refused`: is told which limit holds its links up, and a text about that."""
        self.held = 0
        """Bytes, as they were at the last look, and what the engine was given since."""
        self._wire = wire
        self._shared = shared
        self._limits = limits
        self._refused = refused
        self._waiting = 0
        """Those of them that wait for the socket."""
        self._sessions: dict[Handle, int] = {}
        """The others, by the sessions that have any: the client's window is closed, or the engine was not asked for output."""
        self._links: dict[Handle, dict[Sending, None]] = {}
        """Of these sessions, those whose messages they may be."""
        self._left: dict[Handle, int] = {}
        """Of these sessions, how many messages links have left that are gone: they stay until nothing is unsent."""
        self._held_up: dict[Sending, None] = {}
        self._to_tell: dict[Sending, None] = {}
        """Those of them that are told now, as many in a step as there is time for."""
        self._is_closed = False

    def close(self) -> None:
        """Nothing more is said to the client: there is no room any more."""
        self._is_closed = True

    def release(self) -> None:
        """Behind `close`: the engine and the wire are gone, with all that they had."""
        for table in self._sessions, self._links, self._left:
            table.clear()
        self._hold(0)

    def left(self, link: Handle) -> int:
        """Bytes of messages that the engine may be given on a link."""
        if self._is_closed:
            return 0
        waiting = self._wire.waiting_bytes()
        if waiting != self._waiting:
            self._hold(self.held + waiting - self._waiting)
            self._waiting = waiting
        limits, held, mine = self._limits, self.held, self._sessions.get(path.session_of(link), 0)
        of_session = limits.output_bytes_max - waiting - mine
        of_connection = (limits.connection_output_bytes_max - held - mine) // 2
        of_worker = max((self._shared.left - held) // 2, ALWAYS_BYTES - held)
        room = min(of_session, of_connection, of_worker)
        if room <= 0 < of_session:
            limit = "connection_output_bytes_max" if of_connection <= 0 else "outputs_bytes_max"
            self._refused(limit, f"{held} bytes of messages are sent to a client and not taken")
        return room

    def given(self, link: Sending, size: int) -> None:
        """The engine was given so many bytes of messages on a link, those included that they count."""
        session = link.session
        if session in self._sessions:
            self._sessions[session] += size
            self._links[session][link] = None
        else:
            self._sessions[session] = size
            self._links[session] = {link: None}
        self._hold(self.held + size)

    def forget_session(self, session: Handle) -> None:
        """It ends now, with all that the engine has for it."""
        self._hold(self.held - self._sessions.pop(session, 0))
        self._links.pop(session, None)
        self._left.pop(session, None)

    def left_behind(self, sending: Callable[[], Collection[Handle]]) -> int:
        """Bytes that will never be sent, if they alone leave a link no room: what the engine was given as settled, and had not
        sent when its client detached the link, it has until their session ends. `sending`: answers the sessions in which
        something will be sent.
        """
        limits = self._limits
        enough = min(limits.output_bytes_max, limits.connection_output_bytes_max // 2)
        if self.held < enough or not self._held_up or self._waiting:
            return 0
        others = sending()
        left = {session: size for session, size in self._sessions.items() if session not in others}
        of_all = sum(left.values())
        for link in self._held_up:
            session = link.session
            mine = left.get(session, 0)
            is_full = mine >= limits.output_bytes_max or of_all + mine >= limits.connection_output_bytes_max
            if is_full and session not in others:
                return of_all
        return 0

    def _look(self) -> None:
        """At what was taken meanwhile."""
        self._waiting = held = self._wire.waiting_bytes()
        if self._sessions:
            for session in list(self._sessions):
                if size := path.unsent_bytes(session):
                    messages = sum(link.unsent for link in self._links[session]) + self._left.get(session, 0)
                    self._sessions[session] = size + MESSAGE_BYTES * messages
                else:
                    del self._sessions[session], self._links[session]
                    self._left.pop(session, None)
            held += sum(self._sessions.values())
        self._hold(held)

    def _hold(self, size: int) -> None:
        self._shared.left += self.held - size
        self.held = size

    def hold_up(self, link: Sending) -> None:
        """There is no room for what it has to send: it is told when there may be."""
        self._held_up[link] = None

    def forget(self, link: Sending) -> None:
        """It is gone, and with it what it has not sent, unless it leaves that."""
        session = link.session
        if link in self._links.get(session, ()):
            del self._links[session][link]
            if link.leaves_unsent:
                self._left[session] = self._left.get(session, 0) + link.unsent
        self._held_up.pop(link, None)
        self._to_tell.pop(link, None)

    def resume(self) -> bool:
        """There may be room again. Answers whether some are still to be told of it, in another step."""
        if self._is_closed:
            return False
        self._look()
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
