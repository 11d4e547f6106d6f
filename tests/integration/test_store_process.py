"""The real store process: kills, damaged files, a full disk, bad input."""

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.frames import Frame, check_frame
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.items import Item
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from lockstep.core.store_protocol import (
    Appended,
    AppendFrames,
    BeginInstall,
    EndInstall,
    Installed,
    InstallItems,
    ItemsInstalled,
    LoadState,
    StateChunk,
    StateItem,
    StateLoaded,
    StoreRefused,
    Truncate,
    Truncated,
)
from lockstep.runtime.channels import open_channel
from lockstep.runtime.health_check import ask
from lockstep.runtime.ports import choose_ports
from services.store.core.limits import MIB
from tests.integration.store_process import ME, SERVICE, SET, StoreProcess, StoreStream, publishing


async def test_nothing_acknowledged_is_lost_by_sigkill_under_load(tmp_path: Path) -> None:
    store, end, kills_in_flight = StoreProcess(tmp_path / "data"), LogIndex(0), 0
    for epoch in range(1, 5):
        async with store.running() as channel:
            stream = StoreStream(channel)
            opened = await stream.open(epoch)
            assert opened.damage == ""
            assert opened.log_end >= end
            sent, end = int(opened.log_end), opened.log_end

            async def answers(stream: StoreStream = stream) -> None:
                nonlocal end
                while True:
                    answer = await stream.receive()
                    assert isinstance(answer, Appended), answer
                    end = answer.log_end

            reading = asyncio.ensure_future(answers())
            for _ in range(300):
                await stream.send(
                    AppendFrames(
                        SET, Epoch(epoch), ME, (publishing(sent + 1, 2, epoch=epoch),), LogIndex(end)
                    )
                )
                sent += 2
            async with asyncio.timeout(30):
                # A machine that is busy has not written anything by now, and there would be nothing to lose.
                while end == opened.log_end:
                    await asyncio.sleep(0.001)
            await store.end(signal.SIGKILL)
            kills_in_flight += sent > end
            with pytest.raises((grpc.aio.AioRpcError, EOFError, asyncio.CancelledError)):
                await reading
    assert kills_in_flight > 0
    async with store.running() as channel:
        stream = StoreStream(channel)
        opened = await stream.open(9)
        items, frames, loaded = await stream.load(9)
        assert isinstance(loaded, StateLoaded)
        assert loaded.log_end == opened.log_end >= end
        state = SetState.from_items(SET, [Item(item.key, item.value, True) for item in items])
        for durable in frames:
            state.apply_frame(Frame(check_frame(durable), durable, b""))
        assert "q" in state.queues.by_name, (opened, end, len(items), len(frames))
        assert state.queues.by_name["q"].length == opened.log_end - 1


async def test_the_snapshot_has_the_state_hash_of_the_log(tmp_path: Path) -> None:
    store, state = StoreProcess(tmp_path / "data"), SetState(SET)
    async with store.running() as channel:
        stream = StoreStream(channel)
        await stream.open()
        for first in range(1, 400, 4):
            frame = publishing(first, 4)
            state.apply_frame(Frame(check_frame(frame), frame, b""))
            await stream.append(frame, commit=first - 1)
        await stream.tell_commit(400)
        async with asyncio.timeout(30):
            # The store makes its snapshot beside its work.
            while True:
                items, frames, loaded = await stream.load()
                assert isinstance(loaded, StateLoaded)
                if loaded.snapshot_index > 300:
                    break
                await asyncio.sleep(0.1)
        assert len(frames) < 20
        assert await store.end() == 0
    async with store.running() as channel:
        stream = StoreStream(channel)
        assert (await stream.open()).commit_index == 400
        items, frames, loaded = await stream.load()
        loaded_state = SetState.from_items(SET, [Item(item.key, item.value, True) for item in items])
        for durable in frames:
            loaded_state.apply_frame(Frame(check_frame(durable), durable, b""))
        assert state_hash(loaded_state) == state_hash(state)


