"""The file system of the power losses itself: it loses what was not synced, keeps what was, and RocksDB and a store run on it."""

import asyncio
import errno
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lockstep.core.store_protocol import Appended
from services.store.snapshot_db import SnapshotDb
from tests.integration.power_loss_fs import PowerLossFs, reason_to_skip
from tests.integration.store_process import StoreProcess, StoreStream, publishing
from tests.integration.volatile_disk import SECTOR_BYTES, VolatileDisk

SECTOR = 512
"""Written as 512 by hand: what the model calls a sector."""


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[PowerLossFs]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    async with PowerLossFs(tmp_path) as mounted:
        yield mounted


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


# The model alone


def after_power_loss(tmp_path: Path, seed: int, use: Callable[[VolatileDisk], None]) -> VolatileDisk:
    backing = tmp_path / str(seed)
    disk = VolatileDisk(backing)
    use(disk)
    disk.lose_power(random.Random(seed))
    return VolatileDisk(backing)


def content(disk: VolatileDisk, path: str) -> bytes | None:
    try:
        node = disk.find(path)
    except FileNotFoundError:
        return None
    return disk.read(node, 1 << 30, 0)


def test_what_was_not_synced_is_lost_kept_or_torn_by_sectors(tmp_path: Path) -> None:
    assert SECTOR_BYTES == SECTOR

    def use(disk: VolatileDisk) -> None:
        node = disk.make("/file", 0o100600)
        disk.write(node, b"a" * 4 * SECTOR, 0)
        disk.sync(node)
        disk.sync_directory(disk.find("/"))
        disk.write(node, b"b" * 4 * SECTOR, 0)
        disk.write(node, b"c" * SECTOR, 0)

    found = {content(after_power_loss(tmp_path, seed, use), "/file") for seed in range(60)}
    assert {b"a" * 4 * SECTOR, b"c" * SECTOR + b"b" * 3 * SECTOR} < found
    assert len(found) > 8, "all mixtures of sectors"
    for data in found:
        assert data is not None
        assert len(data) == 4 * SECTOR
        for at in range(0, len(data), SECTOR):
            assert len(set(data[at : at + SECTOR])) == 1, "a sector is never torn"


def test_what_was_synced_is_kept_whatever_was_written_elsewhere(tmp_path: Path) -> None:
    def use(disk: VolatileDisk) -> None:
        node = disk.make("/file", 0o100600)
        disk.write(node, b"a" * 10_000, 0)
        disk.sync(node)
        disk.sync_directory(disk.find("/"))
        disk.write(node, b"b" * 10_000, 20_000)

    for seed in range(30):
        data = content(after_power_loss(tmp_path, seed, use), "/file")
        assert data is not None
        assert data.startswith(b"a" * 10_000)


def test_names_come_and_go_with_the_sync_of_their_directory_only(tmp_path: Path) -> None:
    def use(disk: VolatileDisk) -> None:
        for name in ("/old", "/gone"):
            node = disk.make(name, 0o100600)
            disk.write(node, name.encode(), 0)
            disk.sync(node)
        disk.sync_directory(disk.find("/"))
        new = disk.make("/new", 0o100600)
        disk.write(new, b"/new", 0)
        disk.sync(new)
        disk.rename("/new", "/old")
        disk.remove("/gone")

    found = set()
    for seed in range(60):
        disk = after_power_loss(tmp_path, seed, use)
        found.add((content(disk, "/old"), content(disk, "/new"), content(disk, "/gone")))
    # In order, up to some point: nothing, created, renamed, removed.
    assert found == {
        (b"/old", None, b"/gone"),
        (b"/old", b"/new", b"/gone"),
        (b"/new", None, b"/gone"),
        (b"/new", None, None),
    }


def test_a_rename_between_two_directories_is_kept_as_a_whole(tmp_path: Path) -> None:
    def use(disk: VolatileDisk) -> None:
        disk.make("/from", 0o040700)
        disk.make("/to", 0o040700)
        node = disk.make("/from/file", 0o100600)
        disk.write(node, b"x", 0)
        disk.sync(node)
        for path in ("/", "/from"):
            disk.sync_directory(disk.find(path))
        disk.rename("/from/file", "/to/file")

    found = set()
    for seed in range(40):
        disk = after_power_loss(tmp_path, seed, use)
        found.add((content(disk, "/from/file"), content(disk, "/to/file")))
    assert found == {(b"x", None), (None, b"x")}


def test_a_truncation_is_kept_or_not_and_nothing_behind_one_that_was_not(tmp_path: Path) -> None:
    def use(disk: VolatileDisk) -> None:
        node = disk.make("/file", 0o100600)
        disk.write(node, b"a" * 3000, 0)
        disk.sync(node)
        disk.sync_directory(disk.find("/"))
        disk.resize(node, 0)
        disk.write(node, b"b" * 100, 0)
        assert disk.read(node, 5000, 0) == b"b" * 100

    found = {content(after_power_loss(tmp_path, seed, use), "/file") for seed in range(60)}
    assert found == {b"a" * 3000, b"", b"b" * 100}


# Mounted


