"""What a result needs to be one, and who counts as the others."""

import os
import time

import pytest

from bench.environment import Disk, OtherLoad, Refused, used_by_others
from bench.processes import Process


@pytest.mark.parametrize(
    "disk", [Disk("tmpfs", 1e6), Disk("ramfs", 1e6), Disk("", 5000.0), Disk("ext4", 0.0)]
)
def test_a_disk_in_memory_or_of_unknown_kind_or_speed_is_refused(disk: Disk) -> None:
    with pytest.raises(Refused):
        disk.check()


def test_a_disk_with_its_kind_and_speed_is_accepted() -> None:
    Disk("ext4", 5000.0).check()


def test_others_are_neither_ours_nor_the_kernel() -> None:
    before = {
        1: Process(0, 100.0, 50.0),
        2: Process(0, 1.0, 0.0),
        3: Process(2, 7.0, 0.0),
        4: Process(2, 500.0, 0.0),
        10: Process(1, 4.0, 3.0),
        11: Process(10, 2.0, 0.5),
        20: Process(1, 30.0, 9.0),
    }
    after = {
        1: Process(0, 101.0, 50.0),
        2: Process(0, 1.0, 0.0),
        3: Process(2, 8.0, 0.0),
        5: Process(2, 0.5, 0.0),
        10: Process(1, 5.0, 6.5),
        20: Process(1, 33.0, 9.0),
    }
    # Ours: 1.0 of process 10, and 1.0 of 11 before it ended; the kernel: 1.0 and 0.5, nothing of its thread 4, which is gone.
    assert used_by_others(10.0, before, after, 10) == 10.0 - 2.0 - 1.5


def test_only_what_others_use_from_the_start_on_counts() -> None:
    others = OtherLoad()
    others.start()
    time.sleep(0.05)
    assert 0.0 <= others.cores() <= 2 * (os.cpu_count() or 1)
