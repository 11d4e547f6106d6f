"""A benchmark that writes to a disk: its directory, which a sync makes durable, and how it ends.

Law: nothing is measured in a directory of which `measured_disk` says that no result could be accepted; and whoever ends it by a
signal that can be heard leaves neither its processes nor its directory behind.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import NoReturn

import uvloop

from bench.environment import Disk, Refused, measured_disk
from bench.long_steps import described, watched_steps


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
    """Ends with the exit status that `work` returns, None is 0; or with the reason where it raises `Refused`. What steps of event
    loops were too long meanwhile is said, and is a failure.

    SIGTERM and SIGINT cancel it, once: what it does to end what it started is not interrupted. Then the status is a shell's.
    """
    ended_by: list[signal.Signals] = []

    async def until_ended() -> int | None:
        working = asyncio.current_task()
        assert working is not None, "it runs in a task"

        def end(number: signal.Signals) -> None:
            if not ended_by:
                ended_by.append(number)
                working.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        return await work

    with watched_steps() as reports:
        try:
            status = uvloop.run(until_ended())
        except Refused as refused:
            sys.exit(f"bench: refused: {refused}")
        except asyncio.CancelledError:
            if not ended_by:
                raise
            sys.exit(128 + ended_by[0])
        finally:
            long_steps = described(reports)
            for line in long_steps:
                print(line, flush=True)
    sys.exit(status or (1 if long_steps else status))


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
