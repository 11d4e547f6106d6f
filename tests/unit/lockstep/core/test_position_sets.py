"""Position sets: as a set of numbers, on pages that stay small."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.core.content_shelf import SHELF_BITS
from lockstep.core.ids import ORDINAL_BITS, LogIndex, QueuePosition, place
from lockstep.core.position_sets import FEW_MAX, PositionSet
from lockstep.core.position_tables import PositionTable

MANY = range(1, FEW_MAX + 2)
"""Records, whose first messages are so many that they are on pages."""
POSITIONS = st.builds(place, st.integers(1, 300).map(LogIndex), st.integers(0, 3))
CHANGES = st.lists(st.tuples(st.booleans(), st.lists(POSITIONS, max_size=20)), max_size=20)


@pytest.mark.parametrize("others", [range(0), MANY], ids=["few", "many"])
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
@given(CHANGES, st.lists(POSITIONS, max_size=20))
def test_it_is_a_set(
    others: range, changes: list[tuple[bool, list[QueuePosition]]], asked: list[QueuePosition]
) -> None:
    """`others`: in it from the beginning, and gone before the last change."""
    first = [QueuePosition(place(LogIndex(number), 0)) for number in others]
    expected, found = set(first), PositionSet()
    found.update(first)
    for number, (is_more, positions) in enumerate(changes):
        if number == len(changes) - 1:
            expected.difference_update(first)
            found.difference_update(first)
        if is_more:
            expected.update(positions)
            found.update(positions)
        else:
            expected.difference_update(positions)
            found.difference_update(positions)
        assert list(found) == sorted(expected)
        assert (len(found), bool(found)) == (len(expected), bool(expected))
        assert found.first() == min(expected, default=None)
    assert found.among(asked) == expected.intersection(asked)
    assert found.has_all(asked) == expected.issuperset(asked)
    assert [each in found for each in asked] == [each in expected for each in asked]
    assert all(found.pages.values()), "no page is empty"
    assert not (found.few and found.pages)


@given(CHANGES, st.lists(POSITIONS, max_size=20))
def test_what_is_said_first_of_an_entry_holds(
    changes: list[tuple[bool, list[QueuePosition]]], asked: list[QueuePosition]
) -> None:
    expected, found = dict[QueuePosition, int](), PositionTable[int]()
    for number, (is_more, positions) in enumerate(changes):
        if is_more:
            for position in positions:
                expected.setdefault(position, number)
            found.say_first(positions, number)
        else:
            for position in positions:
                expected.pop(position, None)
            found.remove(positions)
        assert found == expected and len(found) == len(expected)
        assert found.those_of(asked, number) == [each for each in asked if expected.get(each) == number]
    assert found.among(asked) == expected.keys() & set(asked)


def test_a_page_does_not_grow_with_their_number() -> None:
    found = PositionSet()
    positions = [QueuePosition(place(LogIndex(number), 0)) for number in MANY]
    found.update(positions[:-1])
    assert not found.pages, "few are one set"
    found.update(positions)
    assert not found.few
    assert max(map(len, found.pages.values())) == 1 << (SHELF_BITS - ORDINAL_BITS)
    found.difference_update(positions[:-1])
    assert list(found) == positions[-1:] and len(found.pages) == 1
