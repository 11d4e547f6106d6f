"""An etcd of several members as processes of this machine, with the timing of the Kubernetes manifests: its leader can be found,
and any member killed, stalled and started again on its data.

Law: it ends with whoever started it; every wait has an end and says what it waited for.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
from aetcd import rpc

from lockstep.runtime.etcd import EtcdClient, EtcdRejected
from lockstep.runtime.etcd_process import find_etcd
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess

WAIT_SECONDS = 30.0
_ASK_SECONDS = 1.0
_POLL_SECONDS = 0.05


class EtcdMembers:
    """From `running_members`; lives as long as that."""

    def __init__(self, directory: Path, count: int) -> None:
        ports = choose_ports(2 * count)
        names = [f"etcd-{number + 1}" for number in range(count)]
        peers = dict(zip(names, (_url(port) for port in ports[count:]), strict=True))
        clients = dict(zip(names, (_url(port) for port in ports[:count]), strict=True))
        members = ",".join(f"{name}={url}" for name, url in peers.items())
        self.endpoints = ",".join(clients.values())
        """Of all members, as `--etcd` takes them."""
        self.processes: list[ChildProcess] = []
        self._urls = clients
        for name in names:
            command = (
                *(str(find_etcd()), f"--name={name}", f"--data-dir={directory / name}"),
                *(f"--listen-client-urls={clients[name]}", f"--advertise-client-urls={clients[name]}"),
                *(f"--listen-peer-urls={peers[name]}", f"--initial-advertise-peer-urls={peers[name]}"),
                *(f"--initial-cluster={members}", "--log-level=warn"),
            )
            self.processes.append(ChildProcess(name, command, directory / f"{name}.log"))

    async def leader(self, seconds: float = WAIT_SECONDS) -> ChildProcess:
        """The member that all who answer call their leader, itself included."""
        deadline = time.monotonic() + seconds
        while True:
            statuses = {name: one for name, one in (await self._statuses()).items() if one is not None}
            leaders = {one.leader for one in statuses.values()}
            for process in self.processes:
                status = statuses.get(process.name)
                if status is not None and leaders == {status.header.member_id}:
                    return process
            assert time.monotonic() < deadline, f"etcd has no leader: {self._last_words()}"
            await asyncio.sleep(_POLL_SECONDS)

    async def until_healthy(self, seconds: float = WAIT_SECONDS) -> None:
        """Waits until all members have one leader, and each of them answers a linearizable read: it has caught up."""
        deadline = time.monotonic() + seconds
        while not await self._are_healthy():
            assert time.monotonic() < deadline, f"etcd is not healthy: {self._last_words()}"
            await asyncio.sleep(_POLL_SECONDS)

    async def _are_healthy(self) -> bool:
        statuses = list((await self._statuses()).values())
        if not all(statuses) or len({one.leader for one in statuses}) != 1 or not statuses[0].leader:
            return False
        return all(await asyncio.gather(*(_reads(url) for url in self._urls.values())))

    async def _statuses(self) -> dict[str, Any]:
        """What each member says of itself; None: nothing."""
        answers = await asyncio.gather(*(_status(url) for url in self._urls.values()))
        return dict(zip(self._urls, answers, strict=True))

    def _last_words(self) -> str:
        return "\n".join(f"--- {process}\n{process.last_words()}" for process in self.processes)


@contextlib.asynccontextmanager
async def running_members(directory: Path, count: int = 3) -> AsyncIterator[EtcdMembers]:
    """New members, healthy; killed at the end, whatever happened. `directory` is made if absent."""
    members = EtcdMembers(directory, count)
    try:
        await asyncio.gather(*(process.start() for process in members.processes))
        await members.until_healthy()
        yield members
    finally:
        # Asked to end, a leader would look for another first, among members that end as well.
        await asyncio.gather(*(process.kill() for process in members.processes))


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


async def _status(url: str) -> Any:
    async with grpc.aio.insecure_channel(url.removeprefix("http://")) as channel:
        with contextlib.suppress(grpc.aio.AioRpcError):
            return await rpc.MaintenanceStub(channel).Status(rpc.StatusRequest(), timeout=_ASK_SECONDS)
    return None


async def _reads(url: str) -> bool:
    async with EtcdClient(url, _ASK_SECONDS) as client:
        with contextlib.suppress(EtcdRejected):
            await client.get("/")
            return True
    return False
