"""Compressed messages of requests (gRPC over HTTP/2, Compressed-Flag): gzip, as stock clients have it.

Law: a compressed message takes no more memory than a request that is not, and nobody waits for it but its call: what is more than
a little is inflated in a thread, one message after the other.
"""

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor

import grpc

from lockstep.transport.errors import ConnectionEnded

INFLATED_BYTES_MAX = 4 << 20
"""Of a message that was compressed: a thousand times as much may come of what is sent. Bigger ones come as they are."""
AT_ONCE_BYTES_MAX = 64 << 10
"""On the event loop; takes a fraction of a millisecond."""
_GZIP = 16 + zlib.MAX_WBITS


class Deflated(bytes):
    """A message as it was compressed."""


class Inflating:
    """Lives as long as its server."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    async def inflate(self, data: Deflated, bytes_max: int) -> bytes:
        """The message; `bytes_max`: that it may have. Raises `ConnectionEnded` with the status of its call."""
        bytes_max = min(bytes_max, INFLATED_BYTES_MAX)
        inflating = zlib.decompressobj(_GZIP)
        try:
            begin = inflating.decompress(data, min(bytes_max, AT_ONCE_BYTES_MAX) + 1)
            if not inflating.eof and len(begin) <= bytes_max and inflating.unconsumed_tail:
                begin += await self._rest(inflating, bytes_max + 1 - len(begin))
        except zlib.error as error:
            raise ConnectionEnded(grpc.StatusCode.INTERNAL, f"a message is no gzip: {error}") from error
        if len(begin) > bytes_max:
            text = f"a compressed message has more than {bytes_max} bytes"
            raise ConnectionEnded(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        if not inflating.eof or inflating.unused_data:
            raise ConnectionEnded(grpc.StatusCode.INTERNAL, "a message is not one whole gzip member")
        return begin

    async def _rest(self, inflating: "zlib._Decompress", size: int) -> bytes:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "inflating")
        tail = inflating.unconsumed_tail
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, inflating.decompress, tail, size
        )

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)
