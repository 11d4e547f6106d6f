"""Benchmark of the store: appends per second for frames of 1, 10 and 100 messages of 1 KiB, and recovery of a big snapshot.

Law: the real process, over its Unix socket, with real syncs; every figure stands beside the time that one fdatasync of that
size took in the same directory just before. `make bench-store`, or `python -m bench.store --messages N --directory DIR`.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any, Self

import grpc.aio

from bench.measuring import cpu_seconds, percentile
from bench.processes import resident_mib
from bench.scratch import add_directory, run_on_disk
from lockstep.core.frames import encode_frame
from lockstep.core.ids import Epoch, Incarnation, LogIndex, QueueId, SetName, TimeMs, place
from lockstep.core.item_values import EntryValue, MetaValue, encode, encode_content
from lockstep.core.items import META_KEY, entry_key, epoch_key, message_key, queue_key
from lockstep.core.records import AnyRecord, DeclareQueue, Message, Publish
from lockstep.core.store_protocol import (
    AnyStoreAnswer,
    AnyStoreRequest,
    Appended,
    AppendFrames,
    BeginInstall,
    EndInstall,
    Installed,
    InstallItems,
    ItemsInstalled,
    LoadState,
    OpenSet,
    SetOpened,
    StateChunk,
    StateItem,
)
from lockstep.runtime.channels import open_channel
from lockstep.runtime.process import ensure_malloc_settings
from lockstep.runtime.store_codec import decode_answer, encode_request
from lockstep.runtime.supervisor import POLL_SECONDS, ChildProcess

SET, ME, QUEUE = SetName("bench"), Incarnation("bench"), QueueId(1)
BODY = os.urandom(1024)
WINDOWS = ((1, 1), (1, 2), (1, 64), (10, 1), (10, 2), (10, 32), (100, 1), (100, 2), (100, 8))
"""Messages of a frame, and frames in flight."""
READY_SECONDS_MAX = 600.0
"""A start on a big snapshot reads much."""


class Store:
    """A store process and one stream to it, from `start` to `end`, as often as that is wanted; ended with `async with`."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._address = f"unix:{data}.sock"
        self._starts = count(1)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        """Returns when it is ready. Raises `EOFError` if it ends before."""
        command = (
            sys.executable,
            "-m",
            "services.store",
            "--data",
            str(self.data),
            "--listen",
            self._address,
        )
        self._process = ChildProcess("store", command, Path(f"{self.data}-{next(self._starts)}.log"))
        try:
            await self._process.start()
            await self._until_ready()
        except BaseException:
            await self._process.kill()
            raise
        self._channel = open_channel(self._address)
        method: Any = self._channel.stream_stream("/lockstep.wire.v1.Store/Append")
        self._call = method()

    async def _until_ready(self) -> None:
        async with asyncio.timeout(READY_SECONDS_MAX):
            while "event=ready" not in self._process.last_words():
                if not self._process.is_running:
                    raise EOFError(f"the store ended: {self._process.last_words()}")
                await asyncio.sleep(POLL_SECONDS)

    async def end(self) -> None:
        """SIGKILL."""
        await self._process.kill()
        await self._channel.close()

    async def send(self, request: AnyStoreRequest) -> None:
        await self._call.write(encode_request(request))

    async def receive(self) -> AnyStoreAnswer:
        """The next answer. Raises `EOFError` where the store has no more to say."""
        while (data := await self._call.read()) is not grpc.aio.EOF:
            if (answer := decode_answer(data)) is not None:
                return answer
        raise EOFError(f"the store ended its stream: {self._process.last_words()}")


def fdatasync_us(directory: Path, size: int) -> float:
    """Median of 200, into room that was written before."""
    path, data = directory / "probe", b"x" * size
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    times = []
    try:
        os.write(descriptor, bytes(200 * size))
        os.fsync(descriptor)
        for number in range(200):
            os.pwrite(descriptor, data, number * size)
            begin = time.perf_counter()
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - begin)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(times) * 1e6


