"""ActiveMQ Artemis as a peer: a primary and a backup with replication, driven by its own JMS client (ArtemisClient.java).

Law: as its documentation sets a replicated pair up, each with a journal of its own on the measured disk; all of it ends with the
harness.
"""

import asyncio
import shutil
from pathlib import Path
from string import Template

from bench.cases import RING, Case
from bench.environment import Refused
from bench.load_programs import Plan
from bench.programs import running
from bench.rest import Pids
from bench.versions import said_version
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port

NAME = "artemis"
PATH = "JMS (Java)"
SYNCS = (
    "primary and backup: a commit or confirm is answered when the primary's journal is written and fdatasynced and the backup has"
    " it in its own, whose sync is not waited for; local transactions, atomic over the queues of the broker"
)
HOMES = Path("build/peers")
"""Where scripts/setup_peers.sh puts the distribution."""
_HOME_PREFIX = "apache-artemis-"
"""Before the version."""
HERE = Path(__file__).parent
_SERVER_OPTIONS = ("-Xms512m", "-Xmx1g", "-XX:+UseParallelGC")
_CLIENT_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseParallelGC")
READY_SECONDS = 90.0
"""JVMs start slowly where much else runs."""
_IN_SYNC = "AMQ221024"
"""What a backup's log says when it holds everything that its primary has: the code of that message."""


class Artemis:
    """A replicated pair; `async with` around its life."""

    name = NAME
    syncs = SYNCS

    def __init__(self, directory: Path, home: Path, sync_seconds: float) -> None:
        """`home`: the distribution. `sync_seconds`: of one fdatasync here, which its journal's buffer is set to."""
        self._directory = directory
        self._home = home
        self._sync_seconds = sync_seconds
        self._classes = directory / "classes"
        self._numbers = iter(range(1, 1_000_000))
        self._ports = choose_ports(2)
        self._servers = {
            role: ChildProcess(
                f"artemis {role}",
                ("java", *_SERVER_OPTIONS, *self._library(), "ArtemisBroker", str(directory / f"{role}.xml")),
                directory / f"{role}.log",
            )
            for role in ("primary", "backup")
        }

    async def __aenter__(self) -> "Artemis":
        await asyncio.to_thread(self._prepare)
        command = (
            *("javac", "-cp", str(self._home / "lib" / "*"), "-d", str(self._classes)),
            *(str(HERE / name) for name in ("ArtemisBroker.java", "ArtemisClient.java")),
        )
        async with running(command) as compiling:
            if await compiling.wait() != 0:
                raise Refused("the client of Artemis is not compiled")
        try:
            for server, port in zip(self._servers.values(), self._ports, strict=True):
                await server.start()
                if server is self._servers["primary"]:
                    await wait_for_port(server, f"127.0.0.1:{port}", READY_SECONDS)
            await self._until_in_sync()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Ends both; what they hold is of no use to anybody."""
        await asyncio.gather(*(server.kill() for server in self._servers.values()))

    def handles(self, case: Case) -> bool:
        return case.operation in ("publish", "move", "stream", "consume")

    async def pids(self) -> Pids:
        return {role: server.pid for role, server in self._servers.items()}

    async def plan(self, case: Case, *, seconds: float, warm_seconds: float = 1.0) -> Plan:
        """How a case is measured here. A JVM compiles what runs often: it warms up for longer."""
        warm_seconds = 0.0 if case.is_counted else max(warm_seconds, 3.0)
        prefix = f"{'ring.' if case.ring else ''}{case.operation}{next(self._numbers)}"
        numbers = (case.connections, case.size, case.body_bytes, warm_seconds, seconds)
        command = ["java", *_CLIENT_OPTIONS, *self._library(), "ArtemisClient", str(self._ports[0])]
        command += [case.operation, *map(str, numbers), prefix]
        return Plan(
            NAME, PATH, case.workload, case.title, [command], await self.pids(), warm_seconds, seconds
        )

    def _library(self) -> list[str]:
        native = self._home / "bin" / "lib" / "linux-x86_64"
        log = HERE / "artemis-log.properties"
        return [
            *(f"-Djava.library.path={native}", f"-Dlog4j2.configurationFile={log}"),
            *("-cp", f"{self._classes}:{self._home / 'lib' / '*'}"),
        ]

    def _prepare(self) -> None:
        self._classes.mkdir(parents=True)
        text = Template((HERE / "artemis.xml").read_text())
        for (role, _), port, other in zip(
            self._servers.items(), self._ports, reversed(self._ports), strict=True
        ):
            filled = text.substitute(
                name=role,
                role=f"<{role}/>",
                directory=self._directory / role,
                port=port,
                other_port=other,
                ring=RING,
                sync_nanoseconds=max(1000, int(1e9 * self._sync_seconds)),
            )
            (self._directory / f"{role}.xml").write_text(filled)

    async def _until_in_sync(self) -> None:
        """The backup has its first copy: until then nothing waits for it."""
        backup = self._servers["backup"]
        async with asyncio.timeout(READY_SECONDS):
            while _IN_SYNC not in backup.last_words(200):
                if not backup.is_running:
                    raise Refused(f"the backup of Artemis ended: {backup.last_words(3)}")
                await asyncio.sleep(0.1)


def find_home() -> Path:
    """The distribution. Raises `Refused` where it, or a JDK, is not there."""
    homes = sorted(HOMES.glob(f"{_HOME_PREFIX}*"))
    if not homes or shutil.which("javac") is None:
        raise Refused(f"no ActiveMQ Artemis in {HOMES}, or no JDK")
    return homes[-1].resolve()


def versions() -> dict[str, str]:
    """Of the broker, as its distribution is named, and of Java."""
    try:
        broker = find_home().name.removeprefix(_HOME_PREFIX)
    except Refused:
        broker = ""
    return {"Artemis": broker, "Java": said_version(("java", "-version"), r'version "([^"]+)"')}