async def test_a_slow_reader_gets_all_chunks_and_what_was_asked_behind_them_is_answered_behind_them(
    tmp_path: Path,
) -> None:
    store = StoreProcess(tmp_path / "data", ["--segment-bytes", str(8 * MIB)])
    async with store.running() as channel:
        stream = StoreStream(channel)
        await stream.open()
        sent = [publishing(first, 1, body_bytes=MIB // 2) for first in range(1, 40)]
        for frame in sent:
            await stream.append(frame)
        await stream.send(LoadState(SET, Epoch(1), ME))
        await stream.send(AppendFrames(SET, Epoch(1), ME, (publishing(40),), LogIndex(0)))
        chunks = 0
        frames: list[bytes] = []
        while isinstance(answer := await stream.receive(), StateChunk):
            chunks += 1
            frames += answer.frames
            await asyncio.sleep(0.02)
        assert chunks > 10, "more than windows and buffers hold at once"
        assert frames == sent
        assert isinstance(answer, StateLoaded)
        assert answer.log_end == 39
        behind = await stream.receive()
        assert isinstance(behind, Appended)
        assert behind.log_end == 40


async def test_a_flipped_bit_and_a_shortened_file_are_damage(tmp_path: Path) -> None:
    for kind in ("flip", "shorten", "delete"):
        store = StoreProcess(tmp_path / kind)
        async with store.running() as channel:
            stream = StoreStream(channel)
            await stream.open()
            for first in range(1, 20):
                await stream.append(publishing(first))
            await stream.tell_commit(19)
            assert await store.end() == 0
        (segment,) = store.segments
        if kind == "flip":
            data = bytearray(segment.read_bytes())
            data[random.Random(1).randrange(len(bytes(data).rstrip(b"\0")))] ^= 4
            segment.write_bytes(data)
        elif kind == "shorten":
            os.truncate(segment, segment.stat().st_size // 2)
        else:
            segment.unlink()
        async with store.running() as channel:
            stream = StoreStream(channel)
            opened = await stream.open()
            assert opened.damage, kind
            assert opened.commit_index == 19
            refused = await stream.append(publishing(opened.log_end + 1))
            assert isinstance(refused, StoreRefused)
            assert refused.code is ErrorCode.ILLEGAL_STATE


async def test_half_an_installation_leaves_an_empty_set_with_a_new_disk_id(tmp_path: Path) -> None:
    store, source = StoreProcess(tmp_path / "data"), SetState(SET)
    frame = publishing(1, 50)
    source.apply_frame(Frame(check_frame(frame), frame, b""))
    items = tuple(StateItem(item.key, item.value, item.is_durable) for item in source.items())
    begin = BeginInstall(SET, Epoch(1), ME, LogIndex(50), ((Epoch(1), LogIndex(1)),), 1)
    async with store.running() as channel:
        stream = StoreStream(channel)
        first = await stream.open()
        await stream.append(publishing(1))
        await stream.send(begin)
        assert isinstance(await stream.ask(InstallItems(SET, Epoch(1), ME, items[:20])), ItemsInstalled)
        await store.end(signal.SIGKILL)
    async with store.running() as channel:
        stream = StoreStream(channel)
        opened = await stream.open()
        assert (opened.log_end, opened.damage) == (0, "")
        assert opened.disk != first.disk
        await stream.send(begin)
        assert isinstance(await stream.ask(InstallItems(SET, Epoch(1), ME, items)), ItemsInstalled)
        installed = await stream.ask(EndInstall(SET, Epoch(1), ME))
        assert isinstance(installed, Installed)
        assert installed.log_end == 50
        assert isinstance(await stream.append(publishing(51)), Appended)
        assert isinstance(await stream.ask(Truncate(SET, Epoch(1), ME, LogIndex(50))), Truncated)
        await store.end(signal.SIGKILL)
    async with store.running() as channel:
        stream = StoreStream(channel)
        again = await stream.open()
        assert (again.log_end, again.disk, again.damage) == (50, opened.disk, "")
        loaded, frames, _ = await stream.load()
        assert frames == []
        assert {item.key: item.value for item in loaded} == {item.key: item.value for item in items}


async def test_a_directory_has_one_store_at_a_time(tmp_path: Path) -> None:
    store = StoreProcess(tmp_path / "data")
    async with store.running():
        second = StoreProcess(tmp_path / "data", ["--listen", f"unix:{tmp_path}/other.sock"])
        with pytest.raises(AssertionError, match="used by another store"):
            await second.start()


async def test_a_store_at_a_socket_tells_of_its_health_at_a_port_and_of_nothing_else(tmp_path: Path) -> None:
    (port,) = choose_ports(1)
    store = StoreProcess(tmp_path / "data", ["--health-listen", f"127.0.0.1:{port}"])
    async with store.running():
        assert await asyncio.to_thread(ask, f"127.0.0.1:{port}") == "SERVING"
        async with open_channel(f"127.0.0.1:{port}") as channel:
            get_status: Any = channel.unary_unary(f"{SERVICE}GetStatus")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await get_status(b"", timeout=5)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_garbage_on_any_method_is_a_typed_error_and_harms_nothing(tmp_path: Path) -> None:
    store, chance = StoreProcess(tmp_path / "data"), random.Random(7)
    async with store.running() as channel:
        stream = StoreStream(channel)
        await stream.open()
        await stream.append(publishing(1))
        for data in [b"\xff" * 20, chance.randbytes(300), b"\x0a\x03\xff\xfe\xfd", b""]:
            for name in ("ReadSnapshot", "ReadJournal", "ReadMessages", "Fence"):
                unary = name in ("ReadMessages", "Fence")
                method: Any = channel.unary_unary if unary else channel.unary_stream
                call = method(f"{SERVICE}{name}")(data)
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await (call if unary else call.read())
                assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            if data:
                bad = StoreStream(channel)
                await bad.call.write(data)
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await bad.receive()
                assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        for frame in (b"", b"LKSF", chance.randbytes(200), publishing(2)[:-1], publishing(2) + b"x"):
            refused = await stream.append(frame)
            assert isinstance(refused, StoreRefused), frame[:10]
            assert refused.code is ErrorCode.INVALID_ARGUMENT
        assert isinstance(await stream.append(publishing(2)), Appended)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    directory = tmp_path / "small"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


async def test_a_full_disk_is_refused_by_name_and_loses_nothing(small_disk: Path) -> None:
    store = StoreProcess(small_disk / "data")
    async with store.running() as channel:
        stream = StoreStream(channel)
        await stream.open()
        end = 0
        for first in range(1, 200):
            answer = await stream.append(publishing(first, body_bytes=20_000))
            if isinstance(answer, StoreRefused):
                assert answer.code is ErrorCode.STORE_FULL
                break
            assert isinstance(answer, Appended)
            end = answer.log_end
        else:
            raise AssertionError("the disk never became full")
        assert end > 20
        again = await stream.append(publishing(end + 1, body_bytes=20_000))
        assert isinstance(again, StoreRefused), "the set is still open, and still full"
        _, frames, loaded = await stream.load()
        assert isinstance(loaded, StateLoaded)
        assert len(frames) == loaded.log_end == end
        await store.end(signal.SIGKILL)
    async with store.running() as channel:
        opened = await StoreStream(channel).open(2)
        assert (opened.log_end, opened.damage) == (end, "")
