"""The cluster that stock AMQP clients are tested against: one broker with two resource sets, a coordinator, and three proxies.

Law: tests keep to nodes of their own, so one cluster serves them all; what a test asks of the gRPC side runs on a loop in a
thread.
"""

import asyncio
import contextlib
import sys
import zlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lockstep.client.client import Client, connect
from lockstep.client.session import Session
from lockstep.core.scram_credentials import SALT_BYTES, credentials_of, user_line
from lockstep.runtime.local_cluster import LocalCluster
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from tests.conformance.process_rig import BackgroundLoop
from tests.integration.cluster import Deployment
from tests.unit.services.proxy.security.certificates import Certificates

SETS = "east", "west"
USER, PASSWORD = "ada", "lovelace"
STRICT_IDLE_SECONDS = 4.0
STRICT_CREDIT = 10
STRICT_HOLD_SECONDS = 0.5
STRICT_TRANSACTION_SECONDS = 4.0
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class AmqpCluster:
    """A running cluster as clients see it."""

    loop: BackgroundLoop
    client: Client
    session: Session
    """Of the gRPC client, for what AMQP cannot do."""
    port: int
    """Of a proxy with the defaults: it makes what is not there, and everybody is anonymous."""
    strict_port: int
    """Of one that makes no node, and has the small limits above."""
    tls_port: int
    """Of one with users; EXTERNAL and PLAIN, TLS only."""
    certificates: Certificates
    """`authority`, `server`, and `client` (its name is grace)."""
    directory: Path
    brokers: tuple[str, ...]
    """host:port, for proxies of a test's own."""

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of something on the gRPC side."""
        return self.loop.run(coroutine)


def name_in(place: int, name: str) -> str:
    """A name like this one whose node a proxy makes in the set of this place."""
    number = 0
    while zlib.crc32(f"{name}-{number}".encode()) % len(SETS) != place:
        number += 1
    return f"{name}-{number}"


@contextlib.asynccontextmanager
async def running(directory: Path, loop: BackgroundLoop) -> AsyncIterator[AmqpCluster]:
    """Starts everything; stopped at the end, whatever happened."""
    certificates = _certificates(directory / "certificates")
    local = LocalCluster(directory, brokers=1, coordinators=1, proxies=1, first_port=0)
    async with local, contextlib.AsyncExitStack() as stack:
        client = await connect(local.addresses)
        stack.push_async_callback(client.close)
        for name in SETS:
            await client.administration.create_set(name, ["B1"])
        await Deployment(local).until_in_sync(1)
        strict_port, open_port, tls_port = choose_ports(3)
        strict = (
            *("--listen", f"127.0.0.1:{strict_port}", "--no-create-queues", "--no-create-topics"),
            *("--idle-seconds", str(STRICT_IDLE_SECONDS), "--link-credit", str(STRICT_CREDIT)),
            *("--hold-seconds", str(STRICT_HOLD_SECONDS)),
            *("--transaction-seconds", str(STRICT_TRANSACTION_SECONDS)),
        )
        users = directory / "users"
        users.write_text(user_line(USER, credentials_of(PASSWORD, bytes(SALT_BYTES))) + "\n")
        secure = (
            *("--listen", f"127.0.0.1:{open_port}", "--listen-tls", f"127.0.0.1:{tls_port}"),
            *("--users", str(users), "--mechanism", "EXTERNAL", "--mechanism", "PLAIN"),
            *("--mechanism", "SCRAM-SHA-256"),
            *("--tls-certificate", certificates.certificate("server")),
            *("--tls-key", certificates.key("server")),
            *("--tls-client-ca", certificates.certificate("authority")),
            *("--tls-client-certificates", "optional"),
        )
        others = {
            name: _proxy(directory, name, local.addresses, arguments)
            for name, arguments in (("strict", strict), ("secure", secure))
        }
        for process in others.values():
            stack.push_async_callback(process.stop)
        await asyncio.gather(*(process.start() for process in others.values()))
        await wait_for_port(others["strict"], f"127.0.0.1:{strict_port}")
        await wait_for_port(others["secure"], f"127.0.0.1:{tls_port}")
        session = await stack.enter_async_context(client.session())
        port = int(local.proxy_addresses[0].rpartition(":")[2])
        ports = port, strict_port, tls_port
        yield AmqpCluster(loop, client, session, *ports, certificates, directory, tuple(local.addresses))


def _proxy(directory: Path, name: str, brokers: list[str], arguments: tuple[str, ...]) -> ChildProcess:
    command = (sys.executable, "-m", "services.proxy", "--brokers", ",".join(brokers), *arguments)
    return ChildProcess(f"proxy {name}", command, directory / name / "proxy.log")


def _certificates(folder: Path) -> Certificates:
    folder.mkdir()
    made = Certificates(folder)
    made.authority("authority")
    made.signed("server", "/CN=localhost", "authority")
    made.signed("client", "/O=Analytics/CN=grace", "authority")
    return made
