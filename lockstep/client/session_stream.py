"""One session stream over gRPC: bytes to messages and back.

Law: it says what came, in order, and at last `StreamLost`, once; after `cancel` it says nothing any more. One write at a time.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from msgspec.structs import replace

from lockstep.client.session_events import Received, StreamLost
from lockstep.client.void_deliveries import in_order
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import SetName
from lockstep.core.pieces import at_once
from lockstep.core.requests import AttachSession, ClientMessage
from lockstep.core.server_messages import AnyServerMessage
from lockstep.runtime.bodies_apart import LOOKED_BYTES_MIN
from lockstep.runtime.field_limit import FIELDS_MAX
from lockstep.runtime.hearing import hear_decoded
from lockstep.runtime.request_limits import MESSAGE_BYTES_MAX
from lockstep.runtime.session_codec import decode_long_response, decode_response, encode_request
from lockstep.runtime.wire import Serialized
from lockstep.transport.stream import size_of

_log = logging.getLogger("lockstep.client")

COMMAND_BYTES_MAX = MESSAGE_BYTES_MAX - (8 << 20)
"""One of them goes into a message with much that is small. Sets take less."""
COMMAND_FIELDS_MAX = FIELDS_MAX * 9 // 10
"""The same for its fields: those of a publish of 10,000 messages with five headers each."""
NAMED_AT_ONCE = 20_000
"""Deliveries that a resumption names: more are encoded in a thread, for 335,000 take 45 ms."""
MUCH_BYTES = LOOKED_BYTES_MIN
"""So much is taken in in turns, and what whoever hears it does with it is a step of its own."""
METHOD = "/lockstep.wire.v1.Sessions/Open"


class UnsayableError(LockstepError):
    """What somebody asked for has no form on the wire: INVALID_ARGUMENT, or TOO_LARGE."""


def encode(
    set_name: SetName, messages: tuple[ClientMessage, ...], fields_max: int = FIELDS_MAX
) -> Serialized:
    """One message of the stream, which no set refuses for its size or `fields_max` fields. Raises `UnsayableError`."""
    try:
        data = encode_request(set_name, messages, fields_max)
    except Exception as error:  # Arguments of any kind: what raises what is the wire format's business.
        code = error.code if isinstance(error, Rejected) else ErrorCode.INVALID_ARGUMENT
        raise UnsayableError(code, f"it cannot be said: {error}") from error
    if size_of(data) > MESSAGE_BYTES_MAX:
        raise UnsayableError(
            ErrorCode.TOO_LARGE, f"{size_of(data)} bytes in one message, at most {MESSAGE_BYTES_MAX}"
        )
    return data


def _is_much(messages: tuple[ClientMessage, ...]) -> bool:
    """Of the first ones on a stream: a resumption that names very much."""
    return any(
        isinstance(message, AttachSession)
        and sum([len(held.positions) for held in message.held]) > NAMED_AT_ONCE
        for message in messages
    )


def _encode_much(set_name: SetName, messages: tuple[ClientMessage, ...]) -> Serialized:
    """As `encode`, in ascending order: what ascends a primary sees to be distinct without a set of it."""
    ordered = []
    for message in messages:
        if isinstance(message, AttachSession):
            held = [replace(held, positions=at_once(in_order(list(held.positions)))) for held in message.held]
            message = replace(message, held=tuple(held))
        ordered.append(message)
    return encode(set_name, tuple(ordered))


def check_sayable(set_name: SetName, message: ClientMessage) -> None:
    """Raises `UnsayableError` for a message that has no form on the wire, or leaves no room for others beside it."""
    size = size_of(encode(set_name, (message,), COMMAND_FIELDS_MAX))
    if size > COMMAND_BYTES_MAX:
        text = f"{size} bytes in one command, at most {COMMAND_BYTES_MAX}"
        raise UnsayableError(ErrorCode.TOO_LARGE, text)


class SessionStream:
    """Lives from `OpenStream` to its loss; driven by the session in its set."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        set_name: SetName,
        number: int,
        hear: Callable[[Received | StreamLost], None],
        written: Callable[[int], None],
    ) -> None:
        """`written` is told its number when what was written was taken."""
        self.number = number
        self._set_name = set_name
        self._hear, self._tell_written = hear, written
        self._is_over = self._has_begun = False
        self._loop = asyncio.get_running_loop()
        self._to_write: asyncio.Future[Serialized | asyncio.Future[Serialized]] = self._loop.create_future()
        """What is next, or what makes it in a thread."""
        method: Any = channel.stream_stream(METHOD)
        self._call = method()
        self._reader = asyncio.ensure_future(self._guard(self._read))
        self._writer = asyncio.ensure_future(self._guard(self._write))

    def write(self, messages: tuple[ClientMessage, ...]) -> None:
        """Writes them, at once if it can be; not again before `written` is told that they are taken. Raises `UnsayableError`,
        but for a resumption that names very much: the stream ends by that."""
        if self._to_write.done():
            return
        if not self._has_begun:
            self._has_begun = True
            if _is_much(messages):
                encoding = self._loop.run_in_executor(None, _encode_much, self._set_name, messages)
                self._to_write.set_result(encoding)
                return
        data = encode(self._set_name, messages)
        if self._call.write_now(data):
            self._loop.call_soon(self._written)
        else:
            self._to_write.set_result(data)

    def has_moved(self) -> bool:
        """Whether much was said or heard since this was asked last, though no message is whole: the link is slow."""
        return bool(self._call.has_moved())

    def _written(self) -> None:
        if not self._is_over:
            self._tell_written(self.number)

    def cancel(self) -> None:
        """Drops the stream at once, without a word."""
        self._is_over = True
        self._call.cancel()
        self._reader.cancel()
        self._writer.cancel()

    async def close(self) -> None:
        """As `cancel`, and returns when nothing of it runs any more."""
        self.cancel()
        await asyncio.gather(self._reader, self._writer, return_exceptions=True)

    async def _read(self) -> str:
        def tell(response: tuple[SetName, tuple[AnyServerMessage, ...]]) -> bool:
            if not self._is_over:
                self._hear(Received(self.number, response[1]))
            return not self._is_over

        if await hear_decoded(self._call, MUCH_BYTES, decode_response, decode_long_response, tell):
            return "cancelled"
        status = await self._call.code()
        return f"{status.name}: {await self._call.details()}"

    async def _write(self) -> str:
        while True:
            data = await self._to_write
            if isinstance(data, asyncio.Future):
                data = await data
            self._to_write = self._loop.create_future()
            await self._call.write(data)
            if self._is_over:
                return "cancelled"
            self._written()

    async def _guard(self, run: Callable[[], Any]) -> None:
        """Whatever ends reading or writing ends the stream."""
        try:
            reason = await run()
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            reason = str(error)  # The call ended before the write.
        except LockstepError as error:
            reason = error.message
        except asyncio.CancelledError:
            if self._is_over:
                raise
            reason = "the call was cancelled"
        except Exception as error:  # Without a word, what was asked for on it would be waited for.
            _log.exception("%s: a session stream ends", self._set_name)
            reason = f"{type(error).__name__}: {error}"
        if not self._is_over:
            self.cancel()
            self._hear(StreamLost(self.number, reason))
