"""Where the pipeline keeps what it makes: a directory with one for each job, and one for all checkpoints.

Law: a checkpoint and its table belong together (`checkpoint.py`). A new checkpoint reads from where the group stands, and what it
reads is added to what the table has.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from lockstep.client.event_offsets import EventOffset
from services.pipeline.checkpoint import NONE, Checkpoint
from services.pipeline.options import offsets_from, plain


@dataclass(frozen=True, slots=True)
class Tables:
    """Under one directory, which all jobs of a pipeline share."""

    directory: Path

    def of(self, job: str) -> Path:
        """The rows of a job."""
        return self.directory / job

    def checkpoint(self, job: str, sink: str) -> Checkpoint:
        """What Spark remembers of a query."""
        return Checkpoint(self.directory / "checkpoints" / f"{job}-{sink}")

    def starts(self, job: str, sink: str, found: dict[str, EventOffset]) -> None:
        """Writes down where the rows of a job begin: `found` is what the group says before the query first ran."""
        path = self._starts(job, sink)
        is_new = not self.of(job).exists() and self.checkpoint(job, sink).planned == NONE
        if is_new or not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch = path.with_suffix(".new")
            scratch.write_text(json.dumps(plain(found)))
            scratch.replace(path)

    def began(self, job: str, sink: str) -> dict[str, int]:
        """The index at which a query began in each resource set; a set that came later began at 0."""
        found = offsets_from(json.loads(self._starts(job, sink).read_text()))
        return {name: offset.index for name, offset in found.items()}

    def _starts(self, job: str, sink: str) -> Path:
        return self.directory / "checkpoints" / f"{job}-{sink}.start.json"

    @property
    def violations(self) -> Path:
        """What the last audit found, as Parquet."""
        return self.directory / "violations"

    @property
    def audit(self) -> Path:
        """The same in short, as JSON."""
        return self.directory / "audit.json"
