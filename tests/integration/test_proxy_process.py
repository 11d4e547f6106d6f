"""A proxy process: workers that share a port, a worker that dies, and a stop that its clients hear of."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from proton import ConnectionException, Message
from proton.utils import BlockingConnection

from lockstep.runtime.local_cluster import LocalCluster
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from tests.integration.cluster import Deployment

WORKERS = 2


class Proxy:
    """A running proxy with its workers."""

    def __init__(self, process: ChildProcess, port: int) -> None:
        self.process = process
        self.port = port

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return sorted(map(int, children.read_text().split()))

    def connect(self) -> BlockingConnection:
        return BlockingConnection(f"amqp://127.0.0.1:{self.port}", timeout=30, allowed_mechs="ANONYMOUS")


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with LocalCluster(tmp_path, brokers=1, first_port=0) as cluster:
        deployment = Deployment(cluster)
        async with deployment.client() as client:
            await client.administration.create_set("main", ["B1"])
        await deployment.until_in_sync(1)
        (port,) = choose_ports(1)
        command = (
            *(sys.executable, "-m", "services.proxy", "--brokers", ",".join(cluster.addresses)),
            *("--listen", f"127.0.0.1:{port}", "--workers", str(WORKERS)),
        )
        process = ChildProcess("proxy", command, tmp_path / "proxy.log")
        await process.start()
        try:
            await wait_for_port(process, f"127.0.0.1:{port}")
            yield Proxy(process, port)
        finally:
            await process.stop()


async def until_both_work(proxy: Proxy) -> list[int]:
    """Waits until as many workers as there should be listen; returns their process ids."""
    async with asyncio.timeout(60):
        while True:
            workers = proxy.workers()
            ready = proxy.process.log.read_text().count("event=ready")
            if len(workers) == WORKERS and ready >= WORKERS:
                return workers
            await asyncio.sleep(0.05)


async def test_workers_share_the_port_and_one_that_dies_comes_back(proxy: Proxy) -> None:
    workers = await until_both_work(proxy)

    def exchange(count: int) -> None:
        """So many connections: all of them on one worker has a chance of 2 to the power of 1 - count."""
        for number in range(count):
            connection = proxy.connect()
            connection.create_sender("letters").send(Message(body=f"{number}", durable=True))
            receiver = connection.create_receiver("letters", credit=1)
            assert receiver.receive(timeout=30).body == f"{number}"
            receiver.accept()
            connection.close()

    await asyncio.to_thread(exchange, 12)
    os.kill(workers[0], signal.SIGKILL)
    async with asyncio.timeout(60):
        while proxy.process.log.read_text().count("event=ready") < WORKERS + 1:
            await asyncio.sleep(0.05)
    assert workers[1] in proxy.workers()
    assert len(proxy.workers()) == WORKERS
    await asyncio.to_thread(exchange, 6)


async def test_clients_hear_that_a_proxy_stops(proxy: Proxy) -> None:
    await until_both_work(proxy)
    connection = await asyncio.to_thread(proxy.connect)
    stopping = asyncio.ensure_future(proxy.process.stop(grace_seconds=30))

    def wait() -> str:
        try:
            connection.wait(lambda: False, timeout=30)
        except ConnectionException as error:
            return str(error)
        return ""

    assert "amqp:connection:forced" in await asyncio.to_thread(wait)
    await stopping
    assert proxy.process.status == 0
