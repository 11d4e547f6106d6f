"""A proxy's worker on a port of this process, over stub brokers: for what needs a client, and no cluster."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from services.proxy.containers import Containers
from services.proxy.settings import ProxyLimits, ProxySettings
from services.proxy.worker import Worker
from tests.amqp.stub_brokers import StubSession, stub_nodes


class StubProxy:
    """Served as long as `serving` lasts."""

    def __init__(self, worker: Worker, address: str) -> None:
        self.worker = worker
        self.address = address
        """host:port."""


@contextlib.asynccontextmanager
async def serving(
    limits: ProxyLimits | None = None, session: StubSession | None = None
) -> AsyncIterator[StubProxy]:
    """Without a `session` of its own every node is there and all that is asked for happens."""
    worker = Worker(ProxySettings(brokers=("127.0.0.1:1",), limits=limits or ProxyLimits()), None)
    worker.nodes = stub_nodes(session)
    worker.containers = Containers(worker.nodes, 0.0, worker.keep, worker.refusals)
    server = await asyncio.get_running_loop().create_server(lambda: worker.socket(None), "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield StubProxy(worker, f"127.0.0.1:{port}")
    finally:
        server.close()
        await worker.stop()
