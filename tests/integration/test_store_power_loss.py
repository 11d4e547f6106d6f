"""The real store process on a file system that loses power, fails to sync and becomes full (`power_loss_fs.py`)."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
import pytest
from msgspec.structs import replace

from lockstep.core.errors import ErrorCode
from lockstep.core.frames import Frame, check_frame
from lockstep.core.ids import Epoch, Incarnation, LogIndex
from lockstep.core.items import Item
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from lockstep.core.store_protocol import Appended, AppendFrames, OpenSet, StateLoaded, StoreRefused
from services.store.core.journal_format import encode_segment_header, salt_of
from services.store.core.meta import SetMeta, decode_set_meta, encode_meta
from tests.integration.power_loss_fs import PowerLossFs, reason_to_skip
from tests.integration.store_process import ME, SET, StoreProcess, StoreStream, publishing

pytestmark = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[PowerLossFs]:
    async with PowerLossFs(tmp_path / "disk") as mounted:
        yield mounted


def store_on(disk: PowerLossFs, tmp_path: Path) -> StoreProcess:
    store = StoreProcess(disk.mountpoint / "data", ["--segment-bytes", "16384"])
    store.listen_on(f"unix:{tmp_path}/s.sock")
    return store


async def lose_power(disk: PowerLossFs, seed: int) -> None:
    await disk.lose_power(seed)
    await disk.mount()


ACKNOWLEDGED_MIN = 30
"""Appends, between two losses of power."""


def always(_epoch: int) -> bool:
    return True


async def load_up(
    stream: StoreStream, end: int, epoch: int, seconds: float, is_enough: Callable[[int], bool] = always
) -> tuple[dict[int, bytes], int, int]:
    """Appends as fast as it goes until the time is over, something was acknowledged and `is_enough` says so of the epoch:
    (frames sent, acknowledged end, commit told).
    """
    sent: dict[int, bytes] = {}
    acknowledged = end

    async def receive() -> None:
        nonlocal acknowledged
        while True:
            answer = await stream.receive()
            assert isinstance(answer, Appended), answer
            acknowledged = answer.log_end

    receiving = asyncio.ensure_future(receive())
    deadline = asyncio.get_running_loop().time() + seconds
    index, commit = end, 0
    try:
        while (
            (now := asyncio.get_running_loop().time()) < deadline
            or acknowledged < end + ACKNOWLEDGED_MIN
            or not is_enough(epoch)
        ):
            assert now < deadline + 60, f"{acknowledged - end} appends were acknowledged in a minute"
            index += 1
            sent[index], commit = publishing(index, body_bytes=400, epoch=epoch), acknowledged
            await stream.send(AppendFrames(SET, Epoch(epoch), ME, (sent[index],), LogIndex(commit)))
            await asyncio.sleep(0.002)
    finally:
        receiving.cancel()
    return sent, acknowledged, commit


async def lose_power_under_load(
    disk: PowerLossFs, store: StoreProcess, losses: int, is_enough: Callable[[int], bool] = always
) -> tuple[int, int]:
    """Answers the end of what was acknowledged, and how many losses met something that was not."""
    frames, end, in_flight = dict[int, bytes](), 0, 0
    await disk.command("slow", write=0, sync=0.004)
    for epoch in range(1, losses + 1):
        async with store.running() as channel:
            stream = StoreStream(channel)
            opened = await stream.open(epoch)
            assert opened.damage == ""
            assert opened.log_end >= end, "acknowledged, and gone after a power loss"
            items, loaded_frames, loaded = await stream.load(epoch)
            assert isinstance(loaded, StateLoaded)
            frames = {index: data for index, data in frames.items() if index <= opened.log_end}
            expected, found = SetState(SET), SetState(SET)
            found = SetState.from_items(SET, [Item(item.key, item.value, True) for item in items])
            for durable in loaded_frames:
                found.apply_frame(Frame(check_frame(durable), durable, b""))
            for _, durable in sorted(frames.items()):
                expected.apply_frame(Frame(check_frame(durable), durable, b""))
            assert state_hash(found) == state_hash(expected)
            seconds = random.Random(epoch).uniform(0.2, 0.8)
            sent, end, _ = await load_up(stream, opened.log_end, epoch, seconds, is_enough)
            frames |= sent
            in_flight += max(sent) > end
            await store.end(signal.SIGKILL)
        await lose_power(disk, epoch)
        await disk.command("slow", write=0, sync=0.004)
    return end, in_flight


async def test_no_power_loss_takes_what_was_acknowledged(disk: PowerLossFs, tmp_path: Path) -> None:
    end, in_flight = await lose_power_under_load(disk, store_on(disk, tmp_path), 5)
    assert in_flight > 0
    assert end > 100


async def watch_files(store: StoreProcess, used_again: set[str]) -> None:
    """Which segments hold groups of an older one; ends with its task."""
    while True:
        with contextlib.suppress(OSError):
            for path in store.segments:
                groups = path.read_bytes().split(b"LKSG")[1:]
                # In each behind the magic: version, salt, size, and the segment's number.
                if {int.from_bytes(group[12:20], "little") for group in groups} - {int(path.stem)}:
                    used_again.add(path.name)
        await asyncio.sleep(0.01)


async def test_no_power_loss_takes_what_was_acknowledged_where_files_are_used_again(
    disk: PowerLossFs, tmp_path: Path
) -> None:
    """In each of the store's lives at least one more is; the pages behind its first group still hold what it was before."""
    store, used_again = store_on(disk, tmp_path), set[str]()
    watching = asyncio.ensure_future(watch_files(store, used_again))
    end, in_flight = await lose_power_under_load(disk, store, 3, lambda epoch: len(used_again) >= epoch)
    watching.cancel()
    assert in_flight > 0
    assert end > 60
    assert len(used_again) > 2


