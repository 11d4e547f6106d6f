"""Where a benchmark that writes to a disk is refused, and how it ends."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from bench.environment import Disk, Refused
from bench.scratch import run_on_disk
from lockstep.runtime.file_systems import filesystem_of
from lockstep.runtime.loop_watch import REPORTS

MEMORY = Path("/dev/shm")


def is_memory() -> bool:
    return MEMORY.is_dir() and filesystem_of(MEMORY) == "tmpfs"


class Work:
    """A benchmark that ends with this status."""

    def __init__(self, status: int | None = None) -> None:
        self._status = status
        self.places: list[Path] = []

    async def run(self, scratch: Path) -> int | None:
        assert scratch.is_dir()
        self.places.append(scratch)
        return self._status


def on_disk(_directory: Path) -> Disk:
    return Disk("ext4", 5000.0)


@pytest.mark.parametrize(("status", "code"), [(None, None), (0, 0), (1, 1)])
def test_its_directory_is_where_it_was_asked_for_and_its_status_is_the_end(
    tmp_path: Path, status: int | None, code: int | None
) -> None:
    work = Work(status)
    with pytest.raises(SystemExit) as end:
        run_on_disk(work.run, tmp_path, on_disk)
    assert end.value.code == code
    (place,) = work.places
    assert place.parent == tmp_path
    assert not place.exists()


class Busy(Work):
    """One during which a process that it starts has a step that is too long."""

    async def run(self, scratch: Path) -> int | None:
        program = (
            "from lockstep.runtime.loop_watch import LongStep, write_down;"
            "write_down(LongStep('broker B1', 0.123, (('count (set.py:7)', 'handle (core.py:9)'),), 1.0))"
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        assert await process.wait() == 0
        return await super().run(scratch)


@pytest.mark.parametrize(("status", "code"), [(None, 1), (0, 1), (2, 2)])
def test_a_long_step_of_a_process_under_test_is_said_and_fails_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int | None, code: int
) -> None:
    before = os.environ.get(REPORTS)
    with pytest.raises(SystemExit) as end:
        run_on_disk(Busy(status).run, tmp_path, on_disk)
    assert end.value.code == code
    said = capsys.readouterr().out.splitlines()[1:]
    assert said == [
        "steps of event loops that took more than 50 ms of processor time: 1",
        "     123 ms broker B1: count (set.py:7) < handle (core.py:9)",
    ]
    assert os.environ.get(REPORTS) == before


def test_what_the_data_is_on_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_on_disk(Work().run, tmp_path, on_disk)
    assert capsys.readouterr().out == "data on ext4, 5,000 fdatasync/s of 1 KiB\n"


@pytest.mark.skipif(not is_memory(), reason="needs a tmpfs")
def test_nothing_is_run_in_memory() -> None:
    work = Work()
    with pytest.raises(SystemExit, match="refused: the data directory is on tmpfs"):
        run_on_disk(work.run, MEMORY)
    assert work.places == []


def test_nothing_is_run_where_the_disk_is_refused(tmp_path: Path) -> None:
    def refused(_directory: Path) -> Disk:
        raise Refused("no disk")

    work = Work()
    with pytest.raises(SystemExit, match="bench: refused: no disk"):
        run_on_disk(work.run, tmp_path, refused)
    assert work.places == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_whoever_ends_it_leaves_no_directory_and_what_it_ends_itself_is_ended(
    tmp_path: Path, number: signal.Signals
) -> None:
    ended: list[Path] = []

    async def work(scratch: Path) -> None:
        (scratch / "data").write_text("much")
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            ended.append(scratch)

    with pytest.raises(SystemExit) as end:
        run_on_disk(work, tmp_path, on_disk)
    assert end.value.code == 128 + number
    assert len(ended) == 1
    assert list(tmp_path.iterdir()) == []
