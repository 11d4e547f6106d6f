"""`lockstep up`: what a new cluster begins with, and what is told of processes that exit."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from lockstep.cli.up import prepare, serve, watch
from lockstep.client import ErrorCode, Rejected
from lockstep.client.administration import ClusterStatus
from lockstep.runtime.local_cluster import LocalCluster
from lockstep.wire.v1 import cluster_pb2 as pb


class Sets:
    """A client of brokers that serve every set that there is."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.first: dict[str, str] = {}

    @property
    def administration(self) -> Self:
        return self

    async def create_set(self, name: str, brokers: list[str]) -> None:
        self.names.append(name)
        self.first[name] = brokers[0]

    async def status(self) -> ClusterStatus:
        view = pb.GetClusterStatusResponse(broker="B1")
        for name in self.names:
            view.sets.add(name=name, primary="B1", is_led=True, brokers=["B1"])
            view.replicas.add(resource_set=name, role=pb.ROLE_PRIMARY)
        return ClusterStatus(view, {"B1": view})


class Shape:
    def __init__(self, *, is_new: bool) -> None:
        self.is_new = is_new
        self.brokers = dict.fromkeys(("B1", "B2", "B3"))


async def prepared(sets: int, *there: str, is_new: bool = True) -> Sets:
    client: Any = Sets(*there)
    cluster: Any = Shape(is_new=is_new)
    await prepare(client, cluster, sets)
    assert isinstance(client, Sets)
    return client


async def test_each_set_of_a_new_cluster_has_another_first_primary() -> None:
    assert (await prepared(1)).first == {"main": "B1"}
    assert (await prepared(3)).first == {"set-1": "B1", "set-2": "B2", "set-3": "B3"}
    assert (await prepared(0)).first == {}


async def test_what_an_earlier_start_did_not_come_to_is_made() -> None:
    assert (await prepared(3, "set-1")).first == {"set-2": "B2", "set-3": "B3"}
    assert (await prepared(1, "main")).first == {}


async def test_nothing_is_made_beside_what_others_have_made() -> None:
    assert (await prepared(1, "orders")).first == {}
    assert (await prepared(3, "main")).first == {}
    assert (await prepared(1, is_new=False)).first == {}


async def test_a_directory_is_new_until_its_first_start_came_to_its_end(tmp_path: Path) -> None:
    async def start(*, is_kept: bool) -> bool:
        cluster = LocalCluster(
            tmp_path, brokers=0, etcd_endpoints="http://127.0.0.1:1", is_kept_when_told=True
        )
        async with cluster:
            if is_kept:
                cluster.keep()
        return cluster.is_new

    assert [await start(is_kept=is_kept) for is_kept in (False, True, False)] == [True, True, False]


async def test_one_that_others_made_is_not(tmp_path: Path) -> None:
    for is_kept_when_told in (False, True):
        cluster = LocalCluster(
            tmp_path,
            brokers=0,
            etcd_endpoints="http://127.0.0.1:1",
            is_kept_when_told=is_kept_when_told,
        )
        async with cluster:
            assert cluster.is_new is not is_kept_when_told


class Starting:
    """A cluster that has not started yet."""

    def __init__(self) -> None:
        self.is_starting = asyncio.Event()
        self.is_stopped = False

    async def start(self) -> None:
        self.is_starting.set()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def hang_up() -> Iterator[None]:
    """Outside of what is tested, SIGHUP ends nothing."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up")
@pytest.mark.parametrize("is_ignored", [False, True])
async def test_it_ends_with_its_terminal_unless_started_by_nohup(is_ignored: bool) -> None:
    if is_ignored:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    cluster = Starting()
    of_ours: Any = cluster
    serving = asyncio.ensure_future(serve(of_ours, 1, restart=False, json=True))
    await cluster.is_starting.wait()
    os.kill(os.getpid(), signal.SIGHUP)
    done, _ = await asyncio.wait([serving], timeout=0.2 if is_ignored else 10)
    assert (bool(done), cluster.is_stopped) == (not is_ignored, not is_ignored)
    if is_ignored:
        os.kill(os.getpid(), signal.SIGTERM)
    await serving
    assert cluster.is_stopped


class Exiting:
    """A process that has exited; starting it fails `failures` times."""

    is_expected_to_run = True
    status = -9

    def __init__(self, name: str, failures: int = 0) -> None:
        self.name = name
        self.log = Path("/log") / name
        self.is_running = False
        self._failures = failures

    async def start(self) -> None:
        if self._failures:
            self._failures -= 1
            raise Rejected(ErrorCode.UNAVAILABLE, f"{self.name} does not start")
        self.is_running = True


class Hanging(Exiting):
    async def start(self) -> None:
        await asyncio.Event().wait()


class Processes:
    """A cluster of them, with an etcd."""

    def __init__(self, *processes: Exiting) -> None:
        self.etcd = Exiting("etcd")
        self.processes = [(process, process.start) for process in processes]

    async def start_etcd(self) -> None:
        await self.etcd.start()


async def watched(cluster: Any, restart: bool, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await watch(cluster, restart, json=True)


async def test_one_that_does_not_start_again_keeps_no_other_from_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hanging, failing, last = Hanging("broker B1"), Exiting("broker B2", failures=1), Exiting("store of B2")
    cluster = Processes(hanging, failing, last)
    await watched(cluster, restart=True, seconds=2)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (hanging.is_running, failing.is_running, last.is_running) == (False, True, True)
    assert cluster.etcd.is_running
    assert {"trouble": "broker B2 does not start"} in told
    exited = sorted(line["exited"] for line in told if "exited" in line)
    assert exited == ["broker B1", "broker B2", "broker B2", "etcd", "store of B2"]


async def test_without_restart_each_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Processes(Exiting("broker B1"))
    await watched(cluster, restart=False, seconds=0.5)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == [{"exited": "broker B1", "status": -9}, {"exited": "etcd", "status": -9}]
    assert not cluster.etcd.is_running
