"""HTTP/2 by hand, for peers that do what no library lets them do: frames (RFC 9113, 4.1) and field blocks (RFC 7541, 6.2).

Nothing here depends on what the product parses with. Of field blocks only the shortest forms are written, and none are read.
"""

import asyncio
import contextlib
import socket
import struct
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20
_HEAD = struct.Struct(">HBBBI")
HEAD_BYTES = _HEAD.size
"""Of a frame; they count in no window."""
WINDOW_MAX = 2**31 - 1


class Frame(NamedTuple):
    """One that was received."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """`length`: what the frame says of itself, when that is to be a lie."""
    length = len(payload) if length is None else length
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def settings(*values: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *value) for value in values))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def field(name: bytes, value: bytes) -> bytes:
    """A literal that enters no table."""
    return b"\x00" + _text(name) + _text(value)


def _text(data: bytes) -> bytes:
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, encoded = len(data) - 127, b"\x7f"
    while rest > 127:
        encoded, rest = encoded + bytes((rest & 127 | 128,)), rest >> 7
    return encoded + bytes((rest,)) + data


def request_fields(path: str, *more: tuple[bytes, bytes]) -> bytes:
    """The field block of a call as gRPC has it."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    )
    return b"".join(field(*one) for one in fields)


def request(stream: int, path: str, *more: tuple[bytes, bytes], flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, request_fields(path, *more))


def message(data: bytes, is_compressed: bool = False, length: int | None = None) -> bytes:
    """A message with gRPC's prefix; `length`: what the prefix says, when that is to be a lie."""
    return struct.pack(">?I", is_compressed, len(data) if length is None else length) + data


def call(stream: int, path: str, data: bytes) -> bytes:
    """A whole call with one request."""
    return request(stream, path) + frame(DATA, END_STREAM, stream, message(data))


GREETING = PREFACE + settings((4, 2**30)) + window_update(0, 2**30)
"""Windows so wide that the peer never waits for them, and that may still grow."""


def parse(data: bytes) -> tuple[list[Frame], bytes]:
    """Whole frames, and what is left over."""
    frames, at = [], 0
    while len(data) - at >= _HEAD.size:
        high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + (high << 8 | low)
        if end > len(data):
            break
        frames.append(Frame(kind, flags, stream & WINDOW_MAX, data[at + _HEAD.size : end]))
        at = end
    return frames, data[at:]


class RawClient:
    """One connection; lives until it is closed, and is driven by its test alone: it answers nothing by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._rest = b""
        self.frames: list[Frame] = []
        """All that were received."""
        self.is_over = False
        """Whether the peer has closed the connection."""
        self.sent = 0
        """Of DATA; for a test to count that keeps to `window_of`."""

    @classmethod
    async def connect(cls, port: int, greeting: bytes = GREETING) -> "RawClient":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(greeting)
        return cls(reader, writer)

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def receive(self) -> list[Frame]:
        """The next frames; none when the connection is over."""
        try:
            data = await self._reader.read(2**18)
        except OSError:
            data = b""
        self.is_over = not data
        frames, self._rest = parse(self._rest + data)
        self.frames += frames
        return frames

    async def end_of(self, stream: int) -> Frame | None:
        """Receives until the stream is over: by its last frame, by GOAWAY, or by the end of the connection (None)."""
        seen = 0
        while True:
            for one in self.frames[seen:]:
                if one.kind == GOAWAY or (one.stream == stream and ends(one)):
                    return one
            seen = len(self.frames)
            if self.is_over:
                return None
            await self.receive()

    async def pong(self) -> None:
        """Returns when the peer has dealt with all that was sent before."""
        token = struct.pack(">Q", len(self.frames))
        self.send(frame(PING, 0, 0, token))
        while not any(one.kind == PING and one.flags & ACK and one.payload == token for one in self.frames):
            assert not self.is_over, "the connection is over"
            await self.receive()

    async def room(self, stream: int, size: int) -> None:
        """Returns when the peer takes so many more bytes of DATA; `stream`: 0 for the connection's window alone."""
        while self.sent + size > min(self.window_of(0), self.window_of(stream)):
            assert not self.is_over, "the connection is over"
            await self.receive()

    def data_of(self, stream: int) -> bytes:
        return b"".join(one.payload for one in self.frames if one.kind == DATA and one.stream == stream)

    def window_of(self, stream: int) -> int:
        """What the peer has allowed to be sent since the beginning; `stream`: 0 for the connection."""
        window = 65_535
        for one in self.frames:
            if one.kind == WINDOW_UPDATE and one.stream == stream:
                window += struct.unpack(">I", one.payload)[0]
            elif one.kind == SETTINGS and stream:
                values = dict(struct.iter_unpack(">HI", one.payload))
                window += values.get(4, 65_535) - 65_535
        return window

    async def close(self) -> None:
        """Without a word to the peer."""
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def ends(one: Frame) -> bool:
    """Whether it is the last frame of its stream."""
    return one.kind == RST_STREAM or (one.kind in {DATA, HEADERS} and bool(one.flags & END_STREAM))


def connect_blocking(port: int) -> socket.socket:
    """For floods, whose sender must not wait for an event loop."""
    return socket.create_connection(("127.0.0.1", port), timeout=5)
