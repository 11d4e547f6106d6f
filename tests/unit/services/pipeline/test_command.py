"""The command line, as far as it goes without a JVM."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockstep.cli.main import app
from lockstep.client.event_offsets import EventOffset
from services.pipeline.command import main
from services.pipeline.tables import Tables


def test_postgres_needs_to_be_told_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "ledger", "--brokers", "a:1", "--sink", "postgres"]) == 1
    assert capsys.readouterr().err.startswith("lockstep pipeline: --sink postgres needs --postgres")


@pytest.mark.parametrize("arguments", [["run"], ["run", "gossip", "--brokers", "a:1"], ["run", "ledger"], []])
def test_what_is_no_command_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: lockstep pipeline" in capsys.readouterr().err


def test_lockstep_has_the_command() -> None:
    for words in (["pipeline", "run", "--help"], ["pipeline", "report", "--help"]):
        assert CliRunner().invoke(app, words).exit_code == 0


def test_where_a_query_began_is_written_down_once(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.starts("ledger", "delta", {"east": EventOffset(7, 1)})
    tables.starts("ledger", "delta", {"east": EventOffset(99, 2)})
    assert tables.began("ledger", "delta") == {"east": 7}
