"""Two drivers with one Delta table: one of them was presumed dead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from services.pipeline.checkpoint import NONE, Checkpoint
from services.pipeline.running import RunSettings, ledger_table
from services.pipeline.sinks.delta import append_once, last_batch


class Frame:
    """What the sink uses of Spark's; `meanwhile`: happens while its rows are computed."""

    def __init__(self, *numbers: int, meanwhile: Callable[[], None] | None = None) -> None:
        self._table = pa.table({"n": pa.array(numbers, pa.int64())})
        self._meanwhile = meanwhile

    def persist(self) -> None: ...

    def unpersist(self) -> None: ...

    def toArrow(self) -> pa.Table:  # noqa: N802 - as Spark has it
        if self._meanwhile is not None:
            self._meanwhile()
        return self._table


def checkpoint_of(table: Path, name: str = "1") -> tuple[Checkpoint, str]:
    """One that writes to this table, and its own name."""
    checkpoint = Checkpoint(table.with_name(f"checkpoint-{name}"))
    return checkpoint, checkpoint.name("query")


def append(table: Path, number: int, frame: Frame, name: str = "1") -> None:
    rows: Any = frame
    append_once(table, (), *checkpoint_of(table, name))(rows, number)


def set_back(table: Path, versions: int) -> None:
    """As from a copy that was made so many commits ago."""
    log = sorted((table / "_delta_log").glob("*.json"))
    for commit in log[-versions:]:
        commit.unlink()


def numbers_in(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["n"].to_pylist())


def test_a_batch_that_another_driver_has_taken_meanwhile_is_not_taken_again(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, Frame(0))
    late = Frame(1, 2, meanwhile=lambda: append(table, 1, Frame(1, 2)))
    with pytest.raises(CommitFailedError):
        append(table, 1, late)
    append(table, 1, Frame(1, 2))
    assert numbers_in(table) == [0, 1, 2]
    assert last_batch(table, checkpoint_of(table)[1]) == 1


def test_nor_is_the_first_one_of_a_table(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, Frame(1, 2, meanwhile=lambda: append(table, 0, Frame(1, 2))))
    assert numbers_in(table) == [1, 2]


def test_batches_of_another_checkpoint_are_no_conflict(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, Frame(0))
    append(table, 1, Frame(1, meanwhile=lambda: append(table, 0, Frame(7), "2")))
    assert numbers_in(table) == [0, 1, 7]


def test_a_first_batch_without_rows_makes_the_table_and_may_come_again(tmp_path: Path) -> None:
    table = tmp_path / "table"
    assert last_batch(table, checkpoint_of(table)[1]) == NONE
    append(table, 0, Frame())
    append(table, 0, Frame())
    append(table, 1, Frame(5))
    assert numbers_in(table) == [5]


def test_a_table_that_is_gone_is_not_made_anew_in_the_middle(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="table is gone, and the micro-batches before 3"):
        append(tmp_path / "table", 3, Frame(5))


@pytest.mark.parametrize("goes_on_with", [Frame(3), Frame()])
def test_a_table_that_was_set_back_is_not_gone_on_with(tmp_path: Path, goes_on_with: Frame) -> None:
    """Batches without rows make no commit, so the next one's number says nothing of what is missing before it."""
    table = tmp_path / "table"
    for number, frame in enumerate((Frame(0), Frame(1), Frame(), Frame())):
        append(table, number, frame)
    checkpoint, name = checkpoint_of(table)
    assert (checkpoint.written, last_batch(table, name)) == (1, 1)
    set_back(table, 1)
    with pytest.raises(RuntimeError, match="was set back to micro-batch 0: it had those up to 1"):
        append(table, 4, goes_on_with)
    assert numbers_in(table) == [0]


def test_what_a_driver_wrote_and_could_not_say_is_said_when_it_is_repeated(tmp_path: Path) -> None:
    """It died in between."""
    table = tmp_path / "table"
    append(table, 0, Frame(0))
    checkpoint, name = checkpoint_of(table)
    (checkpoint.directory / "lockstep" / "written").unlink()
    append(table, 0, Frame(0))
    assert checkpoint.written == last_batch(table, name) == 0


@pytest.mark.parametrize("sink", ["delta", "parquet"])
def test_a_ledger_without_an_event_is_no_ledger_yet(tmp_path: Path, sink: str) -> None:
    spark: Any = None
    settings = RunSettings("a:1", tmp_path, sink=sink)
    with pytest.raises(ValueError, match="has no event yet"):
        ledger_table(spark, settings)


def test_so_is_one_that_knows_of_empty_batches_alone(tmp_path: Path) -> None:
    spark: Any = None
    settings = RunSettings("a:1", tmp_path, sink="delta")
    append(settings.tables.of("ledger"), 0, Frame())
    with pytest.raises(ValueError, match="has no event yet"):
        ledger_table(spark, settings)
