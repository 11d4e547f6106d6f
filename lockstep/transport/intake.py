"""What a server takes in at once, over all of its connections.

Law: calls are begun in the order in which they come, a few in each turn of the event loop, however many connections they come on:
what else the process does has its turn between them. Calls that are begun and given up are paid for by the peer that does it.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from lockstep.transport.unfinished import Unfinished

CALLS_A_TURN = 32
"""Begun in one turn of the event loop: some 10 ms with their answers."""
RESETS_BURST = 1000
"""Calls that a peer may give up at once: all of a machine whose calls have the same deadline."""
RESETS_A_SECOND = 200
"""And from then on; whoever gives up more is heard more slowly."""
PEERS_MIN = 256

Refused = Callable[[str, str], None]
"""Is told of a refusal: which limit it was, and a text about this one."""


class Peer:
    """Who is at the other end, by its address: what it may still give up. Lives for as long as that says anything of it."""

    __slots__ = ("_at", "_resets_left")

    def __init__(self, now: float) -> None:
        """`now`: seconds of the event loop's clock."""
        self._at = now
        self._resets_left = float(RESETS_BURST)

    def give_up(self, now: float) -> float:
        """One of its calls is given up; returns for how many seconds it is to be heard no further."""
        self._resets_left = self._resets_left_at(now) - 1
        self._at = now
        return max(0.0, -self._resets_left / RESETS_A_SECOND)

    def is_as_new(self, now: float) -> bool:
        return self._resets_left_at(now) >= RESETS_BURST

    def _resets_left_at(self, now: float) -> float:
        return min(RESETS_BURST, self._resets_left + (now - self._at) * RESETS_A_SECOND)


class Intake:
    """Lives as long as its server."""

    def __init__(self, refused: Refused) -> None:
        self.refused = refused
        self.unfinished = Unfinished(refused)
        self._calls_left = CALLS_A_TURN
        self._is_used = False
        self._waiting: deque[Callable[[], None]] = deque()
        self._peers: dict[str, Peer] = {}
        self._peers_swept_at = PEERS_MIN

    def may_begin(self) -> bool:
        """Whether one more call may be begun in this turn; counts it if so."""
        if not self._is_used:
            self._is_used = True
            asyncio.get_running_loop().call_soon(self._renew)
        if self._calls_left <= 0:
            return False
        self._calls_left -= 1
        return True

    def spend(self, calls: int) -> None:
        """One that was begun took as long as so many more."""
        self._calls_left -= calls

    def wait(self, go_on: Callable[[], None]) -> None:
        """Calls `go_on` in one of the next turns, behind those that wait already."""
        if not self._is_used:
            self._is_used = True
            asyncio.get_running_loop().call_soon(self._renew)
        self._waiting.append(go_on)

    def _renew(self) -> None:
        self._calls_left = CALLS_A_TURN
        self._is_used = False
        turns = len(self._waiting)
        while turns and self._calls_left > 0:
            turns -= 1
            self._waiting.popleft()()
        if self._waiting and not self._is_used:
            self._is_used = True
            asyncio.get_running_loop().call_soon(self._renew)

    def peer(self, address: str) -> Peer:
        """Of all connections from there."""
        peer = self._peers.get(address)
        if peer is None:
            now = asyncio.get_running_loop().time()
            if len(self._peers) >= self._peers_swept_at:
                self._peers = {name: one for name, one in self._peers.items() if not one.is_as_new(now)}
                self._peers_swept_at = 2 * len(self._peers) + PEERS_MIN
            peer = self._peers[address] = Peer(now)
        return peer
