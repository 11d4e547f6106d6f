"""A file system whose power can fail: it passes everything through to a `VolatileDisk`, and can be slow, full or failing.

Law: the process is the machine's disk. It runs by itself (libfuse takes over the main thread, the signals and the working
directory), ends at a power loss, and leaves its mount unusable until `PowerLossFs` has mounted the same `backing` again.

What is lost, torn and kept: `volatile_disk.py`. The kernel in front of it is the real one: writes reach this process with
the call that makes them (no write-back cache), reads may come from the page cache, shared mappings work, locks are the kernel's.
There is no fallocate (EOPNOTSUPP), no links of either kind and no extended attributes.

    python -m tests.integration.power_loss_fs BACKING MOUNTPOINT SOCKET

One JSON object per line on SOCKET, and one back:

    {"do": "freeze"}                    nothing is answered or done any more, until:
    {"do": "lose power", "seed": 1, "keeps_nothing": false}   answered with what was lost; the process ends
    {"do": "unmount"}                   everything synced; the process ends
    {"do": "limit", "bytes": 1000000}   capacity; null: a terabyte
    {"do": "slow", "write": 0.1, "sync": 0.1}   seconds that every write and every sync takes longer
    {"do": "fail", "what": "sync", "count": 1, "match": ".segment"}   EIO for so many (null: all) writes or syncs of such paths;
                                        "sync directory": for those of directories alone
    {"do": "lie"}                       syncs do nothing from now on
    {"do": "heal"}                      neither slow nor failing nor limited nor lying
    {"do": "state"}                     counts of what was asked of it
"""

import asyncio
import dataclasses
import errno
import json
import os
import random
import shutil
import socketserver
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.integration.volatile_disk import Loss, Node, VolatileDisk

CAPACITY_BYTES = 1 << 40
BLOCK_BYTES = 4096
START_SECONDS = 20.0


