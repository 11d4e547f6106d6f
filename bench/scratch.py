"""A benchmark that writes to a disk: its directory, which a sync makes durable, and how it ends.

Law: nothing is measured in a directory of which `measured_disk` says that no result could be accepted.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import NoReturn

import uvloop

from bench.environment import Disk, Refused, measured_disk


def add_directory(parser: argparse.ArgumentParser) -> None:
    """The option `--directory`."""
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; default: the system's")


def run_on_disk(
    work: Callable[[Path], Coroutine[None, None, int | None]],
    directory: Path | None,
    measured: Callable[[Path], Disk] = measured_disk,
) -> NoReturn:
    """Runs `work` with a new directory in `directory`, and ends with the exit status that it returns; None is 0.

    `measured`: raises `Refused`; then this ends with the reason, and `work` is not run.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=directory) as scratch:
            disk = measured(Path(scratch))
            print(f"data on {disk.filesystem}, {disk.syncs_per_second:,.0f} fdatasync/s of 1 KiB", flush=True)
            status = uvloop.run(work(Path(scratch)))
    except Refused as refused:
        sys.exit(f"bench: refused: {refused}")
    sys.exit(status)
