"""What counts as work: all that a block calls, by name, and nothing of the counting itself."""

import sys
from collections.abc import Callable

import pytest

from tests.counted_work import CountedCalls, CountedOpcodes, CountedWork


class Walker:
    def __init__(self) -> None:
        self.walked: list[int] = []

    def walk(self, steps: int) -> None:
        for step in range(steps):
            self.walked.append(step)


def test_calls_count_those_of_c_too_and_those_of_python_by_name() -> None:
    walker = Walker()
    with CountedCalls() as calls:
        walker.walk(3)
    walker.walk(3)
    assert calls.by_name == {"Walker.walk": 1}
    assert calls.total == 4


def test_a_block_that_does_nothing_has_no_calls_and_no_opcodes() -> None:
    with CountedCalls() as calls:
        pass
    with CountedOpcodes() as opcodes:
        pass
    assert (calls.total, opcodes.total) == (0, 0)


def test_reading_amid_a_block_counts_for_nothing() -> None:
    walker = Walker()
    with CountedCalls() as calls:
        walker.walk(1)
        first = calls.total
        walker.walk(1)
    assert (first, calls.total) == (2, 4)


def test_opcodes_grow_with_what_is_done_by_as_many_for_each_step() -> None:
    totals = []
    for steps in (10, 20, 30):
        walker = Walker()
        with CountedOpcodes() as opcodes:
            walker.walk(steps)
        totals.append(opcodes.total)
    assert totals[2] - totals[1] == totals[1] - totals[0] > 10


@pytest.mark.parametrize(("file", "counts"), [("test_counted_work.py", True), ("elsewhere.py", False)])
def test_opcodes_of_other_files_do_not_count(file: str, counts: bool) -> None:
    with CountedOpcodes((file,)) as opcodes:
        Walker().walk(1)
    assert bool(opcodes.total) is counts


def _raise() -> None:
    raise LookupError


@pytest.mark.parametrize(
    ("counting", "read"), [(CountedCalls, sys.getprofile), (CountedOpcodes, sys.gettrace)]
)
def test_who_watched_before_goes_on_behind_a_block_however_it_ends(
    counting: Callable[[], CountedWork], read: Callable[[], object]
) -> None:
    before = read()
    with counting():
        assert read() is not before
    assert read() is before
    with pytest.raises(LookupError), counting():
        _raise()
    assert read() is before
