"""RabbitMQ as a peer: three nodes on loopback, in a directory of their own, driven by a C client (rabbitmq_client.c).

Law: nothing of it meets another RabbitMQ on the machine: own epmd, own cookie, own ports; and all of it ends with the harness.
"""

import asyncio
import secrets
import tempfile
from pathlib import Path

from bench.cases import Case
from bench.environment import Refused
from bench.load_programs import Plan
from bench.programs import running
from bench.rest import Pids
from bench.versions import said_version
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port

NAME = "rabbitmq"
PATH = "librabbitmq (C)"
SOURCE = Path(__file__).with_name("rabbitmq_client.c")
PROGRAMS = Path("/usr/lib/rabbitmq/bin")
"""Debian's scripts under `/usr/sbin` would change the user; these do not."""
SYNCS = (
    "quorum queues over three nodes: a commit or confirm is answered when two of the three have written and fdatasynced the"
    " message in their logs; a transaction is not one record, and not atomic over queues"
)
_SAY_ERLANG = (
    'Path = [code:root_dir(), "releases", erlang:system_info(otp_release), "OTP_VERSION"],'
    ' {ok, Version} = file:read_file(filename:join(Path)), io:format("OTP ~s", [Version]), halt().'
)
READY_SECONDS = 90.0
"""Erlang starts slowly where much else runs."""


class RabbitLoad:
    """Load on a cluster. At which node a queue's clients are, and so its leader, matters much, and no way is always the better
    one: so there are two of these, and the better one counts (`musts.standings`).
    """

    name = NAME
    syncs = SYNCS

    def __init__(self, nodes: "RabbitMQ", program: Path, *, is_spread: bool) -> None:
        """`program`: the compiled client. `is_spread`: clients are on all nodes in turn; else all are on one."""
        self._nodes = nodes
        self._program = program
        self._is_spread = is_spread
        self._prefix = "spread" if is_spread else "one"
        self._numbers = iter(range(1, 1_000_000))

    def handles(self, case: Case) -> bool:
        # A single client is at one node anyway.
        is_once = self._is_spread or case.connections > 1
        return case.operation in ("publish", "move", "stream", "consume") and is_once

    async def pids(self) -> Pids:
        return self._nodes.pids

    async def plan(self, case: Case, *, seconds: float, warm_seconds: float = 1.0) -> Plan:
        """How a case is measured here."""
        ports = self._nodes.ports if self._is_spread else self._nodes.ports[:1]
        warm_seconds = 0.0 if case.is_counted else warm_seconds
        numbers = (case.connections, case.size, case.body_bytes, case.ring, warm_seconds, seconds)
        prefix = f"{self._prefix}-{case.operation}{next(self._numbers)}"
        command = [str(self._program), case.operation, ",".join(map(str, ports)), *map(str, numbers), prefix]
        path = f"{PATH}, {'all nodes' if self._is_spread else 'one node'}"
        pids = await self.pids()
        return Plan(NAME, path, case.workload, case.title, [command], pids, warm_seconds, seconds)


