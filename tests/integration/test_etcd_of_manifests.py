"""The etcd of the Kubernetes manifests, as processes: its members find each other, their probes are answered, and one that has
lost its volume joins again by the script of docs/operations.md, over a kubectl of the test's own."""

import os
import re
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
from tests.unit.deploy.kubernetes import KUBERNETES, container, environment, substituted

OVERLAY = "production"
MEMBER = container(OVERLAY, "etcd")
PORTS = [port["containerPort"] for port in MEMBER["ports"]]
WAIT_SECONDS = 30.0

KUBECTL = """#!/usr/bin/env bash
# kubectl -n lockstep VERB ...: what the script asks of it. Pods are told by files, etcdctl is the real one.
set -euo pipefail
shift 2
echo "$*" >>"$FAKE/calls"
case $1 in
    get) [ ! -e "$FAKE/ready" ] || printf True ;;
    exec)
        port=$(cat "$FAKE/$2.port")
        # The first change of each kind is not taken, as it is while a leader is being elected; its words are etcd's.
        if [ "$5" = member ] && [ "$6" != list ] && [ ! -e "$FAKE/refused-$6" ]; then
            touch "$FAKE/refused-$6"
            echo "Error: etcdserver: request timed out, possibly due to previous leader failure" >&2
            exit 1
        fi
        words=()
        for word in "${@:5}"; do words+=("$(sed -f "$FAKE/here.sed" <<<"$word")"); done
        "$ETCDCTL" --endpoints="127.0.0.1:$port" "${words[@]}" | sed -f "$FAKE/there.sed"
        ;;
    delete) [ "$2" != pod ] || touch "$FAKE/deleted" ;;
    wait) [ -e "$FAKE/ready" ] || { sleep 0.5; exit 1; } ;;
esac
"""


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
        result = subprocess.run(
            [find_etcd().parent / "etcdctl", f"--endpoints={self.address(at, 2379)}", *words],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    def kubectl(self, directory: Path) -> dict[str, str]:
        """An environment in which `kubectl` reaches these members; its files are in the directory."""
        directory.mkdir()
        program = directory / "kubectl"
        program.write_text(KUBECTL)
        program.chmod(0o755)
        names = {f"lockstep-etcd-{number}.lockstep-etcd-peers:2380": number for number in range(3)}
        (directory / "here.sed").write_text("".join(f"s#{name}#{self.here(name)}#g\n" for name in names))
        (directory / "there.sed").write_text("".join(f"s#{self.here(name)}#{name}#g\n" for name in names))
        for number in range(3):
            (directory / f"lockstep-etcd-{number}.port").write_text(str(self.ports[number, 2379]))
        return (
            os.environ
            | {"PATH": f"{directory}:{os.environ['PATH']}", "FAKE": str(directory)}
            | {"ETCDCTL": str(find_etcd().parent / "etcdctl")}
        )

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


def test_a_member_that_has_lost_its_volume_joins_again(members: Members, tmp_path: Path) -> None:
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

    environment = members.kubectl(tmp_path / "kubectl")
    script = [str(KUBERNETES / "replace-etcd-member.sh"), "1"]
    with (
        (tmp_path / "script.log").open("wb") as log,
        subprocess.Popen(script, env=environment, stdout=log, stderr=log) as replacing,
    ):
        try:
            until("the script deletes the pod", (tmp_path / "kubectl" / "deleted").exists)
            members.start(1, "existing")
            until("it is ready", lambda: members.is_ready(1))
            (tmp_path / "kubectl" / "ready").touch()
            assert replacing.wait(WAIT_SECONDS) == 0, (tmp_path / "script.log").read_text()
        finally:
            replacing.kill()
    assert members.etcdctl("get", "/lockstep/kept", at=1) == "/lockstep/kept\n1\n"
    calls = (tmp_path / "kubectl" / "calls").read_text().splitlines()
    assert sum(" member remove " in call for call in calls) >= 2, "what was not taken is asked for again"
    assert sum(" member add " in call for call in calls) >= 2
    assert "set env statefulset/lockstep-etcd ETCD_STATE=existing" in calls

    again = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert again.returncode == 1 and "is ready" in again.stderr, "one that has lost nothing stays"
    assert len(members.etcdctl("member", "list").splitlines()) == 3
