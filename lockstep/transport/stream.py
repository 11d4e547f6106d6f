"""One call on a connection: its messages, in and out.

Law: messages leave in the order of their writes and are read in the order of their coming. Whoever does not read holds back the
other side once a window full waits, and nobody else on the connection: the window is given back as messages are taken.
"""

import asyncio
import mmap
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from lockstep.transport.errors import ConnectionEnded
from lockstep.transport.inflating import Deflated
from lockstep.transport.unfinished import UNCOUNTED_BYTES_MAX

if TYPE_CHECKING:
    from lockstep.transport.connection import Connection

_PREFIX = struct.Struct(">BI")
"""Of a message: whether it is compressed, bytes."""
PREFIX_BYTES = _PREFIX.size
MOVED_BYTES = 4 << 10
"""So many of a message that is on its way are much; what is acknowledged of heartbeats is not."""
READS_AT_ONCE = WRITES_AT_ONCE = 16
"""Messages that wait are read, and those that find room are written, at once; behind so many other tasks have their turn.

Without it who writes on and on would not even hear that the connection is lost, for that comes in a turn of its own."""
Written = bytes | tuple[bytes, ...]
"""A message, whole or in pieces that follow each other."""
Heard = bytes | memoryview
"""A message as it came. A big one may lie in what was read with it: whoever keeps some of it copies that."""
COPIED_BYTES_MAX = 16 << 10
"""Up to so many bytes a message is copied out of what was read with it."""
_BUFFERED_BYTES_MIN = 1 << 20
"""A message from this size on is put together as it comes: a copy of all of it at its end would be a long step."""
_BUFFERED_FROM_BYTES = 256 << 10
"""Once so much of it is here: what only says that it is big costs nothing."""
Handler = Callable[[Heard], bool]
"""Takes a message; answers whether it takes more."""
BLOCKED_MESSAGE_BYTES_MAX = 32 << 20
"""What a message that waits for room counts for at most: a big one alone is no reason to refuse other calls."""
WINDOW_BYTES = 4 << 20
"""What may be under way or wait on one call without having been read."""


def size_of(data: Written) -> int:
    """Bytes of a message."""
    return len(data) if isinstance(data, bytes) else sum(map(len, data))


