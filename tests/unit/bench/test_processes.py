"""Who belongs to whom, and what they have used together."""

import os

from bench.processes import Process, all_processes, family, family_resident_mib, family_seconds

PARENTS = {1: 0, 10: 1, 11: 10, 12: 11, 13: 1, 14: 13}
PROCESSES = {pid: Process(parent, pid, 0.5) for pid, parent in PARENTS.items()}


def test_a_family_is_all_below_and_nobody_beside() -> None:
    assert family(10, PROCESSES) == {10, 11, 12}


def test_what_a_family_has_used_includes_what_it_has_waited_for() -> None:
    assert family_seconds(10, PROCESSES) == 10 + 11 + 12 + 3 * 0.5


def test_a_process_that_is_gone_has_used_nothing() -> None:
    assert family_seconds(99, PROCESSES) == 0


def test_this_process_is_among_all_and_has_memory() -> None:
    assert all_processes()[os.getpid()].parent == os.getppid()
    assert family_resident_mib(os.getpid()) > 1
