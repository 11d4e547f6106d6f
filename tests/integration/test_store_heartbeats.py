"""Heartbeats of a store that nobody could ask for: a broker's own wait behind the big request that is on its way, or waits."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.store_protocol import AnyStoreRequest, Appended, AppendFrames, OpenSet
from lockstep.runtime.channels import make_server, open_channel
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.pulses import PULSE_SECONDS
from lockstep.runtime.store_codec import HEARTBEAT, decode_answer, encode_request
from services.store.core.disk import WriteSegment
from services.store.directory_disk import DirectoryDisk
from services.store.server import StoreServer
from services.store.settings import StoreSettings
from tests.integration.store_process import ME, SERVICE, SET, StoreProcess, StoreStream, publishing
from tests.unit.lockstep.transport import raw_http2 as h

STREAM = 1
PART_BYTES = 64 << 10


async def test_heartbeats_are_said_while_a_big_request_is_on_its_way(tmp_path: Path) -> None:
    store = StoreProcess(tmp_path / "data")
    (port,) = choose_ports(1)
    store.listen_on(f"127.0.0.1:{port}")
    data = encoded(AppendFrames(SET, Epoch(1), ME, (publishing(1, 2, 8 << 20),), LogIndex(0)))
    async with store.running():
        client = await h.RawClient.connect(port)
        client.send(h.request(STREAM, f"{SERVICE}Append"))
        client.send(h.frame(h.DATA, 0, STREAM, encoded(OpenSet(SET, Epoch(1), ME))))
        reading = asyncio.ensure_future(read_all(client))
        while not client.data_of(STREAM):
            await asyncio.sleep(0.01)
        opened = len(client.data_of(STREAM))
        for place in range(0, 16 * PART_BYTES, PART_BYTES):
            for at in range(place, place + PART_BYTES, 16_384):
                client.send(h.frame(h.DATA, 0, STREAM, data[at : at + 16_384]))
            await asyncio.sleep(PULSE_SECONDS / 4)
        beats = (len(client.data_of(STREAM)) - opened) / len(h.message(HEARTBEAT))
        assert 2 <= beats <= 6, "one in each pulse"
        await asyncio.sleep(2 * PULSE_SECONDS)
        so_far = len(client.data_of(STREAM))
        await asyncio.sleep(4 * PULSE_SECONDS)
        assert len(client.data_of(STREAM)) == so_far, "who says nothing is told nothing"
        reading.cancel()
        await client.close()


def encoded(request: AnyStoreRequest) -> bytes:
    """With gRPC's prefix."""
    data = encode_request(request)
    return h.message(b"".join(data) if isinstance(data, tuple) else data)


async def read_all(client: h.RawClient) -> None:
    while not client.is_over:
        await client.receive()


class SlowDisk(DirectoryDisk):
    """Takes its time for a group."""

    seconds = 0.0

    def write_and_sync(self, set_name: SetName, step: WriteSegment) -> None:
        time.sleep(self.seconds)
        super().write_and_sync(set_name, step)


@asynccontextmanager
async def serving(settings: StoreSettings, disk: DirectoryDisk) -> AsyncIterator[None]:
    store, server = StoreServer(settings, disk), make_server()
    server.add_generic_rpc_handlers((store.handlers(),))
    server.add_insecure_port(settings.listen)
    await server.start()
    beating = asyncio.ensure_future(store.beat())
    try:
        yield
    finally:
        beating.cancel()
        await server.stop(0)
        await store.stop()
        disk.close()


@pytest.mark.parametrize("is_hanging", [False, True])
async def test_heartbeats_are_said_while_requests_wait_for_room_unless_the_disk_hangs(
    tmp_path: Path, is_hanging: bool
) -> None:
    seconds = 1.0
    settings = StoreSettings(
        tmp_path / "data",
        f"unix:{tmp_path / 'socket'}",
        waiting_bytes_max=1000,
        stall_seconds=seconds / 100 if is_hanging else 2 * seconds,
    )
    disk = SlowDisk(settings.data)
    async with serving(settings, disk):
        stream = StoreStream(channel := open_channel(settings.listen))
        await stream.open()
        disk.seconds = seconds
        for first in (1, 2, 3):
            frames = (publishing(first, 1, 2000),)
            await stream.send(AppendFrames(SET, Epoch(1), ME, frames, LogIndex(0)))
        beats, end = 0, 0
        while end < 3:
            answer = decode_answer(await stream.call.read())
            if answer is None:
                beats += 1
                continue
            assert isinstance(answer, Appended), answer
            end = answer.log_end
        assert (beats >= 3) is not is_hanging
        await channel.close()
