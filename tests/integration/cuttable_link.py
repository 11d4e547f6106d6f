"""A TCP link to one server that a test can make silent, or cut."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class CuttableLink:
    """Forwards connections to `endpoint` (http://host:port) while its `async with` lasts, as the test allows."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._is_swallowing = False
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def swallow_answers(self) -> None:
        """From now on what the server sends is dropped; what the client sends still arrives."""
        self._is_swallowing = True

    def cut(self) -> None:
        """Resets all connections; new ones work, and answers pass again."""
        self._is_swallowing = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    heal = cut

    async def close(self) -> None:
        """Ends everything; new connections are refused."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def overhear(self, connection: object, data: bytes) -> None:
        """A client says this on one of its connections; for whoever wants to know."""

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, far_writer]
        for source, sink, is_answers in ((reader, far_writer, False), (far_reader, writer, True)):
            pump = asyncio.create_task(self._pump(source, sink, is_answers))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if not is_answers:
                    self.overhear(source, data)
                if not (is_answers and self._is_swallowing):
                    sink.write(data)
                    await sink.drain()
        sink.transport.abort()
