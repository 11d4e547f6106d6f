"""A Docker engine for tests: the one that runs, or one of the tests' own, which ends with them.

Law: an engine of the tests' own leaves this machine as it was, but for its images and what was built for them: these stay in
the cache, so that the next run builds in seconds.

    python -m tests.integration.compose.engine      says which it would be, or why there is none
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 60.0
STOP_SECONDS = 30.0
COMMAND_SECONDS = 300.0
_SETTINGS = {"builder": {"gc": {"enabled": True, "defaultKeepStorage": "8GB"}}}
"""Steps of builds are kept for the next one: some times what one build makes."""
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_NO_RULES = {
    b"*filter": b"*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n",
    b"*nat": b"*nat\nCOMMIT\n",
}
"""Tables in which an engine writes, as they are when nobody has."""
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


@dataclass(frozen=True)
class Engine:
    """How to reach it; valid inside `engine`."""

    docker: str
    """Client that can build with BuildKit."""
    compose: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(
        self, *command: str, seconds: float = COMMAND_SECONDS, environment: Mapping[str, str] | None = None
    ) -> str:
        """What a command says on its standard output; raises `AssertionError` with all of it if it fails."""
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**self.environment, **(environment or {})},
        )
        said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert done.returncode == 0, f"{' '.join(command)}: status {done.returncode}\n{said}"
        return done.stdout

    def ask(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> str:
        """`docker` with these arguments."""
        return self.run(self.docker, *arguments, seconds=seconds).strip()


def reason_to_skip() -> str:
    """Why this machine has no engine and cannot have one; "" if it can."""
    if not _find_client():
        return "there is no Docker client that builds with BuildKit (Debian's package docker.io)"
    if not _find_compose(_find_client()):
        return "there is neither Compose v2 nor docker-compose (Debian's package docker-compose)"
    if _answers(_find_client(), dict(os.environ)):
        return ""
    if shutil.which("dockerd", path=_PATH) is None:
        return "no Docker engine runs here, and there is no dockerd to start one"
    if os.geteuid() != 0:
        return "no Docker engine runs here, and only root can start one"
    if shutil.which("debootstrap", path=_PATH) is None:
        return "there is no debootstrap to make a base image with"
    return ""


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """One that answers. Ask `reason_to_skip` first."""
    client = _find_client()
    compose = _find_compose(client)
    environment = {**os.environ, "LOCKSTEP_DOCKER": client}
    if _answers(client, environment):
        yield Engine(client, compose, environment)
        return
    with contextlib.ExitStack() as stack:
        work = Path(tempfile.mkdtemp(prefix="lockstep-docker-"))
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        stack.enter_context(_firewall_put_back())
        environment["DOCKER_HOST"] = stack.enter_context(_running_engine(work, client, environment))
        yield Engine(client, compose, environment)


def cache() -> Path:
    """Where what was fetched and built is kept, as `deploy/base-image.sh` has it."""
    chosen = os.environ.get("LOCKSTEP_CACHE", "")
    home = os.environ.get("XDG_CACHE_HOME", "") or str(Path.home() / ".cache")
    return Path(chosen or f"{home}/lockstep")


@contextlib.contextmanager
def _running_engine(work: Path, client: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Starts one and ends it; yields its address."""
    data = cache() / "docker"
    data.mkdir(parents=True, exist_ok=True)
    dockerd = shutil.which("dockerd", path=_PATH)
    assert dockerd is not None, "asked before"
    address = f"unix://{work}/socket"
    settings, log = work / "settings.json", work / "log"
    settings.write_text(json.dumps(_SETTINGS))
    command = (
        # It ends with its tests, whatever ends them.
        *("setpriv", "--pdeathsig", "TERM", dockerd, "--host", address, "--data-root", str(data)),
        *("--exec-root", str(work / "exec"), "--pidfile", str(work / "pid"), "--bridge", "none"),
        *("--config-file", str(settings)),
    )
    with open(cache() / "docker.lock", "w") as lock, log.open("w") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environment, "PATH": _PATH},
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(client, {**environment, "DOCKER_HOST": address}):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
                time.sleep(0.2)
            reached = {**environment, "DOCKER_HOST": address}
            _clear(client, reached)
            yield address
            _clear(client, reached)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _clear(client: str, environment: Mapping[str, str]) -> None:
    """Takes away what tests that were killed have left, which would run again, and images that have no name any more."""
    listed = subprocess.run(
        [client, "ps", "--all", "--quiet"], capture_output=True, text=True, env=environment, check=True
    ).stdout.split()
    for command in (
        *([("rm", "--force", "--volumes", *listed)] if listed else []),
        ("volume", "prune", "--force"),
        ("network", "prune", "--force"),
        ("image", "prune", "--force"),
    ):
        subprocess.run([client, *command], capture_output=True, env=environment)


@contextlib.contextmanager
def _firewall_put_back() -> Iterator[None]:
    """An engine writes rules for its networks, and takes none away."""
    saved = {
        family: subprocess.run(
            [f"{family}-save"], capture_output=True, check=True, env={"PATH": _PATH}
        ).stdout
        for family in ("iptables", "ip6tables")
    }
    forwarding = _FORWARDING.read_text()
    try:
        yield
    finally:
        for family, rules in saved.items():
            missing = [text for name, text in _NO_RULES.items() if name not in rules]
            text = rules + b"".join(missing)
            subprocess.run([f"{family}-restore"], input=text, capture_output=True, env={"PATH": _PATH})
        _FORWARDING.write_text(forwarding)


def _answers(client: str, environment: Mapping[str, str]) -> bool:
    command = [client, "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(command, capture_output=True, env=environment).returncode == 0


def _find_client() -> str:
    """The first on PATH that can build with secrets: one of its own version up to 22, later ones by a plug-in. "": none."""
    for folder in os.get_exec_path():
        candidate = shutil.which("docker", path=folder)
        if candidate is None:
            continue
        asked = subprocess.run(
            [candidate, "version", "--format", "{{.Client.Version}}"], capture_output=True, text=True
        )
        major = asked.stdout.partition(".")[0].strip()
        if major.isdigit() and (int(major) < 23 or _works(candidate, "buildx", "version")):
            return candidate
    return ""


def _find_compose(client: str) -> tuple[str, ...]:
    if _works(client, "compose", "version"):
        return (client, "compose")
    found = shutil.which("docker-compose")
    return (found,) if found is not None and _works(found, "version") else ()


def _works(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


if __name__ == "__main__":
    reason = reason_to_skip()
    print(
        f"containers: {f'their tests do not run here: {reason}' if reason else f'tested with {_find_client()}'}"
    )
