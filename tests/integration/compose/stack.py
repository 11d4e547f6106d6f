"""The cluster of `deploy/compose.yaml` as a project of its own, from `up` to `down`, and the harm that is done to it."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.runtime.ports import choose_ports
from tests.integration.compose.engine import Engine

REPOSITORY = Path(__file__).parents[3]
DEPLOY = REPOSITORY / "deploy"
BROKERS = ("B1", "B2", "B3")
SET = "main"
_READ_JOURNAL = Path(__file__).parent / "read_journal.py"


def service_of(broker: str) -> str:
    """Of a broker of compose.yaml: B1 is the service broker-1."""
    return f"broker-{broker.removeprefix('B')}"


class Stack:
    """Lives for one test. Its ports are free ones of 127.0.0.1."""

    def __init__(self, engine: Engine, project: str = "") -> None:
        self.engine = engine
        self.project = project or f"lockstep-test-{os.getpid()}"
        ports = choose_ports(2)
        self.proxies = [f"127.0.0.1:{port}" for port in ports]
        self._environment = {
            "COMPOSE_PROJECT_NAME": self.project,
            # docker-compose 1.29 gives the engine up after a minute, also while it works.
            "COMPOSE_HTTP_TIMEOUT": "300",
            "LOCKSTEP_AMQP_PORT_1": str(ports[0]),
            "LOCKSTEP_AMQP_PORT_2": str(ports[1]),
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Up inside the block; behind it nothing of it is left."""
        try:
            self.up()
            yield
        finally:
            self.compose("down", "--volumes", "--timeout", "2")

    def up(self) -> None:
        """Returns when everything is started: each as soon as what it needs is healthy."""
        self.compose("up", "--detach")

    def compose(self, *arguments: str) -> str:
        """`compose` with these arguments, on compose.yaml."""
        file = str(DEPLOY / "compose.yaml")
        return self.engine.run(
            *self.engine.compose, "-f", file, *arguments, environment=self._environment, seconds=600
        )

    # --- containers ---

    def container(self, service: str) -> str:
        """Its id."""
        labels = (f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}")
        filters = [part for label in labels for part in ("--filter", f"label={label}")]
        (found,) = self.engine.ask("ps", "--all", "--quiet", *filters).split()
        return found

    def services(self) -> list[str]:
        """All that have a container."""
        listed = self.engine.ask(
            *("ps", "--all", "--filter", f"label=com.docker.compose.project={self.project}"),
            *("--format", '{{.Label "com.docker.compose.service"}}'),
        )
        return sorted(listed.split())

    def inspect(self, service: str) -> dict[str, Any]:
        (found,) = json.loads(self.engine.ask("inspect", self.container(service)))
        assert isinstance(found, dict)
        return found

    def health(self, service: str) -> str:
        """ "healthy", "unhealthy" or "starting"; of one that does not run, its state."""
        state = self.inspect(service)["State"]
        return str(state["Health"]["Status"] if state["Running"] and "Health" in state else state["Status"])

    def until_healthy(self, *services: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while unhealthy := [name for name in services if self.health(name) != "healthy"]:
            assert time.monotonic() < deadline, f"not healthy: {unhealthy}\n{self.logs(*unhealthy)}"
            time.sleep(0.5)

    def logs(self, *services: str) -> str:
        """Their last lines."""
        return self.compose("logs", "--no-color", "--tail=30", *services)[-8000:]

    # --- harm ---

    def kill(self, service: str) -> None:
        """SIGKILL to all of its processes; it stays down."""
        self.engine.ask("kill", self.container(service))

    def start(self, service: str) -> None:
        self.engine.ask("start", self.container(service))

    def cut_off(self, service: str) -> None:
        """It has no network any more, and its processes go on."""
        self.engine.ask("network", "disconnect", self._network(), self.container(service))

    def connect(self, service: str) -> None:
        """It has its network and its name again."""
        self.engine.ask("network", "connect", "--alias", service, self._network(), self.container(service))

    def kill_everything(self) -> None:
        """SIGKILL to all processes of all containers, at once."""
        self.compose("kill")

    def _network(self) -> str:
        return self.engine.ask(
            *("network", "ls", "--quiet", "--filter", f"label=com.docker.compose.project={self.project}")
        )

    # --- the cluster, asked from a coordinator's container ---

    def lockstep(self, *arguments: str, service: str = "coordinator-1") -> Any:
        """What a command of the command line says, in JSON."""
        brokers = ",".join(f"{service_of(broker)}:7071" for broker in BROKERS)
        said = self.engine.ask(
            *("exec", "--env", f"LOCKSTEP_BROKERS={brokers}", self.container(service)),
            *("lockstep", *arguments, "--json"),
        )
        return json.loads(said)

    def status(self) -> dict[str, Any]:
        """Of the set, with the hashes of its replicas."""
        (found,) = self.lockstep("status", "--hash")["sets"]
        assert isinstance(found, dict)
        return found

    def until_in_sync(self, count: int = 3, seconds: float = 120.0) -> dict[str, Any]:
        """Returns the status in which so many are in sync, and one of them leads."""
        deadline = time.monotonic() + seconds
        last: object = None
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                last = status = self.status()
                if status["is_led"] and len(status["in_sync"]) == count:
                    return status
            time.sleep(0.5)
        raise AssertionError(f"not {count} in sync within {seconds:g} s: {last}")

    def length(self, queue: str) -> int:
        """Messages in a queue."""
        listed = self.lockstep("queue", "list")
        return next(int(one["length"]) for one in listed if one["queue"] == queue)

    def journal(self, broker: str) -> list[bytes]:
        """The committed frames of the set on a broker's disk, as its store gives them."""
        store = self.container(service_of(broker).replace("broker", "store"))
        script = _READ_JOURNAL.read_text()
        said = self.engine.ask("exec", store, "python", "-c", script, "unix:/run/lockstep/store.sock", SET)
        return [bytes.fromhex(line) for line in said.split()]
