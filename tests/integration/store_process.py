"""A real store process and a raw stream to it, for tests.

Law: the process is the installed command with its own directory; whoever makes one stops or kills it (`async with`).
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from lockstep.core.frames import encode_frame
from lockstep.core.ids import Epoch, Incarnation, LogIndex, QueueId, SetName, TimeMs
from lockstep.core.records import AnyRecord, DeclareQueue, Message, Publish
from lockstep.core.store_protocol import (
    AnyStoreAnswer,
    AnyStoreRequest,
    AppendFrames,
    LoadState,
    OpenSet,
    SetOpened,
    StateChunk,
    StateItem,
)
from lockstep.runtime.channels import open_channel
from lockstep.runtime.store_codec import decode_answer, encode_request

SET, ME = SetName("orders"), Incarnation("me")
QUEUE = QueueId(1)
SERVICE = "/lockstep.wire.v1.Store/"
_END: Any = grpc.aio.EOF


class StoreStream:
    """One Append stream, as a broker has it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        method: Any = channel.stream_stream(f"{SERVICE}Append")
        self.call = method()

    async def send(self, request: AnyStoreRequest) -> None:
        await self.call.write(encode_request(request))

    async def receive(self) -> AnyStoreAnswer:
        """The next answer; raises `EOFError` at the end of the stream, and gRPC's errors."""
        while True:
            data = await asyncio.wait_for(self.call.read(), 20)
            if data is _END:
                raise EOFError
            answer = decode_answer(data)
            if answer is not None:
                return answer

    async def ask(self, request: AnyStoreRequest) -> AnyStoreAnswer:
        await self.send(request)
        return await self.receive()

    async def open(self, epoch: int = 1) -> SetOpened:
        answer = await self.ask(OpenSet(SET, Epoch(epoch), ME))
        assert isinstance(answer, SetOpened), answer
        return answer

    async def append(self, *frames: bytes, commit: int = 0, epoch: int = 1) -> AnyStoreAnswer:
        return await self.ask(AppendFrames(SET, Epoch(epoch), ME, frames, LogIndex(commit)))

    async def tell_commit(self, commit: int, epoch: int = 1) -> None:
        await self.send(AppendFrames(SET, Epoch(epoch), ME, (), LogIndex(commit)))

    async def load(self, epoch: int = 1) -> tuple[list[StateItem], list[bytes], AnyStoreAnswer]:
        """(items, frames, last answer)."""
        await self.send(LoadState(SET, Epoch(epoch), ME))
        items: list[StateItem] = []
        frames: list[bytes] = []
        while isinstance(answer := await self.receive(), StateChunk):
            items += answer.items
            frames += answer.frames
        return items, frames, answer


class StoreProcess:
    """One process; `address` is known before it listens."""

    def __init__(self, data: Path, arguments: Sequence[str] = (), command: Sequence[str] = ()) -> None:
        self.data = data
        self.address = f"unix:{data}.sock"
        self._arguments = [
            *command,
            *(sys.executable, "-m", "services.store", "--data", str(data), "--listen", self.address),
            *("--segment-bytes", "65536", "--reserve-bytes", "0"),
            *arguments,
        ]
        self.process: asyncio.subprocess.Process | None = None
        self.log = b""

    def listen_on(self, address: str) -> None:
        """Elsewhere than beside its directory."""
        self._arguments[self._arguments.index(self.address)] = self.address = address

    async def start(self) -> None:
        """Returns when it listens."""
        self.log = b""
        self.process = await asyncio.create_subprocess_exec(
            *self._arguments, stderr=asyncio.subprocess.PIPE, start_new_session=True
        )
        assert self.process.stderr is not None
        while b"event=ready" not in self.log:
            line = await asyncio.wait_for(self.process.stderr.readline(), 20)
            if not line:
                await self.process.wait()
                raise AssertionError(f"the store did not start: {self.log.decode()}")
            self.log += line
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        assert self.process is not None and self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log += line

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal to the whole process group and waits for the end."""
        assert self.process is not None
        if self.process.returncode is None:
            os.killpg(self.process.pid, number)
        status = await asyncio.wait_for(self.process.wait(), 20)
        await self._draining
        return status

    @asynccontextmanager
    async def running(self) -> AsyncIterator[grpc.aio.Channel]:
        """Started, with a channel to it; killed at the end if it still runs."""
        await self.start()
        channel = open_channel(self.address)
        try:
            yield channel
        finally:
            await channel.close()
            await self.end(signal.SIGKILL)

    @property
    def segments(self) -> list[Path]:
        return sorted((self.data / "sets" / f"set-{SET}" / "journal").glob("*.segment"))


def publishing(first: int, count: int = 1, body_bytes: int = 1024, epoch: int = 1, commit: int = 0) -> bytes:
    """A frame of messages for one durable queue, which the frame that begins at 1 declares."""
    records: list[tuple[AnyRecord, bool]] = []
    for index in range(first, first + count):
        if index == 1:
            records.append((DeclareQueue(None, "q", True), True))
        else:
            body = index.to_bytes(8, "big") * (body_bytes // 8)
            records.append((Publish(None, None, 0, (Message((QUEUE,), b"", body, is_durable=True),)), True))
    return encode_frame(Epoch(epoch), LogIndex(first), LogIndex(commit), TimeMs(first), records).durable
