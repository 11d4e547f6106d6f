"""Checks that are written in other languages, as tests: each program prints a JSON line for every check that it made.

Law: what a program was to check is read from its source, so a check that it did not come to fails.
"""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conformance.amqp.cluster import PASSWORD, USER, AmqpCluster

RUN_SECONDS = 240.0


def sentences(source: Path) -> list[str]:
    """Of all checks in a source file."""
    return re.findall(r"check\(\s*['\"]([^'\"]+)['\"]", source.read_text())


def run_checks(amqp: AmqpCluster, command: Sequence[str], prefix: str) -> dict[str, str]:
    """What a program found: check -> "" or what went wrong. `prefix` is of the names of its nodes."""
    told = {
        "port": amqp.port,
        "strict_port": amqp.strict_port,
        "tls_port": amqp.tls_port,
        "authority": amqp.certificates.certificate("authority"),
        "user": USER,
        "password": PASSWORD,
        "prefix": prefix,
    }
    done = subprocess.run(
        [*command, json.dumps(told)], capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {line["check"]: line["error"] for line in lines}
    if done.returncode != 0 or not found:
        pytest.fail(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return found


def prepare(command: Sequence[str], folder: Path) -> None:
    """Runs what gets a program ready; fails with its words."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
