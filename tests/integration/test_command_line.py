"""The installed command against a real cluster that it started itself."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from lockstep.runtime.etcd import EtcdClient, EtcdInDoubt, LeaseGone

LOCKSTEP = (sys.executable, "-m", "lockstep.cli")


class Up:
    """A running `lockstep up`."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*LOCKSTEP, "up", "--data", str(data), "--port", "0", "--json", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened in the block, it does not go on running."""
        if self.process.poll() is None:
            self.stop()

    @property
    def addresses(self) -> str:
        return ",".join(self.ready["brokers"].values())

    @property
    def amqp_address(self) -> str:
        """Of its proxy."""
        address = self.ready["proxies"]["P1"]
        assert isinstance(address, str)
        return address

    def run(self, *arguments: str, stdin: str = "", expected: int = 0) -> str:
        """A command with --json; its output. Its exit status is `expected`."""
        result = subprocess.run(
            [*LOCKSTEP, *arguments, "--json"],
            env={**os.environ, "LOCKSTEP_BROKERS": self.addresses},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == expected, result.stderr
        return result.stdout if expected == 0 else result.stderr

    def ask(self, *arguments: str, stdin: str = "") -> Any:
        return json.loads(self.run(*arguments, stdin=stdin))

    def until(self, what: str, arguments: tuple[str, ...], holds: Callable[[Any], bool]) -> Any:
        """Asks until something holds; fails in time, with `what` and the last answer."""
        deadline = time.monotonic() + 60
        while not holds(found := self.ask(*arguments)):
            assert time.monotonic() < deadline, f"{what}: {found}"
        return found

    def stop(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    left = [
        pid for pid in os.listdir("/proc") if pid.isdigit() and str(tmp_path).encode() in command_line(pid)
    ]
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert left == [], "processes were left behind"


def command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def stores_of(data: Path) -> list[bytes]:
    """Command lines of the stores that run on a directory."""
    lines = [command_line(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    return [line for line in lines if b"services.store" in line and str(data).encode() in line]


def test_a_cluster_stops_cleanly_and_starts_again_on_the_same_data(data: Path) -> None:
    with Up(data) as up:
        assert up.ready["seconds"] < 60
        stores = stores_of(data)
        assert len(stores) == 3 and all(b"\0--listen\0unix:" in line for line in stores)
        assert stat.S_IMODE((data / "sockets").stat().st_mode) == 0o700, "nobody else reaches them"
        again = subprocess.run(
            [*LOCKSTEP, "up", "--data", str(data)], capture_output=True, text=True, check=False
        )
        assert (again.returncode, again.stderr) == (1, f"lockstep: a cluster runs on {data} already\n")
        up.ask("queue", "declare", "orders")
        assert (
            up.ask("publish", "orders", "-f", "-", stdin="".join(f"{n}\n" for n in range(1000)))["messages"]
            == 1000
        )
        before = up.ready["brokers"]
        assert up.stop() == 0
    with Up(data) as up:
        assert up.ready["brokers"] == before
        (queue,) = up.ask("queue", "list")
        assert (queue["queue"], queue["length"], queue["is_durable"]) == ("orders", 1000, True)
        up.run("queue", "declare", "orders")
        bodies = [json.loads(line)["body"] for line in up.run("browse", "orders", "-n", "3").splitlines()]
        assert bodies == ["0", "1", "2"]
        assert up.stop() == 0


def test_messages_and_wiring_by_command(data: Path) -> None:
    with Up(data, "--brokers", "2", "--sets", "2") as up:
        assert [entry["set"] for entry in up.ask("set", "list")] == ["set-1", "set-2"]
        assert "there are 2 resource sets" in up.run("queue", "declare", "a", expected=1)
        for queue in ("a", "b", "c"):
            up.run("queue", "declare", queue, "--set", "set-1")
        up.run("exchange", "declare", "news", "--kind", "topic", "--set", "set-1")
        up.run("exchange", "bind", "news", "a", "--key", "sport.*")
        assert [entry["exchange"] for entry in up.ask("exchange", "list")] == ["news"]
        up.run("publish", "sport.chess", "one", "two", "--exchange", "news")
        assert up.ask("transfer", "a", "b", "c")["messages"] == 2
        lines = up.run("consume", "b", "--count", "2", "--wait", "30").splitlines()
        assert [json.loads(line)["body"] for line in lines] == ["one", "two"]
        assert up.run("browse", "b") == "", "nothing else was in it"
        up.run("queue", "declare", "brief", "--dead-letter-key", "dead", "--ttl-ms", "1", "--set", "set-1")
        up.run("queue", "declare", "dead", "--set", "set-1")
        up.run("publish", "brief", "late")
        (line,) = up.run("consume", "dead", "--count", "1", "--wait", "30").splitlines()
        ((queue, reason),) = [(one["queue"], one["reason"]) for one in json.loads(line)["deaths"]]
        assert (queue, reason) == ("brief", "expired")
        assert up.ask("queue", "purge", "c")["messages"] == 2
        assert up.ask("queue", "delete", "c", "--if-empty")["messages"] == 0
        assert up.run("publish", "c", "x", expected=1) == "lockstep: no queue 'c'\n"
        assert up.ask("promote", "set-1", "B2")["primary"] == "B2"
        handed_over = up.until(
            "the old primary follows the new one",
            ("status",),
            lambda status: {one["role"] for one in status["sets"][0]["replicas"]} == {"primary", "backup"},
        )
        assert handed_over["sets"][0]["primary"] == "B2"
        assert "--accept-data-loss" in up.run("cluster", "recover", "set-1", "B1", expected=1)
        assert up.stop() == 0


async def keep_alive(etcd_endpoint: str, lease_id: int) -> None:
    """Renews a lease as if its owner still lived; returns when it was revoked: it does not end by itself."""
    async with EtcdClient(etcd_endpoint) as etcd:
        with contextlib.suppress(LeaseGone):
            while True:
                with contextlib.suppress(EtcdInDoubt):
                    await etcd.lease_renew(lease_id)
                await asyncio.sleep(0.1)


async def test_a_primary_that_exits_is_reported_and_replaced_without_waiting_for_its_lease(
    data: Path,
) -> None:
    with Up(data) as up:
        up.run("queue", "declare", "q")
        (entry,) = up.ask("set", "list")
        victim = next(
            pid
            for pid in os.listdir("/proc")
            if pid.isdigit()
            and str(data).encode() in command_line(pid)
            and f"\0{entry['primary']}\0".encode() in command_line(pid)
        )
        member = json.loads((data / "etcd" / "member.json").read_text())
        lease_id = int((data / entry["primary"] / "broker-lease").read_text())
        keeping = asyncio.create_task(keep_alive(f"127.0.0.1:{member['client_port']}", lease_id))
        os.kill(int(victim), signal.SIGKILL)
        await asyncio.to_thread(up.run, "publish", "q", "after")
        await asyncio.wait_for(keeping, 30)
        assert up.process.stdout is not None
        assert json.loads(up.process.stdout.readline()) == {
            "exited": f"broker {entry['primary']}",
            "status": -9,
        }
        (after,) = up.until("another leads", ("set", "list"), lambda sets: sets[0]["epoch"] > entry["epoch"])
        assert after["primary"] != entry["primary"]
        assert up.stop() == 0


def test_the_demo_loses_nothing(tmp_path: Path) -> None:
    result = subprocess.run(
        [*LOCKSTEP, "demo", "--messages", "6000", "--data", str(tmp_path / "data"), "--json"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    account = json.loads(result.stdout)
    if shutil.which("java") is not None:
        assert account["audit"].endswith(" events, no violation")
        assert "No violation" in Path(account["report"]).read_text()
    assert (account["messages_in"], account["messages_out"]) == (6000, 12000)
    assert (account["lost"], account["duplicated"], account["torn"], account["unresolved"]) == (0, 0, 0, 0)
    assert len(account["state_hashes"]) == 3
    for of_set in account["state_hashes"].values():
        assert len(of_set) == 3
        assert len({(entry["index"], entry["hash"]) for entry in of_set.values()}) == 1
