"""Versions of the programs that benchmarks start, as the programs themselves say.

Law: whoever cannot be asked, or says something else, has none, and the run goes on: a figure is one without it, too.
"""

import re
import subprocess
from collections.abc import Sequence

from lockstep.runtime.etcd_process import EtcdUnavailable, find_etcd

ASKING_SECONDS_MAX = 20.0
"""Java and Erlang start slowly where much else runs."""


def said_version(command: Sequence[str], pattern: str) -> str:
    """What the first group of `pattern` finds in what a program writes; "" if it is not there, silent, or finds nothing."""
    try:
        asked = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ASKING_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(pattern, asked.stdout.decode(errors="replace"))
    return found[1] if found else ""


def etcd_version() -> str:
    """Of the binary that clusters start."""
    try:
        binary = find_etcd()
    except EtcdUnavailable:
        return ""
    return said_version((str(binary), "--version"), r"etcd Version: (\S+)")