async def bench_appends(store: Store, first: int, batch: int, seconds: float, window: int) -> int:
    """Sends frames of `batch` messages, `window` requests unanswered at most; prints a line and gives the log's end."""
    sync_us = fdatasync_us(store.data, batch * 1100)
    sent_frames: asyncio.Queue[tuple[int, float] | None] = asyncio.Queue()
    waits: list[float] = []
    end = sent = first - 1
    begin, cpu = time.perf_counter(), cpu_seconds(store.pid)
    room = asyncio.Semaphore(window)
    records: list[tuple[AnyRecord, bool]] = [
        (Publish(None, None, 0, (Message((QUEUE,), b"", BODY, is_durable=True),)), True) for _ in range(batch)
    ]

    async def receive() -> None:
        nonlocal end
        while (frame := await sent_frames.get()) is not None:
            last, sent_at = frame
            while end < last:
                answer = await store.receive()
                assert isinstance(answer, Appended), answer
                end = answer.log_end
            waits.append(time.perf_counter() - sent_at)
            room.release()

    async with asyncio.TaskGroup() as working:
        working.create_task(receive())
        while time.perf_counter() - begin < seconds:
            await room.acquire()
            frame = encode_frame(Epoch(1), LogIndex(sent + 1), LogIndex(end), TimeMs(1), records)
            sent += batch
            sent_frames.put_nowait((sent, time.perf_counter()))
            await store.send(AppendFrames(SET, Epoch(1), ME, (frame.durable,), LogIndex(end)))
        sent_frames.put_nowait(None)
    took, cpu = time.perf_counter() - begin, cpu_seconds(store.pid) - cpu
    messages = end - first + 1
    print(
        f"{batch:5d} x 1 KiB, {window:3d} in flight: {messages / batch / took:8,.0f} frames/s {messages / took:9,.0f} msgs/s"
        f" {messages * 1024 / took / 2**20:7.1f} MiB/s   p50 {percentile(waits, 0.5) * 1e3:6.2f} ms"
        f"  p99 {percentile(waits, 0.99) * 1e3:6.2f} ms   store's CPU {cpu / messages * 1e6:5.1f} us/msg"
        f"   fdatasync alone {sync_us:.0f} us"
    )
    return end


async def bench_recovery(store: Store, messages: int) -> None:
    """A snapshot of so many durable messages, then a start on it."""
    await store.send(OpenSet(SET, Epoch(1), ME))
    assert isinstance(await store.receive(), SetOpened)
    last = LogIndex(messages + 1)
    begin = time.perf_counter()
    await store.send(BeginInstall(SET, Epoch(1), ME, last, ((Epoch(1), LogIndex(1)),), 1))
    items = [
        StateItem(META_KEY, encode(MetaValue(last, TimeMs(1), LogIndex(0)))),
        StateItem(epoch_key(Epoch(1)), encode(1)),
        StateItem(queue_key(QUEUE), encode(DeclareQueue(None, "q", True))),
    ]
    for index in range(2, messages + 2):
        content = Message((QUEUE,), b"", BODY, is_durable=True)
        number = place(index, 0)
        items.append(StateItem(entry_key(QUEUE, number), encode(EntryValue(number))))  # type: ignore[arg-type]
        items.append(StateItem(message_key(number), encode_content(content)))  # type: ignore[arg-type]
        if len(items) >= 1000:
            await _install(store, items)
            items.clear()
    await _install(store, items)
    await store.send(EndInstall(SET, Epoch(1), ME))
    assert isinstance(await store.receive(), Installed)
    installed = time.perf_counter() - begin
    await store.end()
    begin = time.perf_counter()
    await store.start()
    started = time.perf_counter() - begin
    await store.send(OpenSet(SET, Epoch(2), ME))
    assert isinstance(await store.receive(), SetOpened)
    opened = time.perf_counter() - begin
    await store.send(LoadState(SET, Epoch(2), ME))
    count = 0
    while isinstance(answer := await store.receive(), StateChunk):
        count += len(answer.items)
    loaded = time.perf_counter() - begin
    print(
        f"{messages:,} messages in the snapshot: installed in {installed:.1f} s; after SIGKILL: process ready {started:.2f} s,"
        f" set open {opened:.2f} s, all {count:,} items sent to the broker {loaded:.2f} s;"
        f" store's memory {resident_mib(store.pid):.0f} MiB"
    )


async def _install(store: Store, items: list[StateItem]) -> None:
    await store.send(InstallItems(SET, Epoch(1), ME, tuple(items)))
    assert isinstance(await store.receive(), ItemsInstalled)


async def main(messages: int, seconds: float, directory: Path) -> None:
    async with Store(directory / "appends") as store:
        await store.send(OpenSet(SET, Epoch(1), ME))
        assert isinstance(await store.receive(), SetOpened)
        declare: list[tuple[AnyRecord, bool]] = [(DeclareQueue(None, "q", True), True)]
        frame = encode_frame(Epoch(1), LogIndex(1), LogIndex(0), TimeMs(1), declare)
        await store.send(AppendFrames(SET, Epoch(1), ME, (frame.durable,), LogIndex(0)))
        assert isinstance(await store.receive(), Appended)
        end = 1
        for batch, window in WINDOWS:
            end = await bench_appends(store, end + 1, batch, seconds, window)
    if messages:
        async with Store(directory / "recovery") as store:
            await bench_recovery(store, messages)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="in the snapshot of the recovery; 0: leave it out"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="per line of the appends")
    add_directory(parser)
    given = parser.parse_args()
    ensure_malloc_settings()
    run_on_disk(lambda scratch: main(given.messages, given.seconds, scratch), given.directory)