async def test_a_failed_sync_is_answered_and_the_disk_is_believed_only_after_reading_it(
    disk: PowerLossFs, tmp_path: Path
) -> None:
    store = store_on(disk, tmp_path)
    async with store.running() as channel:
        stream = StoreStream(channel)
        await stream.open()
        assert isinstance(await stream.append(publishing(1)), Appended)
        await disk.command("fail", what="sync", count=1, match=".segment")
        refused = await stream.append(publishing(2))
        assert isinstance(refused, StoreRefused)
        assert refused.code is ErrorCode.UNAVAILABLE
        again = await stream.append(publishing(2))
        assert isinstance(again, StoreRefused), "closed until it is opened"
        opened = await stream.open()
        # A sync that fails may have written everything; whatever is reported now has to be there for ever.
        assert opened.damage == ""
        assert opened.log_end in (1, 2)
        assert isinstance(await stream.append(publishing(2)), Appended)
        await store.end(signal.SIGKILL)
    await lose_power(disk, 7)
    async with store.running() as channel:
        assert (await StoreStream(channel).open()).log_end == 2


async def test_a_full_disk_and_a_slow_one_lose_nothing(disk: PowerLossFs, tmp_path: Path) -> None:
    store = store_on(disk, tmp_path)
    async with store.running() as channel:
        stream = StoreStream(channel)
        await stream.open()
        await disk.command("slow", write=0, sync=0.05)
        for index in range(1, 6):
            assert isinstance(await stream.append(publishing(index)), Appended)
        await disk.command("heal")
        await disk.limit_free(40_000)
        index = 6
        while isinstance(answer := await stream.append(publishing(index)), Appended):
            index += 1
        assert isinstance(answer, StoreRefused)
        assert answer.code is ErrorCode.STORE_FULL
        await disk.limit_free(None)
        assert isinstance(await stream.append(publishing(index)), Appended)
        await store.end(signal.SIGKILL)
    await lose_power(disk, 9)
    async with store.running() as channel:
        try:
            opened = await StoreStream(channel).open()
        except grpc.aio.AioRpcError as error:
            raise AssertionError("the store did not come back") from error
        assert (opened.log_end, opened.damage) == (index, "")


# --- names ------------------------------------------------------------------------------------------------------------


async def lose_all_that_is_not_synced(disk: PowerLossFs) -> None:
    await disk.lose_power(1, keeps_nothing=True)
    await disk.mount()


async def is_fenced(store: StoreProcess, epoch: int) -> bool:
    """Whether the old primary of `epoch` is refused."""
    async with store.running() as channel:
        answer = await StoreStream(channel).ask(OpenSet(SET, Epoch(epoch), Incarnation("old")))
    return isinstance(answer, StoreRefused) and answer.code is ErrorCode.WRONG_EPOCH


async def test_a_fence_whose_name_could_not_be_made_durable_is_made_so_before_it_is_answered(
    disk: PowerLossFs, tmp_path: Path
) -> None:
    store = store_on(disk, tmp_path)
    async with store.running() as channel:
        await StoreStream(channel).open(1)
        await disk.command("fail", what="sync directory", count=1, match=f"set-{SET}")
        refused = await StoreStream(channel).ask(OpenSet(SET, Epoch(2), ME))
        assert isinstance(refused, StoreRefused)
        assert (await StoreStream(channel).open(2)).highest_epoch == 2
        await store.end(signal.SIGKILL)
    await lose_all_that_is_not_synced(disk)
    assert await is_fenced(store, 1)


async def test_a_fence_that_a_dead_process_left_unsynced_is_made_durable_before_it_is_answered(
    disk: PowerLossFs, tmp_path: Path
) -> None:
    store = store_on(disk, tmp_path)
    async with store.running() as channel:
        await StoreStream(channel).open(1)
    meta = store.data / "sets" / f"set-{SET}" / "meta"
    write_file(meta.with_name("meta.new"), encode_meta(replace(read_meta(meta), highest_epoch=Epoch(2))))
    os.rename(meta.with_name("meta.new"), meta)
    async with store.running() as channel:
        assert (await StoreStream(channel).open(2)).highest_epoch == 2
        await store.end(signal.SIGKILL)
    await lose_all_that_is_not_synced(disk)
    assert await is_fenced(store, 1)


async def test_a_segment_that_a_dead_process_left_without_a_durable_name_keeps_what_is_acknowledged(
    disk: PowerLossFs, tmp_path: Path
) -> None:
    store = store_on(disk, tmp_path)
    async with store.running() as channel:
        await StoreStream(channel).open(1)
    directory = store.data / "sets" / f"set-{SET}"
    header = encode_segment_header(salt_of(read_meta(directory / "meta").disk), 1, 16384)
    write_file(directory / "journal" / f"{1:016d}.segment", header.ljust(16384, b"\0"))
    async with store.running() as channel:
        stream = StoreStream(channel)
        assert (await stream.open(1)).log_end == 0
        for index in range(1, 9):
            assert isinstance(await stream.append(publishing(index)), Appended)
        assert len(store.segments) == 1, "it was used"
        await store.end(signal.SIGKILL)
    await lose_all_that_is_not_synced(disk)
    async with store.running() as channel:
        opened = await StoreStream(channel).open(1)
        assert (opened.log_end, opened.damage) == (8, "")


def read_meta(path: Path) -> SetMeta:
    return decode_set_meta(path.read_bytes())


def write_file(path: Path, data: bytes) -> None:
    """Its content is durable, its name is not."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
