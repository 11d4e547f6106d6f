"""README's program for Spark runs as it stands."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline.history import History

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_the_program_runs(
    spark: SparkSession,
    history: History,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (program,) = re.findall(r"```py\n(.*?)```", README, re.DOTALL)
    source = program.replace("127.0.0.1:7071", history.brokers)
    for name in ("messages-checkpoint", "messages"):
        source = source.replace(f'"{name}"', f'"{tmp_path / name}"')
    exec(compile(source, "README.md", "exec"), {})
    assert "only showing top 20 rows" in capsys.readouterr().out
    assert spark.read.parquet(str(tmp_path / "messages")).count() == len(
        [row for row in history.rows() if row["kind"] == "enqueue"]
    )
