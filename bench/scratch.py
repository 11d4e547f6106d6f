"""A benchmark that writes to a disk: its directory, which a sync makes durable, and how it ends.

Law: nothing is measured in a directory of which `measured_disk` says that no result could be accepted.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import NoReturn

import uvloop

from bench.environment import Disk, Refused, measured_disk


def add_directory(parser: argparse.ArgumentParser) -> None:
    """The option `--directory`."""
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; default: the system's")


@contextlib.contextmanager
def scratch_directory(
    directory: Path | None, measured: Callable[[Path], Disk] = measured_disk
) -> Iterator[tuple[Path, Disk]]:
    """A new directory in `directory`, and what its disk can do. `measured`: raises `Refused`, and so does this."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=directory) as scratch:
        os.chmod(scratch, 0o755)  # PostgreSQL works under another user.
        yield Path(scratch), measured(Path(scratch))


def run(work: Coroutine[None, None, int | None]) -> NoReturn:
    """Ends with the exit status that `work` returns, None is 0; or with the reason where it raises `Refused`."""
    try:
        status = uvloop.run(work)
    except Refused as refused:
        sys.exit(f"bench: refused: {refused}")
    sys.exit(status)


def run_on_disk(
    work: Callable[[Path], Coroutine[None, None, int | None]],
    directory: Path | None,
    measured: Callable[[Path], Disk] = measured_disk,
) -> NoReturn:
    """`run` with a `scratch_directory`, whose disk is said; where it is refused `work` is not begun."""

    async def on_disk() -> int | None:
        with scratch_directory(directory, measured) as (scratch, disk):
            print(f"data on {disk.filesystem}, {disk.syncs_per_second:,.0f} fdatasync/s of 1 KiB", flush=True)
            return await work(scratch)

    run(on_disk())
