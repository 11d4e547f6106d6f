"""Frames that a real store keeps for readers of committed events: read in pieces, after a kill, and refused when they went."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.frames import check_frame, encode_frame
from lockstep.core.ids import Epoch, LogIndex, TimeMs
from lockstep.core.records import AnyRecord, CloseSubscription, OpenSubscription
from lockstep.core.store_protocol import Appended
from lockstep.runtime.status import error_from
from lockstep.wire.v1 import store_pb2
from tests.integration.store_process import SERVICE, SET, StoreProcess, StoreStream, publishing

COUNT = 400


def saying(index: int, record: AnyRecord) -> bytes:
    return encode_frame(Epoch(1), LogIndex(index), LogIndex(0), TimeMs(index), [(record, True)]).durable


async def read(channel: grpc.aio.Channel, from_index: int, to_index: int, bytes_max: int) -> list[bytes]:
    request = store_pb2.ReadJournalRequest(
        resource_set=SET, epoch=9, from_index=from_index, to_index=to_index, bytes_max=bytes_max
    )
    ask: Any = channel.unary_stream(f"{SERVICE}ReadJournal")
    found: list[bytes] = []
    async for data in ask(request.SerializeToString()):
        found += store_pb2.ReadJournalResponse.FromString(data).frames
    return found


async def status(
    channel: grpc.aio.Channel, holds: Callable[[store_pb2.StoredSet], bool] = lambda status: True
) -> store_pb2.StoredSet:
    """The set's, once something holds."""
    ask: Any = channel.unary_unary(f"{SERVICE}GetStatus")
    async with asyncio.timeout(60):
        while not holds(found := store_pb2.GetStoreStatusResponse.FromString(await ask(b"")).sets[0]):
            await asyncio.sleep(0.05)
    return found


async def is_lowest_told(lowest: int, channel: grpc.aio.Channel) -> bool:
    """What the status says is what a refusal says, and can be read. False if the store consolidated more meanwhile."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read(channel, 1, 0, 0)
    refusal = error_from(raised.value, is_read=True)
    try:
        first = check_frame((await read(channel, lowest, 0, 0))[0]).first
    except grpc.aio.AioRpcError:
        first = LogIndex(0)
    if (await status(channel)).lowest_index != lowest:
        return False
    assert (refusal.code, refusal.details["lowest_index"], first) == (ErrorCode.OUT_OF_RANGE, lowest, lowest)
    return True


async def test_owed_frames_are_there_until_their_group_is_closed(tmp_path: Path) -> None:
    store = StoreProcess(tmp_path / "data")
    sent = [publishing(1), saying(2, OpenSubscription(None, "spark", LogIndex(0)))]
    sent += [publishing(index) for index in range(3, COUNT + 1)]
    async with store.running() as channel:
        stream = StoreStream(channel)
        await stream.open()
        for index, data in enumerate(sent, 1):
            assert isinstance(await stream.append(data, commit=index - 1), Appended)
        await stream.tell_commit(COUNT)
        await status(channel, lambda status: status.owed_bytes >= 4 * 65536)
        await store.end(signal.SIGKILL)
    async with store.running() as channel:
        stream = StoreStream(channel)
        await stream.open()
        await stream.tell_commit(COUNT)
        assert (await status(channel)).lowest_index == 1
        found: list[bytes] = []
        while len(found) < COUNT:
            piece = await read(channel, len(found) + 1, COUNT, 20_000)
            assert piece
            found += piece
        assert found == sent
        for index in range(COUNT + 1, COUNT + 200):
            is_first = index == COUNT + 1
            data = saying(index, CloseSubscription(None, LogIndex(2))) if is_first else publishing(index)
            await stream.append(data, commit=index - 1)
        await status(channel, lambda status: status.owed_bytes == 0)
        async with asyncio.timeout(60):
            while not await is_lowest_told((await status(channel)).lowest_index, channel):
                await asyncio.sleep(0.05)
