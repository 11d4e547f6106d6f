"""What programs say about themselves, and that nobody has to answer."""

import sys

import pytest

from bench.environment import described_machine
from bench.versions import etcd_version, said_version


def says(program: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", program)


@pytest.mark.parametrize(
    "program",
    ["print('Tool 1.2.3 (Debian)')", "import sys; print('Tool 1.2.3', file=sys.stderr); sys.exit(1)"],
    ids=["on its output", "where errors go"],
)
def test_a_version_is_found_in_what_a_program_writes(program: str) -> None:
    assert said_version(says(program), r"Tool (\S+)") == "1.2.3"


@pytest.mark.parametrize(
    "command",
    [("/nowhere/tool", "--version"), says("pass"), says("print('another 4')"), says("print('Tool')")],
    ids=["is not there", "is silent", "says something else", "says no version"],
)
def test_whoever_cannot_be_asked_has_no_version(command: tuple[str, ...]) -> None:
    assert said_version(command, r"Tool (\S+)") == ""


def test_the_machine_has_the_versions_of_etcd_and_of_programs_that_are_known() -> None:
    versions = described_machine({"RabbitMQ": "3.10.8", "Erlang": ""}).versions
    assert versions["etcd"] == etcd_version()
    assert etcd_version()[0].isdigit()
    assert versions["RabbitMQ"] == "3.10.8"
    assert "Erlang" not in versions
