"""Child processes: what is said to have exited has exited, and nothing is left behind."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.core.errors import Rejected
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port

SLEEPER = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
)


async def wait_for_word(child: ChildProcess) -> None:
    async with asyncio.timeout(30):
        while "up" not in child.last_words():
            await asyncio.sleep(0.01)


async def test_its_end_is_reported_however_it_came(tmp_path: Path) -> None:
    ended: list[int | None] = []

    async def note(child: ChildProcess) -> None:
        ended.append(child.status)

    child = ChildProcess("sleeper", SLEEPER, tmp_path / "log", note)
    await child.start()
    with pytest.raises(Rejected, match="runs already"):
        await child.start()
    await child.kill()
    await child.start()
    await child.stop()
    assert ended == [-9, -15]
    assert not child.is_running
    with pytest.raises(Rejected, match=r"does not run \(status -15\)"):
        child.stall()


async def test_one_that_does_not_want_to_stop_is_killed_in_time(tmp_path: Path) -> None:
    child = ChildProcess("stubborn", STUBBORN, tmp_path / "log")
    await child.start()
    await wait_for_word(child)
    child.stall()
    await child.stop(grace_seconds=0.2)
    assert child.status == -9


async def test_a_child_has_its_log_and_no_descriptor_of_ours(tmp_path: Path) -> None:
    with (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        child = ChildProcess("sleeper", SLEEPER, tmp_path / "logs" / "log")
        await child.start()
        await wait_for_word(child)
        opened = {os.readlink(f"/proc/{child.pid}/fd/{number}") for number in (0, 1, 2)}
        assert opened == {"/dev/null", str(tmp_path / "logs" / "log")}
        assert str(tmp_path / "other") not in {
            os.readlink(f"/proc/{child.pid}/fd/{number}") for number in os.listdir(f"/proc/{child.pid}/fd")
        }
        await child.kill()


async def test_a_child_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    program = f"""
import asyncio, pathlib, sys
from lockstep.runtime.supervisor import ChildProcess
async def main():
    child = ChildProcess("sleeper", {SLEEPER!r}, pathlib.Path({str(tmp_path / "log")!r}))
    await child.start()
    print(child.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    async with asyncio.timeout(30):
        while is_alive(pid):
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Not gone, and not a zombie that waits for whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_waiting_for_a_port_tells_why_nobody_listens(tmp_path: Path) -> None:
    (port,) = choose_ports(1)
    child = ChildProcess("failing", (sys.executable, "-c", "raise SystemExit('no disk')"), tmp_path / "log")
    await child.start()
    with pytest.raises(Rejected, match=r"failing exited with status 1.*no disk"):
        await wait_for_port(child, f"127.0.0.1:{port}")
    server = ChildProcess(
        "server", (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)), tmp_path / "log"
    )
    await server.start()
    await wait_for_port(server, f"127.0.0.1:{port}")
    await server.kill()


async def test_a_signal_to_one_that_has_just_exited_does_not_take_its_status(tmp_path: Path) -> None:
    quick = (
        sys.executable,
        "-c",
        "import time; print('up', flush=True); time.sleep(1.0); raise SystemExit(3)",
    )
    child = ChildProcess("quick", quick, tmp_path / "log")
    await child.start()
    await wait_for_word(child)
    while is_alive(child.pid):
        time.sleep(0.01)  # The event loop must not hear of the exit before the signal is sent.
    child.resume()
    await child.exited()
    assert child.status == 3
