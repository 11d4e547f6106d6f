"""Names of checkpoints, and which tables they fit."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.pipeline.checkpoint import NONE, Checkpoint, last_number
from services.pipeline.sinks import parquet


def checkpoint_of(directory: Path, *, planned: int = NONE, committed: int = NONE) -> Checkpoint:
    """As Spark leaves one."""
    for log, last in (("offsets", planned), ("commits", committed)):
        (directory / log).mkdir(parents=True)
        for number in range(last + 1):
            (directory / log / str(number)).touch()
            (directory / log / f".{number}.crc").touch()
    return Checkpoint(directory)


def test_a_checkpoint_keeps_its_name_and_no_other_has_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "ledger-delta")
    name = checkpoint.name("pipeline.ledger")
    assert name.startswith("pipeline.ledger/")
    assert checkpoint.name("other.ledger") == name
    assert Checkpoint(tmp_path / "another-delta").name("pipeline.ledger") != name
    assert [path.name for path in checkpoint.directory.iterdir()] == ["lockstep"]


def test_a_checkpoint_without_a_name_has_the_one_by_which_its_batches_are_known(tmp_path: Path) -> None:
    assert checkpoint_of(tmp_path / "run", planned=0).name("pipeline.ledger") == "pipeline.ledger"
    assert checkpoint_of(tmp_path / "made").name("pipeline.ledger") != "pipeline.ledger"


def test_drivers_that_begin_at_the_same_time_go_by_one_name(tmp_path: Path) -> None:
    for turn in range(20):
        checkpoint = Checkpoint(tmp_path / str(turn))
        with ThreadPoolExecutor(4) as drivers:
            names = set(drivers.map(checkpoint.name, ["q"] * 4))
        assert len(names) == 1
        assert [path.name for path in checkpoint.directory.iterdir()] == ["lockstep"]


def test_a_table_has_what_was_planned_at_most(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, planned=12, committed=11)
    for last in (NONE, 11, 12):
        checkpoint.check("t", last)
    with pytest.raises(ValueError, match=r"t has micro-batches up to 13 .* knows those up to 12"):
        checkpoint.check("t", 13)
    with pytest.raises(ValueError, match="knows none"):
        Checkpoint(tmp_path / "new").check("t", 0)


def test_a_table_that_has_every_batch_has_what_was_committed_at_least(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, planned=12, committed=11)
    checkpoint.check("t", 11, at_least=checkpoint.committed)
    for last, said in ((10, "up to 10"), (NONE, "no micro-batch")):
        with pytest.raises(ValueError, match=f"t has (micro-batches )?{said}"):
            checkpoint.check("t", last, at_least=checkpoint.committed)


def test_what_was_written_is_kept_with_the_checkpoint_and_never_gets_less(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.written == NONE
    name = checkpoint.name("q")
    for number in (0, 7, 3):
        checkpoint.keep_written(number)
    assert (Checkpoint(tmp_path).written, checkpoint.name("q")) == (7, name)
    assert sorted(path.name for path in (tmp_path / "lockstep").iterdir()) == ["name", "written"]


def test_batches_of_files_are_counted_though_they_are_compacted(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    assert parquet.last_batch(tmp_path) == last_number(log) == NONE
    log.mkdir()
    for name in ("9.compact", ".9.compact.crc", "10", ".10.crc", "8", "11.tmp"):
        (log / name).touch()
    assert parquet.last_batch(tmp_path) == 10
