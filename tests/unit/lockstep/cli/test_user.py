"""`lockstep user hash`: the line it prints is one that a password fits."""

import pytest
from typer.testing import CliRunner

from lockstep.cli.main import app
from lockstep.core.scram_credentials import is_password, read_user_line

runner = CliRunner()


@pytest.mark.parametrize("typed", ["lovelace\n", "lovelace", "lovelace\r\n", "lovelace\nmore\n"])
def test_the_password_is_the_first_line_of_the_standard_input(typed: str) -> None:
    result = runner.invoke(app, ["user", "hash", "ada", "--iterations", "4096"], input=typed)
    assert result.exit_code == 0
    name, credentials = read_user_line(result.stdout)
    assert (name, credentials.iterations) == ("ada", 4096)
    assert is_password(credentials, "lovelace")


def test_two_lines_for_one_password_differ() -> None:
    lines = [runner.invoke(app, ["user", "hash", "ada"], input="x\n").stdout for _ in range(2)]
    assert lines[0] != lines[1]


@pytest.mark.parametrize(("name", "typed"), [("ada", "\n"), ("a:b", "x\n"), ("ada", "bad\x07\n")])
def test_what_cannot_be_hashed_is_one_sentence(name: str, typed: str) -> None:
    result = runner.invoke(app, ["user", "hash", name], input=typed)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("lockstep: ") and result.stderr.count("\n") == 1
