"""Who precedes whom, and who is where."""

from collections import Counter
from itertools import pairwise

import pytest

from bench.peers.order import ordered, rows


@pytest.mark.parametrize("count", range(2, 9))
def test_each_follows_each_other_one_and_stands_in_each_place_equally_often(count: int) -> None:
    found = rows(count)
    assert len(found) == (2 * count if count % 2 else count)
    follows = Counter(pair for row in found for pair in pairwise(row))
    places = Counter((place, one) for row in found for place, one in enumerate(row))
    assert follows.keys() == {(one, other) for one in range(count) for other in range(count) if one != other}
    assert len(set(follows.values())) == len(set(places.values())) == 1


def test_behind_the_last_row_comes_the_first() -> None:
    systems = ["own", "peer"]
    assert [ordered(systems, number) for number in range(3)] == [systems, systems[::-1], systems]
    assert ordered([], 3) == []
    assert ordered(["own"], 7) == ["own"]
