"""Programs that wait for others at their start stop when they are told to; what keeps one from starting it says in a sentence."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess

NOBODY = "127.0.0.1:1"
STOP_SECONDS = 10.0
"""A second is enough on a machine that has nothing else to do; a program that waits for others waits for ever."""
START_SECONDS = 30.0
WAIT_SECONDS = 0.5
"""In which a program gets to where it waits."""

_ETCD = f"--etcd http://{NOBODY} --cluster c"
WAITING = {
    "broker": f"--id B1 --listen 127.0.0.1:0 --store {NOBODY} {_ETCD}",
    "primary": f"--id B1 --listen 127.0.0.1:0 --store {NOBODY} {_ETCD}",
    "backup": f"--id B1 --store {NOBODY} {_ETCD}",
    "coordinator": f"--listen 127.0.0.1:0 {_ETCD}",
    "postgres_participant": f"--name p --listen 127.0.0.1:0 --dsn postgresql://{NOBODY}/nobody {_ETCD}",
    "proxy": f"--listen 127.0.0.1:0 --brokers {NOBODY}",
    "proxy --workers 2": f"--listen 127.0.0.1:0 --brokers {NOBODY}",
    "store": "--listen 127.0.0.1:0 --data {data}",
}
"""Programs whose etcd, brokers, store or database are not there."""


def command(program: str, arguments: str, data: Path) -> list[str]:
    return [sys.executable, "-m", *f"services.{program} {arguments.format(data=data)}".split()]


def catches_sigterm(pid: int) -> bool:
    """Whether the program has got so far that it decides itself what becomes of the signal."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("program", WAITING)
async def test_a_program_that_waits_at_its_start_stops_when_it_is_told_to(
    program: str, number: signal.Signals, tmp_path: Path
) -> None:
    name, *options = program.split()
    arguments = " ".join((WAITING[program], *options))
    process = ChildProcess(name, command(name, arguments, tmp_path / "data"), tmp_path / "log")
    await process.start()
    try:
        async with asyncio.timeout(START_SECONDS):
            while process.is_running and not catches_sigterm(process.pid):
                await asyncio.sleep(0.05)
        await asyncio.sleep(WAIT_SECONDS)
        os.kill(process.pid, number)
        async with asyncio.timeout(STOP_SECONDS):
            await process.exited()
        assert process.status == 0, process.last_words()
        assert "Traceback" not in process.log.read_text()
    finally:
        await process.kill()


def run(program: str, arguments: str, data: Path) -> tuple[int, list[str]]:
    """Exit status, and the lines on stderr, of a program that cannot start."""
    ended = subprocess.run(
        command(program, arguments, data), stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    return ended.returncode, ended.stderr.splitlines()


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("broker", "--id B1 --listen 127.0.0.1:0 --store s --cluster c --etcd nonsense", "argument --etcd: "),
        ("backup", "--id B1 --store s --cluster c --etcd nonsense", "argument --etcd: "),
        ("coordinator", "--listen 127.0.0.1:0 --cluster c --etcd nonsense", "argument --etcd: "),
        (
            "postgres_participant",
            "--name p --listen 127.0.0.1:0 --dsn d --cluster c --etcd https://127.0.0.1:1",
            "argument --etcd: ",
        ),
        ("broker", f"--id B1 --listen nonsense --store s {_ETCD}", "argument --listen: "),
        ("store", "--data {data} --listen nonsense", "argument --listen: "),
        ("store", "--data {data} --listen 127.0.0.1:65536", "argument --listen: "),
        ("store", "--data {data} --listen unix:", "argument --listen: "),
        ("store", "--data {data} --listen 127.0.0.1:0 --health-listen x", "argument --health-listen: "),
        ("proxy", f"--brokers {NOBODY} --listen nonsense", "argument --listen: "),
        ("store", "--data {data} --listen 127.0.0.1:0 --metrics-port 65536", "argument --metrics-port: "),
        (
            "broker",
            f"--id B1 --listen 127.0.0.1:0 --store s {_ETCD} --metrics-port x",
            "argument --metrics-port: ",
        ),
        ("coordinator", f"--listen 127.0.0.1:0 {_ETCD} --metrics-port -1", "argument --metrics-port: "),
        ("proxy", f"--brokers {NOBODY} --metrics-port 65536", "argument --metrics-port: "),
    ],
)
def test_an_argument_that_is_none_is_said_with_the_usage(
    program: str, arguments: str, said: str, tmp_path: Path
) -> None:
    status, lines = run(program, arguments, tmp_path / "data")
    assert status == 2
    assert lines[0].startswith("usage: ")
    assert said in lines[-1], lines
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("store", "--listen 127.0.0.1:0 --data /dev/null", "the data directory cannot be used: "),
        ("store", "--listen unix:{data}/nowhere/socket --data {data}", "failed to bind unix:"),
        ("store", "--listen {taken} --data {data}", "failed to bind 127.0.0.1:"),
        (
            "store",
            "--listen 127.0.0.1:0 --data {data} --metrics-port {taken_port}",
            "for metrics cannot be had: ",
        ),
        ("proxy", f"--brokers {NOBODY} --users /nonexistent", "the users file /nonexistent cannot be used: "),
        (
            "proxy",
            f"--brokers {NOBODY} --users /nonexistent --workers 2",
            "the users file /nonexistent cannot be used: ",
        ),
        (
            "proxy",
            f"--brokers {NOBODY} --listen-tls 127.0.0.1:0 --tls-certificate /nonexistent",
            "the files for TLS cannot be used: ",
        ),
        ("proxy", f"--brokers {NOBODY} --workers 2 --listen {{taken}}", "failed to bind 127.0.0.1:"),
        ("proxy", f"--brokers {NOBODY}", "no broker answers: "),
    ],
)
def test_what_keeps_a_program_from_starting_is_said_in_a_sentence(
    program: str, arguments: str, said: str, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", choose_ports(1)[0]))
        taken.listen()
        port = taken.getsockname()[1]
        arguments = arguments.replace("{taken}", f"127.0.0.1:{port}").replace("{taken_port}", str(port))
        status, lines = run(program, arguments, tmp_path / "data")
    assert status == 1
    assert said in lines[-1], lines
    assert not any("Traceback" in line for line in lines)
