"""Machines of a test's own: network namespaces on a bridge, with faults between them by iptables.

Law: everything, the bridge included, is inside namespaces with a name of this object's own, so deleting them leaves nothing.
Faults are rules in those namespaces and nowhere else.
"""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Sequence

NETWORK = "10.77.0"


class Machines:
    """From `make` to `remove`, which may be called at any time, and again; or `found` by the same prefix in another process."""

    def __init__(self, names: Sequence[str], prefix: str = "") -> None:
        self.prefix = prefix or f"lockstep-{os.getpid()}-{secrets.token_hex(3)}"
        self.names = tuple(names)
        self.addresses = {name: f"{NETWORK}.{10 + place}" for place, name in enumerate(names)}

    def namespace(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def command(self, name: str, *command: str) -> tuple[str, ...]:
        """`command` on a machine; the process that starts it becomes it."""
        return ("nsenter", f"--net=/run/netns/{self.namespace(name)}", "--", *command)

    def make(self) -> None:
        hub = self.namespace("hub")
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        for place, name in enumerate(self.names):
            namespace = self.namespace(name)
            _run("ip", "netns", "add", namespace)
            _run(
                "ip",
                "-n",
                hub,
                "link",
                "add",
                f"port{place}",
                "type",
                "veth",
                "peer",
                "eth",
                "netns",
                namespace,
            )
            _run("ip", "-n", hub, "link", "set", f"port{place}", "master", "bridge", "up")
            _run("ip", "-n", namespace, "address", "add", f"{self.addresses[name]}/24", "dev", "eth")
            for device in ("eth", "lo"):
                _run("ip", "-n", namespace, "link", "set", device, "up")

    def remove(self) -> None:
        for name in ("hub", *self.names):
            subprocess.run(["ip", "netns", "delete", self.namespace(name)], check=False, capture_output=True)

    # Faults

    def drop(self, source: str, target: str) -> None:
        """What `source` sends to `target` is lost without a word; the other way is as it was."""
        self._rule(target, "-s", self.addresses[source], "-j", "DROP")

    def cut(self, one: str, others: Iterable[str]) -> None:
        """Nothing passes between `one` and each of the others, either way."""
        for other in others:
            self.drop(one, other)
            self.drop(other, one)

    def refuse(self, server: str, clients: Iterable[str]) -> None:
        """Connections of `clients` to `server` are reset, and new ones refused, while it lives and may itself call out."""
        for client in clients:
            self._rule(
                server,
                "-s",
                self.addresses[client],
                "-p",
                "tcp",
                "-j",
                "REJECT",
                "--reject-with",
                "tcp-reset",
            )

    def heal(self) -> None:
        for name in self.names:
            _run(*self.command(name, "iptables", "-w", "-F"))

    def _rule(self, name: str, *rule: str) -> None:
        _run(*self.command(name, "iptables", "-w", "-A", "INPUT", *rule))


def reason_to_skip() -> str:
    """Why this machine cannot have them; "" if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "iptables", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    probe = Machines((), f"lockstep-{os.getpid()}-probe")
    try:
        probe.make()
    except subprocess.CalledProcessError as error:
        return f"network namespaces do not work here: {error.stderr.strip()}"
    finally:
        probe.remove()
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
