"""The AMQP engine of one connection: Proton's connection and transport, without any I/O.

Law: bytes in, events out; bytes out when asked. Whatever a peer sends, `feed` raises nothing: what it may not send ends the
connection with the condition that AMQP has for it.
"""

from collections.abc import Iterator

from proton import Collector, Connection, Transport

from services.proxy.engine_path import path
from services.proxy.engine_words import Happening
from services.proxy.settings import ProxyLimits


class Engine:
    """Lives as long as its connection; driven by it."""

    def __init__(self, limits: ProxyLimits) -> None:
        self.connection = Connection()
        self._collector = Collector()
        self.connection.collect(self._collector)
        self._transport = Transport(Transport.SERVER)
        self._transport.max_frame_size = limits.frame_bytes_max
        self._transport.channel_max = limits.channels_max
        # Proton tells the peer half of it, as AMQP advises (2.4.5).
        self._transport.idle_timeout = limits.idle_seconds
        self._transport.bind(self.connection)
        self._is_input_over = False
        self._idle_seconds = limits.idle_seconds
        self._not_idle_before = 0.0
        """Until then what the peer sends was not read, or it has the time that it always has."""

    def feed(self, data: bytes) -> Iterator[Happening]:
        """Takes input; gives what happened, piece by piece: what it names has to be handled before the next."""
        view = memoryview(data)
        while view and not self._is_input_over:
            taken = path.push(self._transport, view)
            if taken <= 0:
                self._is_input_over = True
                self._transport.close_tail()
            else:
                view = view[taken:]
            yield from path.events(self._collector)

    def end_input(self) -> Iterator[Happening]:
        """The peer is gone."""
        if not self._is_input_over:
            self._is_input_over = True
            self._transport.close_tail()
        yield from path.events(self._collector)

    def events(self) -> Iterator[Happening]:
        """What came of calls and not of input."""
        return path.events(self._collector)

    def output(self) -> list[bytes | bytearray]:
        """Takes what is to be written."""
        return path.output(self._transport)

    @property
    def is_input_over(self) -> bool:
        """It takes nothing more: the peer has closed, or has sent what is no AMQP."""
        return self._is_input_over or self._transport.capacity() < 0

    @property
    def is_closed(self) -> bool:
        """Nothing more comes in, nothing more goes out."""
        return self._transport.closed

    def tick(self, now_seconds: float, *, is_read: bool = True) -> float:
        """Looks at the idle time-outs of both sides (AMQP 1.0, 2.4.5); returns when to look again, 0: need not. `is_read` False:
        what the peer sends is not read for now, so nobody can tell whether it says nothing."""
        if not is_read:
            self._not_idle_before = now_seconds + self._idle_seconds
        if self._not_idle_before:
            # Told the peer in the open long ago: this only makes the engine look, or not.
            is_again = now_seconds >= self._not_idle_before
            self._transport.idle_timeout = self._idle_seconds if is_again else 0
            self._not_idle_before = 0.0 if is_again else self._not_idle_before
        return self._transport.tick(now_seconds)

    def unbind(self) -> None:
        """No input and no output any more; what happens from now on is told to nobody."""
        self._transport.unbind()
        self._collector.release()

    def release(self) -> None:
        """Lets go of all that it holds, behind `unbind`; the last call. Each link that it still has makes that longer."""
        self.connection.free()
