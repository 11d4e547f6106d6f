"""The etcd of the Kubernetes manifests, as processes: its members find each other, their probes are answered, and one that has
lost its volume joins again by the commands of docs/operations.md."""

import re
import shlex
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.runtime.etcd_process import find_etcd
from lockstep.runtime.health_check import ask
from lockstep.runtime.ports import choose_ports
from tests.unit.deploy.kubernetes import container, environment, substituted
from tests.unit.deploy.test_operations import LINES

OVERLAY = "production"
MEMBER = container(OVERLAY, "etcd")
PORTS = [port["containerPort"] for port in MEMBER["ports"]]
WAIT_SECONDS = 30.0


class Members:
    """Three of them on this machine: what is a port of a pod there is a port of the loopback here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        free = iter(choose_ports(3 * len(PORTS)))
        self.ports = {(number, port): next(free) for number in range(3) for port in PORTS}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def here(self, text: str) -> str:
        return re.sub(
            r"lockstep-etcd-(\d)\.lockstep-etcd-peers:(\d+)",
            lambda found: f"127.0.0.1:{self.ports[int(found[1]), int(found[2])]}",
            text,
        )

    def start(self, number: int, state: str) -> None:
        names = environment(OVERLAY, MEMBER, f"lockstep-etcd-{number}") | {"ETCD_STATE": state}
        words = [self.here(substituted(word, names)) for word in MEMBER["args"]]
        words = [
            re.sub(r"0\.0\.0\.0:(\d+)", lambda found: self.address(number, int(found[1])), word)
            for word in words
        ]
        (mount,) = (one["mountPath"] for one in MEMBER["volumeMounts"] if one["name"] == "data")
        words = [word.replace(mount, str(self.directory / str(number))) for word in words]
        with (self.directory / f"{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen([find_etcd(), *words], stdout=log, stderr=log)

    def address(self, number: int, port: int) -> str:
        return f"127.0.0.1:{self.ports[number, port]}"

    def lose(self, number: int) -> None:
        """The process and its volume."""
        self.stop(number)
        shutil.rmtree(self.directory / str(number))

    def stop(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def etcdctl(self, *words: str, at: int = 0) -> str:
        """Said again while members that have just come are too new to be counted on."""
        program = find_etcd().parent / "etcdctl"
        endpoint = f"--endpoints={self.address(at, 2379)}"
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            result = subprocess.run(
                [program, endpoint, *words], capture_output=True, text=True, timeout=WAIT_SECONDS
            )
            if "unhealthy cluster" not in result.stderr or time.monotonic() > deadline:
                assert result.returncode == 0, result.stderr
                return result.stdout
            time.sleep(0.5)

    def is_ready(self, number: int) -> bool:
        """As the kubelet finds out."""
        probe = MEMBER["readinessProbe"]["httpGet"]
        (port,) = (one["containerPort"] for one in MEMBER["ports"] if one["name"] == probe["port"])
        try:
            url = f"http://{self.address(number, port)}{probe['path']}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def end(self) -> None:
        for number in self.processes:
            self.stop(number)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    made = Members(tmp_path)
    try:
        yield made
    finally:
        made.end()


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_member_that_has_lost_its_volume_joins_again(members: Members) -> None:
    for number in range(3):
        members.start(number, "new")
    until("all are ready", lambda: all(map(members.is_ready, range(3))))
    members.etcdctl("put", "/lockstep/kept", "1")

    members.lose(1)
    members.stop(2)
    until("without a quorum nobody is ready", lambda: not members.is_ready(0))
    assert ask(members.address(0, 2379)) == "SERVING", "and nobody is killed for it"
    members.start(2, "new")
    until("two are enough", lambda: members.is_ready(0) and members.is_ready(2))

    listed = members.etcdctl("member", "list").splitlines()
    (lost,) = (line.partition(",")[0] for line in listed if "lockstep-etcd-1" in line)
    commands = [shlex.split(line.partition(" -- etcdctl ")[2]) for line in LINES if " -- etcdctl " in line]
    assert [words[:2] for words in commands] == [["member", "list"], ["member", "remove"], ["member", "add"]]
    for words in commands:
        members.etcdctl(*(members.here(word).replace("MEMBER", lost) for word in words))
    members.start(1, "existing")
    until("it is ready", lambda: members.is_ready(1))
    assert members.etcdctl("get", "/lockstep/kept", at=1) == "/lockstep/kept\n1\n"
