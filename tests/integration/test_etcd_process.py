"""The development member of etcd: starts, restarts, is found again, shares nothing with its parent."""

import asyncio
import contextlib
import os
import time
from pathlib import Path

import pytest

from lockstep.runtime.etcd import EtcdClient, Put
from lockstep.runtime.etcd_process import EtcdProcess, EtcdUnavailable, stop_etcd


def opened_by(pid: int) -> set[str]:
    opened = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            opened.add(os.readlink(link))
    return opened


async def test_data_and_ports_survive_a_kill(tmp_path: Path) -> None:
    process = await EtcdProcess.start(tmp_path)
    async with EtcdClient(process.endpoint) as client:
        written = await client.transact([], [Put("/x", b"1")])
        # etcd 3.5.0 to 3.5.2 may lose a write that was answered in the 0.1 s before a kill: if its backend commits between the
        # consistent index and the write, the log's entry is not applied again (etcd issue 13766). This is not about that.
        await asyncio.sleep(0.5)
    process.kill()
    assert not process.is_running
    restarted = await process.restart()
    try:
        assert restarted.endpoint == process.endpoint
        async with EtcdClient(restarted.endpoint) as client:
            entry = await client.get("/x")
        assert entry is not None
        assert (entry.value, entry.mod_revision) == (b"1", written.revision)
    finally:
        await restarted.stop()


async def test_it_moves_when_its_ports_were_taken(tmp_path: Path) -> None:
    process = await EtcdProcess.start(tmp_path)
    async with EtcdClient(process.endpoint) as client:
        await client.transact([], [Put("/x", b"1")])
    await process.stop()
    taken = int(process.endpoint.rpartition(":")[2])
    squatter = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", taken)
    async with squatter:
        restarted = await process.restart()
        try:
            assert restarted.endpoint != process.endpoint
            async with EtcdClient(restarted.endpoint) as client:
                assert await client.get("/x") is not None
        finally:
            await restarted.stop()


async def test_a_member_left_behind_is_replaced(tmp_path: Path) -> None:
    left = await EtcdProcess.start(tmp_path)
    started = await EtcdProcess.start(tmp_path)
    try:
        assert not left.is_running
        assert started.pid != left.pid
        assert await stop_etcd(tmp_path)
        assert not await stop_etcd(tmp_path)
    finally:
        await started.stop()
    assert not started.is_running


async def test_it_has_its_own_group_and_no_descriptor_of_its_parent(tmp_path: Path) -> None:
    with open(tmp_path / "ours", "wb") as ours:
        os.set_inheritable(ours.fileno(), True)
        process = await EtcdProcess.start(tmp_path / "etcd")
        try:
            assert os.getpgid(process.pid) == process.pid
            assert ours.name not in opened_by(process.pid)
            assert str(tmp_path / "etcd" / "etcd.log") in opened_by(process.pid)
        finally:
            await process.stop()


async def test_it_is_ready_in_a_moment(tmp_path: Path) -> None:
    started = time.monotonic()
    process = await EtcdProcess.start(tmp_path)
    seconds = time.monotonic() - started
    await process.stop()
    assert seconds < 5.0


async def test_what_does_not_start_shows_its_last_words(tmp_path: Path) -> None:
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(EtcdUnavailable) as unavailable:
        await EtcdProcess.start(tmp_path / "data", binary=broken)
    assert "out of order" in str(unavailable.value.details["log"])
    assert unavailable.value.message.endswith("etcd.log ends with: out of order")


async def test_a_start_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    starting = asyncio.ensure_future(EtcdProcess.start(tmp_path))
    while not (tmp_path / "member.json").exists():
        assert not starting.done()
        await asyncio.sleep(0.001)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not await stop_etcd(tmp_path), "none runs on it any more"
