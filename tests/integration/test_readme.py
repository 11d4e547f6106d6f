"""The README says what is true: its programs run, and its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockstep.cli.connection import DEFAULT_BROKERS
from lockstep.cli.demo.data import load_rows
from lockstep.cli.main import app
from lockstep.runtime.well_known_ports import FIRST_PORT
from tests.integration.test_command_line import Up

README = (Path(__file__).parent.parent.parent / "README.md").read_text()


def test_its_programs_run(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    printed = []
    with Up(tmp_path / "data", "--brokers", "1") as up:
        for program in programs:
            source = program.replace("127.0.0.1:7071", up.addresses).replace(
                "127.0.0.1:5672", up.amqp_address
            )
            result = subprocess.run(
                [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
            )
            assert result.returncode == 0, result.stderr
            printed.append(result.stdout)
    assert printed == [
        "hello\n",
        "[b'11', b'22', b'33']\n",
        "",
        "declare shipments b''\nenqueue shipments b'one'\n",
    ]


@pytest.mark.parametrize(
    "line", sorted(set(re.findall(r"^    lockstep ((?:[a-z][a-z-]* ?)+)", README, re.MULTILINE)))
)
def test_its_commands_exist(line: str) -> None:
    words = line.split()
    depth = 2 if words[0] in {"set", "queue", "exchange", "cluster", "tx", "events"} else 1
    assert CliRunner().invoke(app, [*words[:depth], "--help"]).exit_code == 0


def test_its_figures_are_those_of_the_program() -> None:
    assert f"{len(load_rows()):,} rows" in README
    assert f"ports {FIRST_PORT}-{FIRST_PORT + 2}" in README
    assert DEFAULT_BROKERS.startswith("127.0.0.1:7071")
