"""The command line, as far as it goes without a JVM."""

from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError
from typer.testing import CliRunner

from lockstep.cli.main import app
from lockstep.client.event_offsets import EventOffset
from lockstep.runtime.ports import choose_ports
from services.pipeline.command import main
from services.pipeline.tables import Tables
from tests.unit.lockstep.client.fake_events import FakeEvents, Serving


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


class Gone:
    """A session whose JVM is gone."""

    @property
    def read(self) -> Any:
        raise Py4JNetworkError("no answer")


def test_a_jvm_that_is_gone_is_said_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = tmp_path / "ledger" / "part.parquet"
    part.parent.mkdir()
    part.touch()
    assert main(["report", "--output", str(tmp_path)], cast(Any, Gone())) == 1
    assert capsys.readouterr().err == "lockstep pipeline: no answer\n"


def test_lockstep_has_the_command() -> None:
    for words in (["pipeline", "run", "--help"], ["pipeline", "report", "--help"]):
        assert CliRunner().invoke(app, words).exit_code == 0


def test_where_rows_begin_is_written_down_once_for_a_table_whatever_checkpoints_it_has(
    tmp_path: Path,
) -> None:
    tables = Tables(tmp_path)
    tables.starts("ledger", "delta", {"east": EventOffset(7, 1)})
    tables.of("ledger").mkdir()
    tables.starts("ledger", "delta", {"east": EventOffset(99, 2)})
    assert tables.began("ledger", "delta") == {"east": 7}
    tables.of("ledger").rmdir()
    tables.starts("ledger", "delta", {"east": EventOffset(99, 2)})
    assert tables.began("ledger", "delta") == {"east": 99}


def test_a_database_that_is_not_reached_is_said_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark: Any = object()
    (port,) = choose_ports(1)
    with Serving(FakeEvents({"east": []})) as serving:
        arguments = ["run", "ledger", "--brokers", serving.addresses[0], "--output", str(tmp_path)]
        into = ["--sink", "postgres", "--postgres", f"host=127.0.0.1 port={port} user=nobody"]
        assert main([*arguments, *into], spark) == 1
    assert capsys.readouterr().err.startswith("lockstep pipeline: connection failed")