async def test_a_power_loss_takes_what_was_not_synced_and_nothing_else(disk: PowerLossFs) -> None:
    lost = 0
    for seed in range(4):
        write_synced(disk.mountpoint / f"synced-{seed}", b"s" * 100_000)
        descriptor = os.open(disk.mountpoint / f"synced-{seed}", os.O_RDWR)
        os.pwrite(descriptor, b"t" * 50_000, 100_000)
        os.fdatasync(descriptor)
        os.pwrite(descriptor, b"u" * 50_000, 150_000)
        (disk.mountpoint / f"new-{seed}").write_bytes(b"n" * 50_000)
        assert os.pread(descriptor, 200_001, 0) == b"s" * 100_000 + b"t" * 50_000 + b"u" * 50_000
        loss = await disk.lose_power(seed)
        os.close(descriptor)
        assert loss.bytes_lost + loss.bytes_kept == 100_000
        lost += loss.bytes_lost
        await disk.mount()
        for earlier in range(seed + 1):
            data = (disk.mountpoint / f"synced-{earlier}").read_bytes()
            assert data.startswith(b"s" * 100_000 + b"t" * 50_000)
            assert set(data[150_000:]) <= set(b"u\0")
    assert lost > 0


async def test_full_failing_and_slow_by_command(disk: PowerLossFs) -> None:
    path = disk.mountpoint / "file"
    write_synced(path, b"a" * 4096)
    await disk.limit_free(8192)
    assert os.statvfs(disk.mountpoint).f_bavail * 4096 == 8192
    descriptor = os.open(path, os.O_RDWR)
    assert os.pwrite(descriptor, b"b" * 20_000, 4096) == 8192, "what there is room for"
    with pytest.raises(OSError, match="No space left") as full:
        os.pwrite(descriptor, b"b", 4096 + 8192)
    assert full.value.errno == errno.ENOSPC
    assert os.pwrite(descriptor, b"c" * 4096, 0) == 4096, "no room is needed for what is there"
    await disk.command("heal")
    await disk.command("fail", what="sync", count=1, match="file")
    with pytest.raises(OSError, match="Input/output") as failed:
        os.fdatasync(descriptor)
    assert failed.value.errno == errno.EIO
    os.fdatasync(descriptor)
    assert os.pread(descriptor, 4096, 0) == b"c" * 4096, "the page cache still has it"
    await disk.command("fail", what="write", count=1, match="")
    with pytest.raises(OSError, match="Input/output"):
        os.pwrite(descriptor, b"d", 0)
    await disk.command("slow", write=0.0, sync=0.3)
    started = time.monotonic()
    await asyncio.to_thread(os.fsync, descriptor)
    assert time.monotonic() - started >= 0.3
    os.close(descriptor)


async def test_a_shared_mapping_works(disk: PowerLossFs) -> None:
    path = disk.mountpoint / "mapped"
    write_synced(path, b"a" * 8192)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
        assert mapped[:3] == b"aaa"
        mapped[:3] = b"bbb"
        await asyncio.to_thread(mapped.flush)
    loss = await disk.lose_power(1)
    assert loss.bytes_lost == 0, "msync is an fsync"
    await disk.mount()
    assert path.read_bytes()[:4] == b"bbba"


WRITER = """
import os, signal, sys
from pathlib import Path
from lockstep.core.store_protocol import StateItem
from services.store.set_directory import sync_directory
from services.store.snapshot_db import SnapshotDb
root, number = Path(sys.argv[1]), int(sys.argv[2])
(root / "set").mkdir(exist_ok=True)
sync_directory(root)
database = SnapshotDb(root / "set" / "snapshot")
for earlier in range(number):
    assert database.read_values((b"%d" % earlier,)) == (b"flushed" * 100,)
database.write((StateItem(b"%d" % number, b"flushed" * 100, True),), (), b"%d" % number)
database.flush()
database.write((StateItem(b"%d" % (number + 1), b"not flushed", True),), (), b"not flushed")
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_rocksdb_runs_on_it_and_keeps_what_it_flushed(disk: PowerLossFs) -> None:
    for number in range(4):
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(disk.mountpoint), str(number)
        )
        assert await writer.wait() == -signal.SIGKILL
        await disk.lose_power(number, keeps_nothing=number == 0)
        await disk.mount()
    again = SnapshotDb(disk.mountpoint / "set" / "snapshot")
    assert await asyncio.to_thread(again.read_meta) == b"3"
    again.close()


async def test_a_store_loses_what_it_answered_if_its_disk_lies(disk: PowerLossFs) -> None:
    """The control for `test_store_power_loss.py`: where syncs do nothing, a power loss is seen."""
    listening = ["--listen", f"unix:{disk.mountpoint.parent}/store.sock"]
    store, end, has_lost = StoreProcess(disk.mountpoint / "data", listening), 0, False
    store.address = listening[1]
    for epoch in range(1, 5):
        if epoch == 2:
            await disk.command("lie")
        async with store.running() as channel:
            stream = StoreStream(channel)
            opened = await stream.open(epoch)
            has_lost = opened.damage != "" or opened.log_end < end
            if has_lost:
                break
            for first in range(opened.log_end + 1, opened.log_end + 21):
                answer = await stream.append(
                    publishing(first, epoch=epoch, body_bytes=8000), commit=first - 1, epoch=epoch
                )
                assert isinstance(answer, Appended), answer
                end = answer.log_end
            await store.end(signal.SIGKILL)
        await disk.lose_power(epoch)
        await disk.mount()
    assert has_lost
