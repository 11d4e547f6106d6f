"""One HTTP/2 connection, of either side.

Law: `h2` knows the state of the connection and of every stream, and makes and reads all frames but two kinds: DATA, which carries
the messages, and GOAWAY, behind which calls go on. Windows for DATA are kept here for what comes in, and in `h2` for what goes
out. Whatever breaks the protocol ends the connection, and nothing else.
"""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from functools import partial
from typing import cast

import grpc
from h2.errors import ErrorCodes
from h2.events import (
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import DenialOfServiceError, H2Error
from h2.settings import SettingCodes

from lockstep.transport.calls_offered import CALLS_OFFERED, KEPT_MAX, CallsOffered
from lockstep.transport.errors import ConnectionEnded
from lockstep.transport.http2 import FIELDS_BYTES_MAX, HEADERS_BYTES_MAX, Http2
from lockstep.transport.intake import Intake, Peer
from lockstep.transport.keepalive import KEEPALIVE_SECONDS, Finding, Keepalive
from lockstep.transport.late_data import LateData
from lockstep.transport.metadata import Header
from lockstep.transport.stream import PREFIX_BYTES, WINDOW_BYTES, Stream, Written
from lockstep.transport.waiting_writers import WaitingWriters

_HEAD = struct.Struct(">HBBBI")
"""Of a frame: bytes behind it (16 bits, 8 bits), kind, flags, stream."""
HEAD_BYTES = _HEAD.size
_MESSAGE_HEAD = struct.Struct(">HBBBIBI")
"""Of a DATA frame that is one message: with the message's prefix."""
_NUMBER_OF_KERNEL = struct.Struct("i")
_NUMBER = struct.Struct(">I")
_TWO_NUMBERS = struct.Struct(">II")
_DATA, _HEADERS, _SETTINGS, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 4, 7, 8, 9
_END_STREAM, _PADDED = 1, 8
_PREFACE_BYTES = 24
_NUMBER_MAX = (1 << 31) - 1
"""Of streams."""

CONNECTION_WINDOW_BYTES = 64 << 20
"""What may be under way on a connection; what is not read waits in the windows of calls."""
FRAME_BYTES_MAX = (1 << 24) - 1
CONTROL_BYTES_MAX = 64 << 10
"""Of a frame that carries no messages."""
CALLS_OF_CONNECTION_AT_ONCE = 8
"""Begun in a row: others have their turn behind them."""
LONG_HEADERS_BYTES = 8 << 10
"""Headers of so many bytes take as long to read as a call takes to begin."""
JOINED_BYTES_MAX = 16 << 10
"""A message up to this size is copied behind its head; a bigger one is handed over beside it."""
UNSENT_BYTES_MAX = 1 << 20
"""What may wait in the socket's buffer before writers do."""
PART_BYTES_MAX = 4 << 20
"""Of a message that leave at once, whatever the windows allow; less than would make `ANSWERS_UNSENT_BYTES_MAX` of it."""
ANSWERS_UNSENT_BYTES_MAX = 16 << 20
"""The same of a peer that asks for answers (pings, settings) and takes none: it is dropped."""
BLOCKED_BYTES_MAX = 64 << 20
"""Messages that wait for room in the windows of a peer; one that has so many waiting gets no more calls."""
READ_BYTES_MUCH = 128 << 10
"""Of one read: a loop reads a connection again and again in one turn, as long as each read fills its buffer. Behind so many bytes
others have their turn."""
CONTROL_FRAMES_AT_ONCE = 50
"""Frames that carry no messages are worked for: behind so many of one connection others have their turn."""
DATA_FRAMES_AT_ONCE = 256
"""Frames that carry messages, or nothing: the same; each takes microseconds, however little is in it."""
RESETS_MAX = 1000
"""Calls that a client may give up within a round of keepalive; more are an attack."""


class Connection(asyncio.Protocol):
    """From its opening to its loss. `on_call`: of servers; makes the stream of a request."""

    def __init__(
        self,
        on_call: "Callable[[Connection, int], Stream] | None",
        on_ready: "Callable[[Connection], None]",
        on_lost: "Callable[[Connection, str], None]",
        keepalive_seconds: float = KEEPALIVE_SECONDS,
        intake: Intake | None = None,
    ) -> None:
        """`on_ready`: the other side speaks HTTP/2. `on_lost`: once, with the reason; not before `connection_made`. `intake`: of
        the server, if it is one's.
        """
        self._on_call, self._on_ready, self._on_lost = on_call, on_ready, on_lost
        self._intake = intake
        self._unfinished = None if intake is None else intake.unfinished.of_connection()
        self._peer: Peer | None = None
        self.peer_address = ""
        """Of the other side, without its port; empty behind a path."""
        is_client = on_call is None
        self._h2 = Http2(
            is_client,
            {
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
                SettingCodes.MAX_CONCURRENT_STREAMS: CALLS_OFFERED,
                SettingCodes.ENABLE_PUSH: 0,
            },
        )
        self.streams: dict[int, Stream] = {}
        """Calls that are not over."""
        self._calls_offered = CallsOffered()
        self.is_paused = False
        """Much waits to be sent."""
        self.sent_bytes = 0
        """Of messages, as far as the transport has taken them."""
        self.blocked_bytes = 0
        """Of messages that wait for room, of a big one `BLOCKED_MESSAGE_BYTES_MAX`."""
        self.is_leaving = False
        """No more calls are begun on it."""
        self.is_lost = False
        self._last_taken = _NUMBER_MAX
        """Of the calls that the other side began, as a GOAWAY told it: the next one may tell no higher one."""
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        """The beginning of a frame; while `_is_held`, all that came and was not looked at."""
        self._is_held = False
        """It has had its turn, and others have theirs."""
        self._hold_seconds = 0.0
        """So long it has to wait for its next turn: its peer gives up more calls than it may."""
        self._preface_left = 0 if is_client else _PREFACE_BYTES
        self._data_left = 0
        """Bytes of messages in a DATA frame that are still to come."""
        self._padding_left = 0
        """Bytes behind those, which say nothing."""
        self._data_ends = False
        self._data_stream: Stream | None = None
        self._unread = 0
        """Bytes taken and not given back to the connection's window yet."""
        self._late = LateData(CONNECTION_WINDOW_BYTES)
        self.writers = WaitingWriters()
        self._keepalive = Keepalive(keepalive_seconds)
        self._keepalive_round: asyncio.TimerHandle | None = None
        self.is_asked_too_often = False
        """So the server says, and it ends the connection for that."""
        self._resets = 0

    # --- the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it.
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        place = transport.get_extra_info("peername")
        self.peer_address = place[0] if place and isinstance(place, tuple) else ""
        if self._intake is not None:
            self._peer = self._intake.peer(self.peer_address)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - self._h2.inbound_flow_control_window)
        self._flush()
        self._keep_alive()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.writers.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"the connection was lost: {exc}" if exc else "the connection was closed")

    def _lose(self, reason: str) -> None:
        if self.is_lost:
            return
        self.is_lost = self.is_leaving = True
        if self._keepalive_round is not None:
            self._keepalive_round.cancel()
        if self._transport is not None:
            self._transport.abort()
        failure = ConnectionEnded(grpc.StatusCode.UNAVAILABLE, reason)
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.fail(failure)
        for stream in streams.values():
            # Nobody goes on in its place any more.
            if stream.counted_bytes:
                self.count_unfinished(stream, 0)
        self.writers.wake()
        self._on_lost(self, reason)

    def close(self, reason: str, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Ends it at once, with a word to the other side."""
        if not self.is_lost and self._transport is not None:
            self.leave(code)
            self._transport.close()
        self._lose_late(reason)

    def _lose_late(self, reason: str) -> None:
        """As lost, and what is written still leaves, for a moment."""
        transport = self._transport
        self._transport = None
        self._lose(reason)
        if transport is not None:
            asyncio.get_running_loop().call_later(1.0, transport.abort)

    def leave(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """GOAWAY: what runs goes on, and nothing new begins."""
        self.is_leaving = True
        if self._transport is not None:
            self._last_taken = min(self._last_taken, self._h2.highest_inbound_stream_id)
            self._transport.write(_HEAD.pack(0, 8, _GOAWAY, 0, 0) + _TWO_NUMBERS.pack(self._last_taken, code))

    @property
    def passed_bytes(self) -> int:
        """Of what was sent, so much has reached the other side's kernel, as far as this one knows."""
        transport = self._transport
        if transport is None:
            return self.sent_bytes
        return self.sent_bytes - transport.get_write_buffer_size() - _in_kernel(transport)

    def _keep_alive(self) -> None:
        keepalive, now = self._keepalive, asyncio.get_running_loop().time()
        has_looked = not self._is_held and not keepalive.is_late(now)
        if self._unfinished is not None and has_looked:
            self._unfinished.refuse_slow(now)
        finding = keepalive.look(has_looked, self.sent_bytes, self.passed_bytes)
        if finding is Finding.SILENT:
            self._lose(f"nothing was heard for {2 * keepalive.seconds:g} s")
            return
        if finding is Finding.TO_ASK:
            self._h2.ping(bytes(8))
            self._flush()
        self._resets = 0
        if self._on_call is not None:
            self._calls_offered.keep_old(self.streams, self._h2.highest_inbound_stream_id)
            self._offer()
        keepalive.due_at = now + keepalive.seconds
        self._keepalive_round = asyncio.get_running_loop().call_at(keepalive.due_at, self._keep_alive)

    # --- in ---

    def data_received(self, data: bytes) -> None:
        self._keepalive.has_heard = True
        if self._is_held:
            self._rest += data
        else:
            self._take_in(self._rest + data if self._rest else data)
            if len(data) >= READ_BYTES_MUCH and not self._is_held and not self.is_lost:
                self._hold(asyncio.get_running_loop().call_soon)

    def _go_on(self) -> None:
        self._is_held = False
        # What is worked off has come, however long ago.
        self._keepalive.has_heard = True
        if self._transport is not None:
            self._transport.resume_reading()
        self._take_in(self._rest)

    def _take_in(self, data: bytes) -> None:
        if self.is_lost:
            return
        try:
            self._take(data)
        except _TooMuch as ended:
            self.close(ended.details, ErrorCodes.ENHANCE_YOUR_CALM)
        except ConnectionEnded as ended:
            self.close(ended.details, ErrorCodes.PROTOCOL_ERROR)
        except (H2Error, ValueError) as error:
            self._flush()
            if isinstance(error, DenialOfServiceError):
                self.refused("fields_bytes_max", str(error))
            self.close(f"the other side broke the protocol: {error}", ErrorCodes.PROTOCOL_ERROR)

    def _take(self, data: bytes) -> None:
        self._rest = b""
        at, end, control_frames, data_frames, calls = 0, len(data), 0, 0, 0
        if self._preface_left:
            at = min(self._preface_left, end)
            self._preface_left -= at
            self._to_h2(data[:at])
        while at < end and not self.is_lost:
            if self._data_left:
                taken = min(self._data_left, end - at)
                self._take_data(data if taken == end else memoryview(data)[at : at + taken], taken)
                at += taken
                continue
            if self._padding_left:
                skipped = min(self._padding_left, end - at)
                self._padding_left -= skipped
                at += skipped
                continue
            if end - at < HEAD_BYTES:
                break
            if data_frames >= DATA_FRAMES_AT_ONCE:
                self._hold(asyncio.get_running_loop().call_soon)
                break
            high, low, kind, flags, number = _HEAD.unpack_from(data, at)
            length = high << 8 | low
            behind = at + HEAD_BYTES + length
            data_frames += kind == _DATA
            if kind == _DATA and not flags and behind <= end:
                # Nearly always: all of a frame, without padding.
                stream = self.streams.get(number)
                if stream is None or stream.is_heard_out:
                    stream = self._stream_of_data(number & _NUMBER_MAX)
                self._count_unread(length)
                if stream is not None:
                    stream.receive(memoryview(data)[at + HEAD_BYTES : behind])
                else:
                    self._count_late(length)
                at = behind
                continue
            if kind == _DATA:
                beside = 0
                if flags & _PADDED:
                    if length and end - at == HEAD_BYTES:
                        break  # The next byte says how much padding there is.
                    beside = 1 + data[at + HEAD_BYTES] if length else 1
                self._begin_data(number & _NUMBER_MAX, length, beside, bool(flags & _END_STREAM))
                at += HEAD_BYTES + (1 if beside else 0)
                continue
            if length > (FIELDS_BYTES_MAX if kind in _OF_HEADERS else CONTROL_BYTES_MAX):
                text = f"a frame of kind {kind} has {length} bytes"
                self.refused("frame_bytes_max", text)
                raise ConnectionEnded(grpc.StatusCode.INTERNAL, text)
            if behind > end:
                break
            if kind == _HEADERS and self._intake is not None:
                if calls >= CALLS_OF_CONNECTION_AT_ONCE or not self._intake.may_begin():
                    self._hold(self._intake.wait)
                    break
                calls += 1
            if kind == _GOAWAY:
                self._hear_goaway(number, data[at + HEAD_BYTES : behind])
            else:
                self._to_h2(data[at:behind])
            at = behind
            # Settings change something of every stream.
            control_frames += CONTROL_FRAMES_AT_ONCE if kind == _SETTINGS else 1
            if kind in _OF_HEADERS and self._h2.fields.headers_bytes >= LONG_HEADERS_BYTES:
                control_frames = CONTROL_FRAMES_AT_ONCE
                if self._intake is not None:
                    self._intake.spend(self._h2.fields.headers_bytes // LONG_HEADERS_BYTES)
            if self._hold_seconds:
                self._hold(partial(asyncio.get_running_loop().call_later, self._hold_seconds))
                self._hold_seconds = 0.0
                break
            if control_frames >= CONTROL_FRAMES_AT_ONCE:
                self._hold(asyncio.get_running_loop().call_soon)
                break
        if at < end:
            self._rest = data[at:]

    def _hold(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Looks at nothing more until `later` calls what it is given."""
        if self._transport is not None:
            self._is_held = True
            self._transport.pause_reading()
            later(self._go_on)

    def _begin_data(self, number: int, length: int, beside: int, is_end: bool) -> None:
        """`length`: of the frame, in bytes; `beside`: those that are padding, with the one that says how much of it there is."""
        if beside > length:
            raise ConnectionEnded(grpc.StatusCode.INTERNAL, "padding is longer than its frame")
        stream = self._stream_of_data(number)
        self._data_stream, self._data_left, self._data_ends = stream, length - beside, is_end
        self._count_unread(length)
        if stream is None:
            self._count_late(length)
        if beside:
            self._padding_left = beside - 1
            if stream is not None:
                stream.receive_padding(beside)
        if not self._data_left:
            self._end_data()

    def _stream_of_data(self, number: int) -> Stream | None:
        """The call that data is for; None: that is over. Raises `ConnectionEnded` where there is none that may have data."""
        stream = self.streams.get(number)
        if stream.is_heard_out if stream is not None else not self._was_begun(number):
            raise ConnectionEnded(grpc.StatusCode.INTERNAL, f"data on stream {number}, which is not open")
        return stream

    def _count_unread(self, length: int) -> None:
        """A frame of so many bytes came: the connection's window is given back in halves."""
        self._unread += length
        if self._unread * 2 >= CONNECTION_WINDOW_BYTES:
            self.send_window_update(0, self._unread)
            self._unread = 0

    def _count_late(self, length: int) -> None:
        """A frame of so many bytes came for a call that is over. Raises `ConnectionEnded` when there is too much of that."""
        if not self._late.count(length):
            text = "more is sent on calls that are over than was under way"
            self.refused("late_bytes_max", text)
            raise _TooMuch(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    def _was_begun(self, number: int) -> bool:
        """A call that is over: what was under way then is dropped."""
        is_ours = number % 2 == (1 if self._on_call is None else 0)
        highest = self._h2.highest_outbound_stream_id if is_ours else self._h2.highest_inbound_stream_id
        return 0 < number <= highest

    def _take_data(self, data: bytes | memoryview, size: int) -> None:
        self._data_left -= size
        if self._data_stream is not None:
            self._data_stream.receive(data)
        if not self._data_left:
            self._end_data()

    def _end_data(self) -> None:
        stream, self._data_stream = self._data_stream, None
        if self._data_ends and stream is not None and self.streams.get(stream.number) is stream:
            self._to_h2(_HEAD.pack(0, 0, _DATA, _END_STREAM, stream.number))

    def _to_h2(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            match event:
                case RequestReceived(stream_id=number, headers=headers, stream_ended=ended):
                    self._begin_call(number, headers, is_end=ended is not None)
                case (
                    ResponseReceived(stream_id=number, headers=headers)
                    | TrailersReceived(stream_id=number, headers=headers)
                ):
                    if (stream := self.streams.get(number)) is not None:
                        self._hear_headers(stream, headers)
                case StreamEnded(stream_id=number):
                    if (stream := self.streams.get(number)) is not None:
                        stream.hear_out()
                case StreamReset(stream_id=number, error_code=code):
                    self._hear_reset(number, int(code))
                case WindowUpdated(stream_id=number):
                    self.writers.wake(number)
                case RemoteSettingsChanged():
                    self._on_ready(self)
                    self.writers.wake()
                case _:
                    pass
        self._flush()
        if self._transport is not None and self._transport.get_write_buffer_size() > ANSWERS_UNSENT_BYTES_MAX:
            text = "answers are asked for and not taken"
            self.refused("answers_unsent_bytes_max", text)
            raise ConnectionEnded(grpc.StatusCode.UNAVAILABLE, text)

    def _begin_call(self, number: int, headers: list[Header], is_end: bool) -> None:
        assert self._on_call is not None, "only servers receive requests"
        if self.is_leaving or self.blocked_bytes > BLOCKED_BYTES_MAX:
            self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            self._late.expect(WINDOW_BYTES)
            if not self.is_leaving:
                self.refused("blocked_bytes_max", f"{self.blocked_bytes} bytes of answers are not taken")
        elif len(self.streams) >= self._calls_offered.count:
            self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            self._late.expect(WINDOW_BYTES)
            self.refused(
                "calls_max", f"more than {self._calls_offered.count} calls are begun on a connection"
            )
            self._count_reset()
        else:
            self.streams[number] = stream = self._on_call(self, number)
            if is_end:
                stream.hear_out()
            self._hear_headers(stream, headers)

    def _hear_headers(self, stream: Stream, headers: list[Header]) -> None:
        size = self._h2.fields.headers_bytes
        if size > HEADERS_BYTES_MAX:
            text = f"the headers of a call have {size} bytes, {HEADERS_BYTES_MAX} are allowed"
            self.refused("headers_bytes_max", text)
            stream.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        else:
            stream.hear_headers(headers)

    def refused(self, limit: str, text: str) -> None:
        """A limit has refused something; told by servers alone."""
        if self._intake is not None:
            self._intake.refused(limit, f"peer={self.peer_address} {text}")

    def keep(self, stream: Stream) -> None:
        """The call is to stay, as a session does: others are offered in its place. Refuses one that is too many."""
        if stream.is_kept or self.streams.get(stream.number) is not stream:
            return
        if not self._calls_offered.keep(stream):
            text = f"a connection may have {KEPT_MAX} calls that stay"
            self.refused("kept_calls_max", text)
            stream.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            return
        self._offer()

    def _offer(self) -> None:
        """More calls, once those that stay have taken too many."""
        if self._calls_offered.grow():
            self._h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: self._calls_offered.count})
            self._flush()

    def count_unfinished(self, stream: Stream, size: int) -> None:
        """As `ConnectionUnfinished.count`; by servers alone."""
        if self._unfinished is not None:
            self._unfinished.count(stream, size, asyncio.get_running_loop().time())

    def may_have(self, stream: Stream, size: int) -> bool:
        """As `ConnectionUnfinished.may_have`; who has asked for messages may have them."""
        return self._unfinished is None or self._unfinished.may_have(stream, size)

    def _forget(self, number: int) -> Stream | None:
        """The call is over; None where it was before."""
        stream = self.streams.pop(number, None)
        if stream is not None:
            self._calls_offered.forget(stream)
            if stream.counted_bytes:
                self.count_unfinished(stream, 0)
            if not stream.is_heard_out:
                self._late.expect(stream.window_left)
        return stream

    def _count_reset(self) -> None:
        """A call was begun for nothing. Raises `ConnectionEnded` when there are too many."""
        self._resets += 1
        if self._on_call is None:
            return
        if self._resets > RESETS_MAX:
            text = "calls are begun and given up"
            self.refused("resets_max", text)
            raise _TooMuch(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        if self._peer is not None:
            self._hold_seconds = self._peer.give_up(asyncio.get_running_loop().time())
            if self._hold_seconds:
                self.refused("resets_a_second", "calls are begun and given up: what it sends waits")

    def _hear_reset(self, number: int, code: int) -> None:
        self._count_reset()
        if (stream := self._forget(number)) is not None:
            status = _STATUS_OF_RESET.get(code, grpc.StatusCode.INTERNAL)
            was_refused = code == ErrorCodes.REFUSED_STREAM
            stream.fail(ConnectionEnded(status, f"the call was reset with code {code}", was_refused))
            self.close_when_left()

    def _hear_goaway(self, number: int, payload: bytes) -> None:
        if number or len(payload) < 8:
            raise ConnectionEnded(grpc.StatusCode.INTERNAL, "a GOAWAY is cut short, or of a stream")
        last, code = _TWO_NUMBERS.unpack_from(payload)
        self.is_leaving = True
        self.is_asked_too_often |= code == ErrorCodes.ENHANCE_YOUR_CALM and payload[8:] == b"too_many_pings"
        refused = [number for number in self.streams if number > last and self._on_call is None]
        for number in refused:
            text = f"the server goes away (code {code})"
            refusal = ConnectionEnded(grpc.StatusCode.UNAVAILABLE, text, was_refused=True)
            self.streams.pop(number).fail(refusal)
        if not self.streams and self._on_call is None:
            self.close("the server went away")
        else:
            self._on_ready(self)

    # --- out ---

    def send_message(self, number: int, data: Written, message_bytes: int) -> bool:
        """Sends a message as one frame if the windows have room for it; answers whether they had."""
        size = message_bytes + PREFIX_BYTES
        transport, connection = self._transport, self._h2
        stream = connection.streams[number]
        if (
            size > connection.outbound_flow_control_window
            or size > stream.outbound_flow_control_window
            or size > connection.max_outbound_frame_size
            or size > PART_BYTES_MAX
            or transport is None
        ):
            return False
        connection.outbound_flow_control_window -= size
        stream.outbound_flow_control_window -= size
        self.sent_bytes += size
        head = _MESSAGE_HEAD.pack(size >> 8, size & 0xFF, _DATA, 0, number, 0, message_bytes)
        if not isinstance(data, bytes):
            transport.writelines((head, *data))
        elif size <= JOINED_BYTES_MAX:
            transport.write(head + data)
        else:
            transport.writelines((head, data))
        return True

    def send_part(self, number: int, data: memoryview) -> int:
        """Sends what the windows have room for; answers how many bytes."""
        transport, connection = self._transport, self._h2
        if transport is None:
            return 0
        stream = connection.streams[number]
        size = min(
            len(data),
            connection.outbound_flow_control_window,
            stream.outbound_flow_control_window,
            connection.max_outbound_frame_size,
            PART_BYTES_MAX,
        )
        if size <= 0:
            return 0
        connection.outbound_flow_control_window -= size
        stream.outbound_flow_control_window -= size
        self.sent_bytes += size
        transport.writelines((_HEAD.pack(size >> 8, size & 0xFF, _DATA, 0, number), data[:size]))
        return size

    def send_window_update(self, number: int, size: int) -> None:
        """Gives room back to the other side; stream 0: the connection."""
        if self._transport is not None:
            self._transport.write(_HEAD.pack(0, 4, _WINDOW_UPDATE, 0, number) + _NUMBER.pack(size))

    @property
    def has_room(self) -> bool:
        """Whether the other side takes one more call."""
        return not self.is_leaving and len(self.streams) < self._h2.remote_settings.max_concurrent_streams

    def open_call(self, headers: list[Header]) -> int:
        """Begins a call; returns its stream's number. Raises `NoAvailableStreamIDError` when it has had them all."""
        number = self._h2.get_next_available_stream_id()
        self._h2.send_headers(number, headers)
        self._flush()
        return number

    def send_headers(self, number: int, headers: list[Header], is_end: bool) -> None:
        """Headers or trailers of an answer."""
        self._h2.send_headers(number, headers, end_stream=is_end)
        self._flush()

    def end_messages(self, stream: Stream) -> None:
        """This side has no more messages on it."""
        if stream.is_said_out:
            return
        stream.is_said_out = True
        self._h2.end_stream(stream.number)
        self._flush()

    def drop(self, stream: Stream, code: ErrorCodes) -> None:
        """The call is over; `code` for the other side, where that may still be talking or listening."""
        if self._forget(stream.number) is None:
            return
        self.writers.wake(stream.number)
        if not (stream.is_heard_out and stream.is_said_out):
            self._h2.reset_stream(stream.number, code)
            self._flush()
        self.close_when_left()

    def close_when_left(self) -> None:
        """Where the last call on a connection that was left is over."""
        if self.is_leaving and not self.streams and self._on_call is None:
            self.close("the server went away")

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)


class _TooMuch(ConnectionEnded):
    """The other side floods this one."""


_OF_HEADERS = frozenset((_HEADERS, _CONTINUATION))

_STATUS_OF_RESET: dict[int, grpc.StatusCode] = {
    ErrorCodes.CANCEL: grpc.StatusCode.CANCELLED,
    ErrorCodes.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    ErrorCodes.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCodes.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}
"""gRPC over HTTP/2, Errors; all others are INTERNAL."""


def _in_kernel(transport: asyncio.Transport) -> int:
    """Bytes that the kernel has, and whose arrival it has not heard of."""
    try:
        answer = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, AttributeError, ValueError):
        return 0  # Without a socket, or with one that is closed.
    return int(_NUMBER_OF_KERNEL.unpack(answer)[0])