class Operations:
    """What libfuse calls, one call at a time; commands come from another thread, so both hold the lock."""

    use_ns = True

    def __init__(self, disk: VolatileDisk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._handles: dict[int, Node] = {}
        self._last_handle = 0
        self._chance = random.Random(0)
        self._changed = threading.Condition(self._lock)
        self._is_frozen = self._is_gone = False
        self._counts = {"write": 0, "sync": 0, "sync directory": 0}
        self._heal()

    def _heal(self) -> None:
        self._capacity = CAPACITY_BYTES
        self._delays = {"write": 0.0, "sync": 0.0}
        self._failing: dict[str, tuple[float, str]] = {}
        """What fails: how many times yet, and a part of the path."""
        self._disk.is_lying = False

    def __call__(self, operation: str, *arguments: Any) -> Any:
        with self._lock:
            self._wait_for_power()
            return getattr(self, operation)(*arguments)

    def _wait_for_power(self) -> None:
        while self._is_frozen and not self._is_gone:
            self._changed.wait()
        if self._is_gone:
            raise OSError(errno.EIO, "no power")

    # --- commands ---------------------------------------------------------------------------------------------------

    def command(self, given: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            match given["do"]:
                case "freeze":
                    self._is_frozen = True
                case "lose power":
                    self._is_gone = True
                    self._changed.notify_all()
                    chance = random.Random(given["seed"])
                    return dataclasses.asdict(self._disk.lose_power(chance, given["keeps_nothing"]))
                case "unmount":
                    self._is_gone = True
                    self._disk.unmount()
                case "limit":
                    self._capacity = CAPACITY_BYTES if given["bytes"] is None else given["bytes"]
                case "slow":
                    self._delays = {"write": given["write"], "sync": given["sync"]}
                case "fail":
                    count = float("inf") if given["count"] is None else given["count"]
                    self._failing[given["what"]] = (count, given.get("match", ""))
                case "lie":
                    self._disk.is_lying = True
                case "heal":
                    self._heal()
                case "state":
                    pass
                case other:
                    return {"error": f"no command {other!r}"}
            return {"used": self._disk.used_bytes, **self._counts}

    def _meet(self, what: str, path: str) -> None:
        """Counts an operation, and makes it slow or failing as commanded."""
        self._counts[what] += 1
        kind = "write" if what == "write" else "sync"
        if self._delays[kind]:
            # Nothing else happens on a slow disk meanwhile; only commands do.
            self._lock.release()
            try:
                time.sleep(self._delays[kind])
            finally:
                self._lock.acquire()
            self._wait_for_power()
        for failing in {what, kind}:
            left, match = self._failing.get(failing, (0.0, ""))
            if left > 0 and match in path:
                self._failing[failing] = (left - 1, match)
                raise OSError(errno.EIO, "the disk fails as commanded")

    # --- files ------------------------------------------------------------------------------------------------------

    def _node(self, path: str | None, handle: int | None) -> Node:
        return self._handles[handle] if handle else self._disk.find(path or "/")

    def _opened(self, node: Node) -> int:
        self._last_handle += 1
        self._handles[self._last_handle] = node
        self._disk.open(node)
        return self._last_handle

    def create(self, path: str, mode: int) -> int:
        return self._opened(self._disk.make(path, stat.S_IFREG | (mode & 0o7777)))

    def open(self, path: str, _flags: int) -> int:
        return self._opened(self._disk.find(path))

    def release(self, _path: str | None, handle: int) -> None:
        self._disk.close(self._handles.pop(handle))

    def read(self, path: str | None, size: int, offset: int, handle: int) -> bytes:
        return self._disk.read(self._node(path, handle), size, offset)

    def write(self, path: str | None, data: bytes, offset: int, handle: int) -> int:
        self._meet("write", path or "")
        node = self._node(path, handle)
        room = max(node.size, node.size + self._capacity - self._disk.used_bytes) - offset
        if room <= 0:
            raise OSError(errno.ENOSPC, "full")
        self._disk.write(node, data[:room], offset)
        return min(len(data), room)

    def truncate(self, path: str | None, size: int, handle: int | None = None) -> None:
        self._disk.resize(self._node(path, handle), size)

    def fsync(self, path: str | None, _datasync: int, handle: int) -> None:
        node = self._node(path, handle)
        try:
            self._meet("sync", path or "")
        except OSError:
            if not self._is_gone:
                self._disk.fail_sync(node, self._chance)
            raise
        self._disk.sync(node)

    # --- names ------------------------------------------------------------------------------------------------------

    def getattr(self, path: str | None, handle: int | None = None) -> dict[str, int]:
        node = self._node(path, handle)
        return {
            "st_mode": node.mode,
            "st_ino": node.number,
            "st_nlink": 2 if node.is_directory else max(node.links, 1),
            "st_size": BLOCK_BYTES if node.is_directory else node.size,
            "st_blocks": -(-node.size // 512),
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
        }

    def readdir(self, path: str, _handle: int) -> list[str]:
        return [".", "..", *self._disk.find(path).entries]

    def opendir(self, path: str) -> int:
        return self._opened(self._disk.find(path))

    releasedir = release

    def fsyncdir(self, path: str | None, _datasync: int, handle: int) -> None:
        self._meet("sync directory", path or "")
        self._disk.sync_directory(self._node(path, handle))

    def mkdir(self, path: str, mode: int) -> None:
        self._disk.make(path, stat.S_IFDIR | (mode & 0o7777))

    def unlink(self, path: str) -> None:
        self._disk.remove(path)

    rmdir = unlink

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def chmod(self, path: str, mode: int) -> None:
        node = self._disk.find(path)
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        """Everything belongs to whoever runs the tests."""

    def utimens(self, path: str, times: object = None) -> None:
        """Times are not kept."""

    def statfs(self, _path: str) -> dict[str, int]:
        free = max(0, self._capacity - self._disk.used_bytes) // BLOCK_BYTES
        return {
            "f_bsize": BLOCK_BYTES,
            "f_frsize": BLOCK_BYTES,
            "f_blocks": self._capacity // BLOCK_BYTES,
            "f_bfree": free,
            "f_bavail": free,
            "f_files": 1 << 20,
            "f_ffree": 1 << 20,
            "f_favail": 1 << 20,
            "f_namemax": 255,
        }


class _Commands(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            given = json.loads(line)
            answer = self.server.operations.command(given)  # type: ignore[attr-defined]
            self.wfile.write(json.dumps(answer).encode() + b"\n")
            if given["do"] in ("lose power", "unmount"):
                self.wfile.flush()
                os._exit(0)


def _end_with_parent(mountpoint: str) -> None:
    """Whoever started this process keeps its standard input open."""
    while os.read(0, 1):
        pass
    subprocess.run(["umount", "-l", mountpoint], check=False, capture_output=True)
    os._exit(1)


def main(backing: str, mountpoint: str, control: str) -> None:
    import fuse

    operations = Operations(VolatileDisk(Path(backing)))
    server = socketserver.ThreadingUnixStreamServer(control, _Commands)
    server.operations = operations  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=_end_with_parent, args=(mountpoint,), daemon=True).start()
    fuse.FUSE(
        operations,
        mountpoint,
        foreground=True,
        nothreads=True,
        big_writes=True,
        hard_remove=True,
        fsname="power-loss",
    )
    os._exit(0)  # the threads of commands and of the parent's end are still waiting


class PowerLossFs:
    """For tests: a mount that survives its own power losses. `async with`; afterwards nothing is mounted."""

    def __init__(self, directory: Path) -> None:
        """`directory` gets `backing` and the mount point `mount`."""
        self.mountpoint = directory / "mount"
        self._backing = directory / "backing"
        self._scratch = Path(tempfile.mkdtemp(prefix="power-loss-"))  # a socket's path is short
        self._control = self._scratch / "control"
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._backing.mkdir(parents=True, exist_ok=True)
        self.mountpoint.mkdir(parents=True, exist_ok=True)
        try:
            await self.mount()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def mount(self) -> None:
        """Returns when it is mounted. Also after a power loss."""
        self._control.unlink(missing_ok=True)
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", "-m", "tests.integration.power_loss_fs"),
            *(str(self._backing), str(self.mountpoint), str(self._control)),
            stdin=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not (os.path.ismount(self.mountpoint) and self._control.exists()):
            assert process.returncode is None, f"the file system ended with status {process.returncode}"
            assert time.monotonic() < deadline, f"not mounted in {START_SECONDS:g} s"
            await asyncio.sleep(0.02)

    async def freeze(self) -> None:
        """Right before a power loss under load: whoever waits for the disk now waits until then."""
        await self.command("freeze")

    async def lose_power(self, seed: int, keeps_nothing: bool = False) -> Loss:
        """What was not synced is lost, torn or kept, by the seed. Whoever used it should be dead; `mount` brings it back."""
        answer = await self.command("lose power", seed=seed, keeps_nothing=keeps_nothing)
        await self._unmount()
        return Loss(**answer)

    async def command(self, do: str, **fields: object) -> dict[str, Any]:
        """See the module."""
        reader, writer = await asyncio.open_unix_connection(self._control)
        try:
            writer.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(await asyncio.wait_for(reader.readline(), 20))
        finally:
            writer.close()
        assert "error" not in answer, answer
        return answer

    async def limit_free(self, free_bytes: int | None) -> None:
        """Leaves so much room, None: plenty."""
        used = (await self.command("state"))["used"]
        await self.command("limit", bytes=None if free_bytes is None else used + free_bytes)

    async def _unmount(self) -> None:
        await asyncio.to_thread(
            subprocess.run, ["umount", "-l", str(self.mountpoint)], check=False, capture_output=True
        )
        if self._process is not None:
            try:
                # It ends by itself. A signal at the moment of its end would take its status from whoever waits for it.
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def _end(self) -> None:
        await self._unmount()
        shutil.rmtree(self._scratch, ignore_errors=True)


def reason_to_skip() -> str:
    """Why this machine cannot mount it; "" if it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    import ctypes.util

    return "" if ctypes.util.find_library("fuse") else "libfuse2 is not installed"


if __name__ == "__main__":
    main(*sys.argv[1:])
