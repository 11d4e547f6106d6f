"""A service with a method for each kind of call and each behaviour that tests of the transport need."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from tests.unit.lockstep.transport import raw_http2 as h

SERVICE = "test.Probe"
COUNT = struct.Struct(">II")
"""Request of `Count`: how many messages, of how many bytes. Answer of `Sum`: how many messages, and bytes modulo 2**32."""
COUNTED_BYTES_MAX = 2**29
"""Of the answers of `Count`; who attacks it may ask for more."""

Handler = Any


def path(method: str) -> str:
    return f"/{SERVICE}/{method}"


async def assert_served(client: h.RawClient, number: int) -> None:
    """A call with this number, the next one, is answered."""
    client.send(h.call(number, path("Echo"), b"x"))
    await client.end_of(number)
    assert client.data_of(number) == h.message(b"x")


def numbered(number: int, size: int) -> bytes:
    """A message that tells its place in a stream; of at least 4 bytes."""
    return number.to_bytes(4, "big").ljust(size, bytes((number % 251,)))


def service(**methods: Handler) -> grpc.GenericRpcHandler:
    """The service with these methods instead of the probe's own."""
    return grpc.method_handlers_generic_handler(SERVICE, methods)


unary: Callable[..., Handler] = grpc.unary_unary_rpc_method_handler
unary_stream: Callable[..., Handler] = grpc.unary_stream_rpc_method_handler
stream_unary: Callable[..., Handler] = grpc.stream_unary_rpc_method_handler
stream_stream: Callable[..., Handler] = grpc.stream_stream_rpc_method_handler


class Probe:
    """Lives as long as its server; tells its test which calls that wait have begun, and how each of them ended."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.may_read = asyncio.Event()
        """What `SumLater` waits for."""

    def handlers(self) -> grpc.GenericRpcHandler:
        return service(
            Echo=unary(self._echo),
            Count=unary_stream(self._count),
            CountYielding=unary_stream(self._count_yielding),
            Sum=stream_unary(self._sum),
            SumIterating=stream_unary(self._sum_iterating),
            SumLater=stream_unary(self._sum_later),
            Converse=stream_stream(self._converse),
            ConverseYielding=stream_stream(self._converse_yielding),
            Wait=unary(self._wait),
            WaitStreaming=stream_stream(self._wait_streaming),
            Tasks=unary(self._tasks),
        )

    async def _echo(self, data: bytes, _context: Any) -> bytes:
        return data

    async def _count(self, data: bytes, context: Any) -> None:
        count, size = COUNT.unpack(data.ljust(COUNT.size, b"\x00")[: COUNT.size])
        if count * size > COUNTED_BYTES_MAX:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too much")
        for number in range(count):
            await context.write(numbered(number, size))

    async def _count_yielding(self, data: bytes, _context: Any) -> AsyncIterator[bytes]:
        count, size = COUNT.unpack(data)
        for number in range(count):
            yield numbered(number, size)

    async def _sum(self, _requests: object, context: Any) -> bytes:
        count = total = 0
        while (data := await context.read()) is not grpc.aio.EOF:
            count, total = count + 1, total + len(data)
        return COUNT.pack(count, total % 2**32)

    async def _sum_iterating(self, requests: AsyncIterator[bytes], _context: Any) -> bytes:
        count = total = 0
        async for data in requests:
            count, total = count + 1, total + len(data)
        return COUNT.pack(count, total % 2**32)

    async def _sum_later(self, _requests: object, context: Any) -> bytes:
        """Reads nothing until it may, then checks the order of the messages, which are `numbered`."""
        self.begun.put_nowait("SumLater")
        await self.may_read.wait()
        count = total = 0
        while (data := await context.read()) is not grpc.aio.EOF:
            if data != numbered(count, len(data)):
                await context.abort(grpc.StatusCode.DATA_LOSS, f"message {count} is another one")
            count, total = count + 1, total + len(data)
        return COUNT.pack(count, total % 2**32)

    async def _converse(self, _requests: object, context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(data)

    async def _converse_yielding(self, requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        async for data in requests:
            yield data

    async def _wait(self, _data: bytes, _context: Any) -> bytes:
        await self._wait_for_ever("Wait")
        return b""

    async def _wait_streaming(self, _requests: object, context: Any) -> None:
        """Answers one message, and then neither reads nor writes."""
        await context.write(await context.read())
        await self._wait_for_ever("WaitStreaming")

    async def _wait_for_ever(self, name: str) -> None:
        self.begun.put_nowait(name)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended.put_nowait("cancelled")
            raise

    async def _tasks(self, _data: bytes, _context: Any) -> bytes:
        """How many tasks the process has: what calls left behind is among them."""
        return str(len(asyncio.all_tasks())).encode()
