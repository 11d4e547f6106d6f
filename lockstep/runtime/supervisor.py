"""Child processes on this machine: started, watched, stopped, stalled and killed, each with its log in a file.

Law: what is said to have exited has exited: it was waited for by its pid, which nobody else can have had meanwhile (DESIGN R6). A
child never outlives the process that started it, keeps none of its descriptors, and gets no signal from its terminal.

    stopped --start--> running --kill, stop, or by itself--> stopped          running <--stall / resume--> stalled
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.forking import collect_nothing_in_forks
from lockstep.runtime.process import MALLOC_ENVIRONMENT

_LAUNCHER = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Becomes the child's program after asking for SIGKILL when the parent is gone. Not a `preexec_fn`: that makes Python fork,
and in a process with gRPC's threads the forked child may crash before its program begins."""
POLL_SECONDS = 0.02


class ChildProcess:
    """One program, started any number of times with the same command; driven from one event loop."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        on_exit: "Callable[[ChildProcess], Awaitable[None]] | None" = None,
    ) -> None:
        """`on_exit` is awaited each time that the process was seen to exit, whoever ended it."""
        self.name = name
        self.command = tuple(command)
        self.log = log
        self.is_expected_to_run = False
        """Started, and nobody has asked it to end."""
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else f"status {self.status}"
        return f"ChildProcess({self.name}, {state})"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Of the process that runs; raises `Rejected` (ILLEGAL_STATE) when none does, with how the last one ended."""
        return self._running().pid

    @property
    def status(self) -> int | None:
        """Exit status of the last process (negative: the signal that ended it); None before the first, and while one runs."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Starts it; raises `Rejected` (ILLEGAL_STATE) when it runs already."""
        if self.is_running:
            raise Rejected(ErrorCode.ILLEGAL_STATE, f"{self.name} runs already", name=self.name)
        if self._watching is not None:
            await self._watching
        self.log.parent.mkdir(parents=True, exist_ok=True)
        collect_nothing_in_forks()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**MALLOC_ENVIRONMENT, **os.environ},
                close_fds=True,
                start_new_session=True,
            )
        self.is_expected_to_run = True
        self._watching = asyncio.ensure_future(self._watch(self._process))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        if self._on_exit is not None:
            await self._on_exit(self)

    async def exited(self) -> None:
        """Returns when it has exited and `on_exit` is through."""
        if self._watching is not None:
            await asyncio.shield(self._watching)

    async def kill(self) -> None:
        """SIGKILL; returns when it has exited. Of one that does not run nothing happens."""
        self.is_expected_to_run = False
        self._signal(signal.SIGKILL)
        await self.exited()

    def stall(self) -> None:
        """SIGSTOP: it hangs, and its sockets stay open."""
        self._running()
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._running()
        self._signal(signal.SIGCONT)

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """SIGTERM, and SIGKILL after `grace_seconds`; returns when it has exited."""
        self.is_expected_to_run = False
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(self.exited(), grace_seconds)
        except TimeoutError:
            await self.kill()

    def last_words(self, lines: int = 5) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # Not `Process.send_signal`: that polls, and takes the exit status of a child that has just exited away from the
                # event loop, which would then report 255.
                os.kill(self._process.pid, number)

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            ended = f" (status {self.status}): {self.last_words()}" if self.status is not None else ""
            raise Rejected(ErrorCode.ILLEGAL_STATE, f"{self.name} does not run{ended}", name=self.name)
        return self._process


async def wait_for_port(child: ChildProcess, address: str, seconds: float = 60.0) -> None:
    """Returns when something listens at `address`, host:port or unix:path; raises `Rejected` (UNAVAILABLE) if the child exits
    before, or it is not in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not child.is_running:
            raise Rejected(
                ErrorCode.UNAVAILABLE,
                f"{child.name} exited with status {child.status}; its log {child.log} ends with: {child.last_words(1)}",
                name=child.name,
            )
        try:
            _, writer = await _connect(address)
        except OSError:
            await asyncio.sleep(POLL_SECONDS)
            continue
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return
    raise Rejected(
        ErrorCode.UNAVAILABLE,
        f"{child.name} does not listen at {address} after {seconds:g} s",
        name=child.name,
    )


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))
