"""What the JMS suite may ask of the cluster that it runs against: one line in, one line out, over a port of loopback.

Law: "ok" means that it is done; whatever cannot be done is said in its place, and nothing is asked twice at a time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

Wish = Callable[..., Awaitable[None]]


@contextlib.asynccontextmanager
async def controlled_by(wishes: Mapping[str, Wish]) -> AsyncIterator[str]:
    """Fulfils wishes by their first word, with the others as arguments; gives the address to ask at."""
    turn = asyncio.Lock()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word, *arguments = (await reader.readline()).decode().split()
        try:
            async with turn:
                await wishes[word](*arguments)
            answer = "ok"
        except Exception as error:
            answer = repr(error)
        writer.write(f"{answer}\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
