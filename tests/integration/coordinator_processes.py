"""Coordinators of a deployed cluster, as processes of their own, for tests."""

import asyncio
import sys
from collections.abc import Sequence

from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from services.coordinator.settings import EXIT_AT
from tests.integration.cluster import Deployment
from tests.integration.coordination import CoordinatorClient


class Coordinators:
    """Coordinator processes of the deployed cluster."""

    def __init__(self, deployment: Deployment) -> None:
        assert deployment.cluster.etcd is not None
        self._shared = (
            "--etcd",
            deployment.cluster.etcd.endpoint,
            "--cluster",
            "local",
            "--lease-seconds",
            "2",
        )
        self._directory = deployment.cluster.directory
        self._children: list[ChildProcess] = []
        self.clients: list[CoordinatorClient] = []

    async def start(self, exit_at: str = "", arguments: Sequence[str] = ()) -> CoordinatorClient:
        (port,) = choose_ports(1)
        address = f"127.0.0.1:{port}"
        command: tuple[str, ...] = (
            sys.executable,
            "-m",
            "services.coordinator",
            "--listen",
            address,
            *self._shared,
            *arguments,
        )
        if exit_at:
            command = ("env", f"{EXIT_AT}={exit_at}", *command)
        child = ChildProcess(f"coordinator {port}", command, self._directory / f"coordinator-{port}.log")
        self._children.append(child)
        await child.start()
        await wait_for_port(child, address)
        self.clients.append(CoordinatorClient(address))
        return self.clients[-1]

    def log_of(self, client: CoordinatorClient) -> str:
        """All that the process has logged."""
        port = client.address.rpartition(":")[2]
        return (self._directory / f"coordinator-{port}.log").read_text()

    def child(self, client: CoordinatorClient) -> ChildProcess:
        """The process that a client calls."""
        return self._children[self.clients.index(client)]

    async def end_of(self, client: CoordinatorClient) -> int | None:
        """The exit status of a process that is ending by itself."""
        child = self.child(client)
        await asyncio.wait_for(child.exited(), 30)
        return child.status

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        for child in self._children:
            if child.is_running:
                await child.kill()
