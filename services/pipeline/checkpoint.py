"""What Spark remembers of a query, as far as the query's sink has to agree with it.

Law: a sink has no micro-batch that its checkpoint has not planned, and takes no number of one checkpoint for that of another. All
count from 0, so each has a name of its own, which is durable before Spark plans anything, and is deleted with it.
"""

import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NONE = -1
"""Instead of a micro-batch's number: there is none."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Of one query, into one sink."""

    directory: Path

    @property
    def planned(self) -> int:
        """The last micro-batch whose end is fixed, whether it was run or not."""
        return last_number(self.directory / "offsets")

    @property
    def committed(self) -> int:
        """The last micro-batch that the sink said it has."""
        return last_number(self.directory / "commits")

    def name(self, query: str) -> str:
        """Under which a sink knows its micro-batches: `query`, and what no other checkpoint has. Made when it is first asked for.

        A checkpoint with micro-batches and without a name is of a version that called all of a query's by `query` alone.
        """
        kept = self.directory / "lockstep"
        if not kept.exists():
            self._keep(kept, query if self.planned != NONE else f"{query}/{uuid.uuid4().hex}")
        return (kept / "name").read_text()

    @property
    def written(self) -> int:
        """The last micro-batch with rows that the sink has, or an earlier one: a sink that keeps no number of others, too, is
        known by it to have been set back. A checkpoint of an older version has none.
        """
        kept = self.directory / "lockstep" / "written"
        return int(kept.read_text()) if kept.exists() else NONE

    def keep_written(self, number: int) -> None:
        """The sink has it, for good. The checkpoint has its name."""
        if number <= self.written:
            return
        kept = self.directory / "lockstep" / "written"
        scratch = kept.with_name(f".written-{uuid.uuid4().hex}")
        _write(scratch, str(number))
        scratch.replace(kept)
        _sync(kept.parent)

    def check(self, table: str, last: int, *, at_least: int = NONE) -> None:
        """Raises `ValueError` if `last`, the table's last micro-batch, is less than it has to be, or is not planned: Spark would
        give its number to another one, and the sink would leave that out.
        """
        if not at_least <= last <= self.planned:
            has = "no micro-batch" if last == NONE else f"micro-batches up to {last}"
            knows = "none" if self.planned == NONE else f"those up to {self.planned}"
            raise ValueError(
                f"{table} has {has} of the checkpoint {self.directory}, which knows {knows}: one of them was deleted or set back."
                " Bring it back as it was, or begin with a new checkpoint (and with a new table, where that is files of Parquet)"
            )

    def _keep(self, kept: Path, name: str) -> None:
        """In a directory: no rename replaces one that has something in it. So of two drivers both go by the name of the first."""
        scratch = kept.with_name(f".lockstep-{uuid.uuid4().hex}")
        scratch.mkdir(parents=True)
        _write(scratch / "name", name)
        _sync(scratch)
        try:
            scratch.rename(kept)
        except OSError:
            shutil.rmtree(scratch)
            if not kept.exists():
                raise
        # Up to the output directory, which may be as new.
        for directory in (self.directory, *self.directory.parents[:2]):
            _sync(directory)


def last_number(log: Path) -> int:
    """The highest that a file is named by, in a directory that Spark keeps one of each micro-batch in; some are compacted."""
    return max(_numbers(path.name for path in log.glob("[0-9]*")), default=NONE)


def _numbers(names: Iterable[str]) -> list[int]:
    return [int(number) for number in (name.removesuffix(".compact") for name in names) if number.isdecimal()]


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
