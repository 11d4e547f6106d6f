"""Garbage of a run of tests: when it is collected."""

import gc
import weakref
from typing import Any

import pytest

from tests.garbage import GROWTH, Garbage

MANY = 200_000


class Knot:
    """Nothing but a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def garbage() -> Garbage:
    """That of this test; the one of the run goes on behind it."""
    own = Garbage()
    own.begin()
    return own


def collections() -> int:
    """Full ones of this process so far."""
    return int(gc.get_stats()[2]["collections"])


def test_there_is_no_full_collection_in_the_midst_of_a_test() -> None:
    before = collections()
    kept = [[number] for number in range(MANY)]
    assert collections() == before
    assert len(kept) == MANY


def test_what_a_test_leaves_is_collected_behind_it(garbage: Garbage) -> None:
    made: list[list[Any]] = [[Knot()] for _ in range(MANY)]
    knot = weakref.ref(made.pop(0)[0])
    assert knot() is not None, "it is too old for what is collected in a test"
    garbage.collect()
    assert knot() is None


def test_a_test_that_makes_little_costs_no_collection(garbage: Garbage) -> None:
    before = collections()
    garbage.collect()
    assert collections() == before


def test_what_was_set_aside_is_collected_when_there_is_much_more_of_it(garbage: Garbage) -> None:
    made: list[list[Any]] = [[Knot()] for _ in range(MANY)]
    garbage.collect()
    knot, set_aside = weakref.ref(made.pop(0)[0]), gc.get_freeze_count()
    while gc.get_freeze_count() <= GROWTH * set_aside and knot() is not None:
        made.extend([number] for number in range(MANY))
        garbage.collect()
    assert knot() is None


def test_a_test_that_leaves_collections_off_fails_and_the_next_one_has_them(garbage: Garbage) -> None:
    gc.disable()
    with pytest.raises(AssertionError, match="off"):
        garbage.collect()
    assert gc.isenabled()