class Stream:
    """From the call's beginning until both sides have ended it; driven by its connection."""

    def __init__(
        self,
        connection: "Connection",
        number: int,
        message_bytes_max: int,
        heard_bytes_max: int | None = None,
    ) -> None:
        """`message_bytes_max`: of one message; `heard_bytes_max`: of one that is heard, where that is another limit."""
        self.number = number
        self.connection = connection
        self.failure: ConnectionEnded | None = None
        """Why nothing more is heard or said; None while something may be, and behind an orderly end."""
        self.is_heard_out = False
        """The other side has ended its messages."""
        self.is_said_out = False
        """This side has."""
        self.is_kept = False
        """It stays, as a session does, and others are offered in its place."""
        self._may_say = True
        """Its headers have left."""
        self.received_bytes = 0
        self._said_until = 0
        """Of all that its connection sends, how far its last message goes."""
        self._moved = (0, 0, 0)
        """When somebody looked last: the connection's bytes that had got through, `_said_until`, and bytes to this stream."""
        self._message_bytes_max = message_bytes_max
        self._heard_bytes_max = message_bytes_max if heard_bytes_max is None else heard_bytes_max
        self._messages: deque[Heard] = deque()
        self._parts: list[memoryview | bytes | bytearray] = []
        """Of a message that is not whole yet, with its prefix as far as that is here."""
        self._parts_bytes = 0
        self._buffer: memoryview | None = None
        """Of a big one: all of it but its prefix, which alone is in the parts then."""
        self.counted_bytes = 0
        """Of a message that is not whole, as far as its connection knows."""
        self._wanted_bytes = PREFIX_BYTES
        """Of the message with its prefix; of the prefix, while that is not whole."""
        self._may_be_compressed = False
        """Its messages; then they are read one by one."""
        self._is_compressed = False
        """The message whose parts are here."""
        self._reader: asyncio.Future[bool] | None = None
        self._handler: Handler | None = None
        """Who is given messages as they come: while the reader waits in `hear`."""
        self._reads = 0
        self._writes = 0
        self._window = WINDOW_BYTES
        """What the other side may still send."""
        self._unread = 0
        """Bytes that are to be given back to it, and are not yet."""
        self._given_early = 0
        """Of the message that is read next, while it was not whole: a message may be bigger than the window."""

    # --- in ---

    @property
    def window_left(self) -> int:
        """Bytes that the other side may still send."""
        return self._window

    def receive(self, data: bytes | memoryview) -> None:
        """Bytes of messages, as they came."""
        size = len(data)
        self.received_bytes += size
        self._window -= size
        if self._window < 0:
            raise ConnectionEnded(grpc.StatusCode.INTERNAL, "more was sent than the window allows")
        if self.failure is not None:
            return
        at, handler = 0, self._handler
        while at < size:
            if not self._parts and size - at >= PREFIX_BYTES:
                # Nearly always: whole messages in one piece.
                is_compressed, length = _PREFIX.unpack_from(data, at)
                end = at + PREFIX_BYTES + length
                if not is_compressed and end <= size and length <= self._heard_bytes_max:
                    message = data[at + PREFIX_BYTES : end]
                    if length <= COPIED_BYTES_MAX or handler is None:
                        message = bytes(message)
                    self._messages.append(message)
                    at = end
                    continue
            taken = min(size - at, self._wanted_bytes - self._parts_bytes)
            self._add_part(data[at : at + taken])
            self._parts_bytes += taken
            at += taken
            if self._parts_bytes == self._wanted_bytes and not self._end_part():
                return
            if self.counted_bytes or self._parts_bytes > UNCOUNTED_BYTES_MAX:
                self.counted_bytes = self._parts_bytes
                self.connection.count_unfinished(self, self._parts_bytes)
        if self._messages:
            if handler is not None:
                self._hand_over(handler)
            else:
                self._wake()
        elif self._parts:
            self.give_back_early()

    def receive_padding(self, size: int) -> None:
        """Bytes that use the window as messages do, and wait for no reader."""
        self._window -= size
        if self._window < 0:
            raise ConnectionEnded(grpc.StatusCode.INTERNAL, "more was sent than the window allows")
        self._give_back(size)

    def _add_part(self, part: bytes | memoryview) -> None:
        """Of a message; small ones are put together, and none keeps much that was read with it and is none of the message."""
        if self._buffer is None and self._parts_bytes >= _BUFFERED_FROM_BYTES:
            self._begin_buffer()
        if self._buffer is not None:
            at = self._parts_bytes - PREFIX_BYTES
            self._buffer[at : at + len(part)] = part
            return
        if len(part) > COPIED_BYTES_MAX:
            is_most = isinstance(part, bytes) or 2 * len(part) >= memoryview(part.obj).nbytes
            self._parts.append(part if is_most else bytes(part))
            return
        last = self._parts[-1] if self._parts else None
        if isinstance(last, bytearray) and len(last) < COPIED_BYTES_MAX:
            last += part
        else:
            self._parts.append(bytearray(part))

    def _begin_buffer(self) -> None:
        """If the message is big."""
        size = self._wanted_bytes - PREFIX_BYTES
        if size < _BUFFERED_BYTES_MIN:
            return
        prefix, *parts = self._parts
        # Its pages are there when something is written to them.
        self._buffer = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        at = 0
        for part in parts:
            self._buffer[at : at + len(part)] = part
            at += len(part)
        self._parts = [prefix]

    def _end_part(self) -> bool:
        """The prefix is whole, or the message is; answers whether to go on."""
        if self._wanted_bytes == PREFIX_BYTES:
            self._parts = [b"".join(self._parts)]
            is_compressed, length = _PREFIX.unpack(self._parts[0])
            if is_compressed and not self._may_be_compressed:
                self.refuse(grpc.StatusCode.UNIMPLEMENTED, "messages of this call may not be compressed")
                return False
            self._is_compressed = bool(is_compressed)
            if length > self._heard_bytes_max:
                text = f"a message has {length} bytes, {self._heard_bytes_max} are allowed"
                self.connection.refused("message_bytes_max", text)
                self.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
                return False
            self._wanted_bytes += length
            if length:
                return True
        whole = b"".join(self._parts[1:]) if self._buffer is None else self._buffer.toreadonly()
        self._messages.append(Deflated(whole) if self._is_compressed else whole)
        self._parts, self._parts_bytes, self._wanted_bytes = [], 0, PREFIX_BYTES
        self._buffer = None
        return True

    async def next_message(self) -> bytes | None:
        """The next message; None when there will be none any more."""
        data = await self.next_heard()
        return None if data is None else bytes(data)

    async def next_heard(self) -> Heard | None:
        """The same as it came: a big one is not copied."""
        while not self._messages:
            if self.is_heard_out or self.failure is not None:
                return None
            await self._wait()
        await self._take_turn()
        data = self._next()
        if self._may_be_compressed and isinstance(data, Deflated):
            return await self._inflated(data)
        return data

    async def _inflated(self, data: Deflated) -> bytes:
        """The message that was compressed to that."""
        raise NotImplementedError

    async def hear(self, handle: Handler) -> bool:
        """Gives `handle` all messages, from now on in the turn in which they come, until it answers False or raises.

        Returns True then, and False when there will be no message any more. Raises what `handle` raises.
        """
        while True:
            while self._messages:
                await self._take_turn()
                if not handle(self._next()):
                    return True
            if self.is_heard_out or self.failure is not None:
                return False
            self._handler = handle
            try:
                if await self._wait():
                    return True
            finally:
                self._handler = None

    def _hand_over(self, handle: Handler) -> None:
        """To the reader that waits in `hear`, as many messages as one turn may take."""
        reader, messages, goes_on = self._reader, self._messages, True
        turn = min(len(messages), READS_AT_ONCE)
        try:
            while turn and goes_on and reader is not None and not reader.done():
                goes_on = handle(self._next())
                turn -= 1
        except Exception as error:
            if reader is None or reader.done():
                raise  # Its reader was cancelled meanwhile, by the handler: nobody else hears of it.
            reader.set_exception(error)
            return
        if (messages or not goes_on) and reader is not None and not reader.done():
            reader.set_result(not goes_on)

    async def _wait(self) -> bool:
        """For messages, or the end; answers whether a handler has had enough."""
        assert self._reader is None, "one reader at a time"
        self._reader = asyncio.get_running_loop().create_future()
        try:
            return await self._reader
        finally:
            self._reader = None

    async def _take_turn(self) -> None:
        self._reads += 1
        if self._reads % READS_AT_ONCE == 0:
            await asyncio.sleep(0)

    def _next(self) -> Heard:
        data = self._messages.popleft()
        self._unread += len(data) + PREFIX_BYTES - self._given_early
        self._given_early = 0
        if self._parts_bytes and not self._messages:
            self.give_back_early()
        if self._unread * 2 >= WINDOW_BYTES:
            self._give_back(0)
        return data

    def give_back_early(self) -> None:
        """What is here of a message that is not whole, once none waits before it: its end may need that room. It is asked for
        where it is much, and none is given while other messages of the connection have taken too much.
        """
        early = self._parts_bytes - self._given_early
        is_much = self.counted_bytes and (self._unread + early) * 2 >= WINDOW_BYTES
        if is_much and self.failure is None and self.connection.may_have(self, early):
            self._given_early = self._parts_bytes
            self._give_back(early)

    def _give_back(self, size: int) -> None:
        self._unread += size
        if self._unread * 2 >= WINDOW_BYTES and not self.is_heard_out and self.failure is None:
            self._window += self._unread
            self.connection.send_window_update(self.number, self._unread)
            self._unread = 0

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(False)

    # --- out ---

    def write_now(self, data: Written) -> bool:
        """Sends a message at once, if it can; answers whether it could. Not while a `write` is under way."""
        connection = self.connection
        size = size_of(data)
        if (
            self.failure is not None
            or size > self._message_bytes_max
            or connection.is_paused
            or not self._may_say
        ):
            return False
        is_sent = connection.send_message(self.number, data, size)
        self._said_until = connection.sent_bytes
        return is_sent

    async def write(self, data: Written) -> None:
        """Returns when the connection has taken it. Raises `ConnectionEnded`.

        Who is cancelled while a part of the message is on its way ends the call, for nothing can come behind that.
        """
        connection, size = self.connection, size_of(data)
        if size > self._message_bytes_max:
            text = f"a message has {size} bytes, {self._message_bytes_max} are allowed"
            connection.refused("message_bytes_max", text)
            self.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        if self.failure is not None:
            raise self.failure
        if connection.is_paused or not connection.send_message(self.number, data, size):
            blocked = min(size, BLOCKED_MESSAGE_BYTES_MAX)
            connection.blocked_bytes += blocked
            self._said_until = sys.maxsize
            try:
                await self._write_blocked(data if isinstance(data, tuple) else (data,), size)
            except asyncio.CancelledError:
                self.refuse(grpc.StatusCode.CANCELLED, "a message was given up while it was written")
                raise
            finally:
                connection.blocked_bytes -= blocked
                self._said_until = connection.sent_bytes
            return
        self._said_until = connection.sent_bytes
        self._writes += 1
        if self._writes % WRITES_AT_ONCE == 0:
            await asyncio.sleep(0)

    async def _write_blocked(self, pieces: tuple[bytes, ...], size: int) -> None:
        connection = self.connection
        for part in (_PREFIX.pack(0, size), *pieces):
            rest = memoryview(part)
            while rest:
                if self.failure is not None:
                    raise self.failure
                sent = 0 if connection.is_paused else connection.send_part(self.number, rest)
                rest = rest[sent:]
                if not sent:
                    await connection.writers.wait(self.number)
                elif rest:
                    # Others that wait have their turn: a big message would be the first to find room, for as long as it lasts.
                    await asyncio.sleep(0)

    def has_moved(self) -> bool:
        """Whether much of what is said or heard here has got through since this was asked last: a slow link, and no silence.

        Of what is said, only where something had not got through then: the kernel of who hangs still takes what is new.
        """
        now = self.connection.passed_bytes, self._said_until, self.received_bytes
        (passed_before, said_before, received_before), self._moved = self._moved, now
        passed, _, received = now
        was_saying = passed_before < said_before
        return (was_saying and passed - passed_before >= MOVED_BYTES) or (
            received - received_before >= MOVED_BYTES
        )

    # --- the end ---

    def hear_out(self) -> None:
        """The other side has ended its messages."""
        self.is_heard_out = True
        self._wake()

    @property
    def has_unread(self) -> bool:
        """Messages wait for their reader."""
        return bool(self._messages)

    @property
    def is_cut_short(self) -> bool:
        """Only a part of a message has come."""
        return bool(self._parts)

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the call from this side, because of a message; each side has its way."""
        raise NotImplementedError

    def fail(self, failure: ConnectionEnded) -> None:
        """Nothing more is heard or said."""
        if self.failure is None:
            self.failure = failure
            self._parts.clear()
            self._buffer = None
            self._wake()
            self.connection.writers.wake(self.number)

    def hear_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Headers or trailers behind the first of a call."""