class RabbitMQ:
    """Three nodes; `async with` around their life."""

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        self._directory = directory
        self._names = [f"n{number + 1}" for number in range(nodes)]
        ports = choose_ports(2 * nodes + 1)
        self._epmd_port = ports.pop()
        self.ports = ports[:nodes]
        """Of AMQP 0-9-1, by node."""
        self._distribution_ports = ports[nodes:]
        self._cluster = secrets.token_hex(4)
        self._epmd = ChildProcess(
            "epmd",
            ("epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"),
            directory / "epmd.log",
        )
        self._nodes = {
            name: ChildProcess(
                f"rabbitmq {name}",
                ("env", *self._environment(place), str(PROGRAMS / "rabbitmq-server")),
                directory / f"{name}.log",
            )
            for place, name in enumerate(self._names)
        }

    @property
    def pids(self) -> dict[str, int]:
        return {name: node.pid for name, node in self._nodes.items()}

    async def __aenter__(self) -> "RabbitMQ":
        if not (PROGRAMS / "rabbitmq-server").exists():
            raise Refused("RabbitMQ is not installed: scripts/setup_peers.sh does it")
        self._directory.mkdir(parents=True, exist_ok=True)
        cookie = self._directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (self._directory / "plugins").write_text("[].\n")
        members = "\n".join(
            f"cluster_formation.classic_config.nodes.{place + 1} = {self._node(name)}"
            for place, name in enumerate(self._names)
        )
        (self._directory / "rabbitmq.conf").write_text(
            f"cluster_formation.peer_discovery_backend = classic_config\n{members}\nlog.file.level = warning\n"
        )
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Ends the nodes and their epmd; what they hold is of no use to anybody."""
        await asyncio.gather(*(node.kill() for node in self._nodes.values()))
        await self._epmd.kill()

    async def _start(self) -> None:
        await self._epmd.start()
        await wait_for_port(self._epmd, f"127.0.0.1:{self._epmd_port}")
        # The first forms the cluster that the others join.
        for names in (self._names[:1], self._names[1:]):
            await asyncio.gather(*(self._start_node(name) for name in names))
        await self._control("await_online_nodes", str(len(self._names)))

    async def _start_node(self, name: str) -> None:
        node = self._nodes[name]
        await node.start()
        await wait_for_port(node, f"127.0.0.1:{self.ports[self._names.index(name)]}", READY_SECONDS)

    async def _control(self, *arguments: str) -> None:
        command = ("env", *self._environment(0), str(PROGRAMS / "rabbitmqctl"), *arguments)
        pipe = asyncio.subprocess.PIPE
        async with (
            asyncio.timeout(READY_SECONDS),
            running(command, stdout=pipe, stderr=asyncio.subprocess.STDOUT) as asked,
        ):
            output, _ = await asked.communicate()
        if asked.returncode != 0:
            raise Refused(f"rabbitmqctl {' '.join(arguments)}: {output.decode(errors='replace')}")

    def _node(self, name: str) -> str:
        return f"{name}-{self._cluster}@localhost"

    def _environment(self, place: int) -> list[str]:
        home, name = self._directory, self._names[place]
        return [
            f"HOME={home}",
            f"ERL_EPMD_PORT={self._epmd_port}",
            "ERL_EPMD_ADDRESS=127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE=/dev/null",
            # Then its script becomes the node, instead of waiting for it.
            "RUNNING_UNDER_SYSTEMD=true",
            f"RABBITMQ_CONFIG_FILE={home / 'rabbitmq.conf'}",
            f"RABBITMQ_ENABLED_PLUGINS_FILE={home / 'plugins'}",
            f"RABBITMQ_NODENAME={self._node(name)}",
            "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
            f"RABBITMQ_NODE_PORT={self.ports[place]}",
            f"RABBITMQ_DIST_PORT={self._distribution_ports[place]}",
            f"RABBITMQ_MNESIA_BASE={home / 'data'}",
            f"RABBITMQ_LOG_BASE={home / 'log'}",
            f"RABBITMQ_PID_FILE={home / name}.pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
        ]


def versions() -> dict[str, str]:
    """Of the nodes, and of the Erlang that they run on."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as home:
        # Its tools leave a cookie in the home of whoever asks.
        (port,) = choose_ports(1)
        asking = ("env", f"HOME={home}", f"ERL_EPMD_PORT={port}", "RABBITMQ_CONF_ENV_FILE=/dev/null")
        found = {
            "RabbitMQ": said_version((*asking, str(PROGRAMS / "rabbitmqctl"), "version"), r"(?m)^(\d\S*)$"),
            "Erlang": said_version((*asking, "erl", "-noshell", "-eval", _SAY_ERLANG), r"OTP (\d\S*)"),
        }
        # They leave an epmd, too.
        said_version((*asking, "epmd", "-kill"), "(Killed)")
        return found
