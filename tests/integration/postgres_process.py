"""A real PostgreSQL for tests: Debian's binaries, a directory of its own, a free port, prepared transactions switched on.

Law: it ends with whoever started it, even if that one is killed; and it never runs as root, which PostgreSQL refuses.
"""

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg

from lockstep.runtime.ports import choose_ports

READY_SECONDS = 30.0
USERS = ("postgres", "nobody")
"""Who it runs as, when the tests run as root."""


def find_postgres() -> Path | None:
    """The directory of its binaries, the newest version's; None: it is not installed."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: float(one.parent.name))
    on_path = shutil.which("initdb")
    if on_path:
        candidates.append(Path(on_path).resolve().parent)
    return next((one for one in reversed(candidates) if (one / "initdb").exists()), None)


class PostgresProcess:
    """One server on one directory; `dsn` stays the same over restarts."""

    def __init__(
        self, binaries: Path, directory: Path, port: int, settings: Mapping[str, str] | None = None
    ) -> None:
        """`settings`: of the server, where they are to differ from those of tests."""
        self._settings = settings or {}
        self._binaries = binaries
        self._directory = directory
        self._user = next((name for name in USERS if _exists(name)), "nobody") if os.getuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self.dsn = f"host=127.0.0.1 port={port} user=lockstep dbname=postgres"
        self.port = port

    async def create(self) -> None:
        """Makes the data directory."""
        if self._user is not None:
            shutil.chown(self._directory, self._user)
        command = [*self._as_user(), str(self._binaries / "initdb"), "-D", str(self._directory / "data")]
        options = ["-U", "lockstep", "-A", "trust", "-E", "UTF8", "--no-sync"]
        done = await asyncio.to_thread(
            subprocess.run, [*command, *options], capture_output=True, check=False, cwd="/"
        )
        assert done.returncode == 0, done.stderr.decode()

    async def start(self) -> None:
        """Returns when it answers; tries again while remains of a killed one are in the way."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            if self._process is None or self._process.poll() is not None:
                self._process = self._spawn()
            with contextlib.suppress(psycopg.OperationalError):
                async with await psycopg.AsyncConnection.connect(self.dsn, connect_timeout=2):
                    return
            assert time.monotonic() < deadline, (self._directory / "log").read_text()[-2000:]
            await asyncio.sleep(0.1)

    @property
    def pid(self) -> int:
        """Of the server's first process; the others are its children."""
        assert self._process is not None
        return self._process.pid

    async def crash(self) -> None:
        """SIGQUIT: it ends at once, with all its connections, and recovers when it is started."""
        assert self._process is not None
        self._process.send_signal(3)
        await asyncio.to_thread(self._process.wait, 20)

    async def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            await self.crash()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._directory),
            "max_prepared_transactions": "50",
            "max_connections": "50",
            "shared_buffers": "16MB",
            # Processes are killed here, not machines.
            "fsync": "off",
            **self._settings,
        }
        command = [*self._as_user(), str(self._binaries / "postgres"), "-D", str(self._directory / "data")]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")

    def _as_user(self) -> list[str]:
        """setpriv becomes the program itself, and asks for its end when ours comes."""
        if self._user is None:
            return ["setpriv", "--pdeathsig=KILL"]
        group = str(pwd.getpwnam(self._user).pw_gid)
        return ["setpriv", f"--reuid={self._user}", f"--regid={group}", "--clear-groups", "--pdeathsig=KILL"]


@contextlib.contextmanager
def running_postgres(binaries: Path) -> Iterator[PostgresProcess]:
    """Created and started; stopped, and its directory removed, at the end. Not inside an event loop."""
    # Not in pytest's directories, which nobody but root may enter.
    directory = Path(tempfile.mkdtemp(prefix="lockstep-postgres-"))
    process = PostgresProcess(binaries, directory, choose_ports(1)[0])
    try:
        asyncio.run(process.create())
        asyncio.run(process.start())
        yield process
    finally:
        asyncio.run(process.stop())
        shutil.rmtree(directory, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
