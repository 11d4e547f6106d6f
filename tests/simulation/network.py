"""The virtual network: ordered streams between hosts, as TCP gives them.

Law: what arrives on a stream is a prefix of what was sent, in order. A blocked direction delays (TCP sends again); a reset, a
crash or a stall beyond the time-out ends the stream, and whatever prefix was on its way may still arrive before the end does.
Nothing is duplicated: that takes a retry of whoever sent it.

States of a side: open -> closed (it heard the end, or closed itself). The server's side exists from the moment that the
connection reaches it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.simulation.loop import MS, Loop

_CONNECT = object()
_END = object()


@dataclass(slots=True)
class NetworkOptions:
    """Delays in microseconds."""

    delay_us: int = 200
    """Mean of the exponential part of the delay between hosts."""
    local_delay_us: int = 30
    loss: float = 0.0
    """Share of messages that have to be sent again (they, and all behind them, come later)."""
    retransmit_us: int = 200 * MS
    connect_timeout_us: int = 1_000 * MS
    stall_timeout_us: int = 8_000 * MS
    """A stream that is stalled for so long is given up by both ends."""


class Side:
    """One end of a stream; its owner sets `on_message` and `on_close`, and calls `send` and `close`."""

    __slots__ = (
        "_incoming",
        "_last_arrival_us",
        "_network",
        "_stalled",
        "_stalled_since_us",
        "host",
        "is_closed",
        "on_close",
        "on_message",
        "peer",
    )

    def __init__(self, network: "Network", host: str) -> None:
        self._network = network
        self.host = host
        self.peer: Side = self
        self.is_closed = False
        self.on_message: Callable[[object], None] = _ignore
        self.on_close: Callable[[], None] = _nothing
        self._incoming: deque[object] = deque()
        self._last_arrival_us = 0
        self._stalled = 0
        self._stalled_since_us = 0

    def send(self, message: object) -> None:
        """Send; silently lost when this side is closed."""
        if not self.is_closed:
            self.peer._enqueue(message)

    def close(self) -> None:
        """End the stream behind what was sent; this side hears nothing any more."""
        if not self.is_closed:
            self.is_closed = True
            self.peer._enqueue(_END)

    def break_off(self) -> None:
        """End it from here as a crash does: of what is on its way to the peer a prefix arrives, then the end."""
        self.is_closed = True
        self.peer._cut()

    def _cut(self) -> None:
        """Keep a random prefix of what is on its way to this side, or all where that is `kept`, then the end."""
        if self.is_closed:
            return
        incoming, network = self._incoming, self._network
        is_kept = (self.peer.host, self.host) in network.kept
        keep = len(incoming) if is_kept else network.random.randint(0, len(incoming))
        has_connect = bool(incoming) and incoming[0] is _CONNECT
        dropped = len(incoming) - max(keep, int(has_connect))
        for _ in range(dropped):
            incoming.pop()
        incoming.append(_END)
        if dropped == 0:
            self._schedule()
        # Otherwise the arrivals already scheduled are at least as many as the items.

    def _enqueue(self, message: object) -> None:
        if self.is_closed:
            return
        self._incoming.append(message)
        self._schedule()

    def _schedule(self) -> None:
        network = self._network
        arrival = max(
            self._last_arrival_us, network.loop.now_us + network.delay_us(self.peer.host, self.host)
        )
        self._last_arrival_us = arrival
        network.loop.after(arrival - network.loop.now_us, self._arrive)

    def _arrive(self) -> None:
        if self.is_closed or not self._incoming:
            return
        network = self._network
        if (self.peer.host, self.host) in network.blocked:
            if self._stalled == 0:
                network.stalled.append(self)
                self._stalled_since_us = network.loop.now_us
                is_connecting = self._incoming[0] is _CONNECT
                timeout = (
                    network.options.connect_timeout_us if is_connecting else network.options.stall_timeout_us
                )
                network.loop.after(timeout, self._give_up, self._stalled_since_us)
            self._stalled += 1
            return
        if self._stalled:  # the direction is open again, but what was lost has not been sent again yet
            self._stalled += 1
            return
        item = self._incoming.popleft()
        if item is _CONNECT:
            network.accept(self)
        elif item is _END:
            self.is_closed = True
            self.on_close()
        else:
            self.on_message(item)

    def lose_stalled(self) -> None:
        """What has not arrived is lost but for the end; only where nobody is left who could send it again."""
        self._incoming = deque(item for item in self._incoming if item is _CONNECT or item is _END)

    def resume(self) -> None:
        """The direction to this side is open again: what was lost is sent again."""
        network = self._network
        network.loop.after(network.random.randint(1 * MS, network.options.retransmit_us), self._drain)

    def _drain(self) -> None:
        if (self.peer.host, self.host) in self._network.blocked:
            self._network.stalled.append(self)
            return
        count, self._stalled = self._stalled, 0
        for _ in range(count):
            self._arrive()

    def _give_up(self, since_us: int) -> None:
        if self._stalled and self._stalled_since_us == since_us and not self.is_closed:
            for side in (self.peer, self):
                if not side.is_closed:
                    side.is_closed = True
                    side.on_close()


class Network:
    """All streams of one world."""

    def __init__(self, loop: Loop, random: Random, options: NetworkOptions) -> None:
        self.loop = loop
        self.random = random
        self.options = options
        self.blocked: set[tuple[str, str]] = set()
        """(from host, to host) pairs that let nothing through. Only asked for membership: its order decides nothing."""
        self.kept: set[tuple[str, str]] = set()
        """(from host, to host) pairs of which all arrives that was sent before a crash. Only asked for membership, too."""
        self.slowness: dict[tuple[str, str], float] = {}
        """Factor of the delay of a pair of hosts."""
        self.refusing: set[str] = set()
        """Addresses that refuse new connections although their process may live."""
        self.stalled: list[Side] = []
        self._listeners: dict[str, tuple[str, Callable[[Side], None] | None]] = {}
        self._addresses: dict[int, str] = {}
        self.open_streams: list[Side] = []
        """Client sides, for faults that break one; closed ones are removed now and then."""

    def listen(self, address: str, host: str, on_connect: Callable[[Side], None] | None) -> None:
        """Connections to `address` (on `host`) go to `on_connect`; None: refused."""
        self._listeners[address] = (host, on_connect)

    def connect(self, host: str, address: str) -> Side:
        """Open a stream from `host`; messages may be sent at once. A refusal comes as its end."""
        side = Side(self, host)
        server = Side(self, self._listeners[address][0])
        side.peer, server.peer = server, side
        self._addresses[id(server)] = address
        server._enqueue(_CONNECT)
        self.open_streams.append(side)
        if len(self.open_streams) > 200:
            self.open_streams = [stream for stream in self.open_streams if not stream.is_closed]
        return side

    def accept(self, server: Side) -> None:
        """The connection reached the server's host."""
        address = self._addresses.pop(id(server))
        on_connect = self._listeners[address][1]
        if on_connect is None or address in self.refusing:
            server.is_closed = True
            server.peer._enqueue(_END)
        else:
            on_connect(server)

    def delay_us(self, source: str, target: str) -> int:
        random, options = self.random, self.options
        if source == target:
            return 1 + int(random.random() * 2 * options.local_delay_us)
        delay = options.delay_us * (0.3 + random.expovariate(1.0))
        if self.slowness:
            delay *= self.slowness.get((source, target), 1.0)
        if options.loss and random.random() < options.loss:
            delay += options.retransmit_us * (1 + random.random())
        return 1 + int(delay)

    def block(self, source: str, target: str) -> None:
        self.blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        self.blocked.discard((source, target))
        self._resume_stalled()

    def lose_stalled(self, source: str, target: str) -> None:
        """What `source` sent before it died and a blocked direction delays: nobody sends it again."""
        for side in self.stalled:
            if (side.peer.host, side.host) == (source, target):
                side.lose_stalled()

    def heal(self) -> None:
        """No direction is blocked, slow, refusing or lossy any more."""
        self.blocked.clear()
        self.slowness.clear()
        self.refusing.clear()
        self.options.loss = 0.0
        self._resume_stalled()

    def _resume_stalled(self) -> None:
        stalled, self.stalled = self.stalled, []
        for side in stalled:
            if side.is_closed:
                continue
            if (side.peer.host, side.host) in self.blocked:
                self.stalled.append(side)
            else:
                side.resume()

    def reset(self, side: Side) -> None:
        """Break a stream in the middle: each end gets a prefix of what was on its way, then the end."""
        side._cut()
        side.peer._cut()


def _ignore(message: object) -> None:
    """A message that nobody listens to any more."""


def _nothing() -> None:
    """The end of a stream that nobody listens to any more."""
