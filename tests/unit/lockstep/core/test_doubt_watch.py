"""When somebody is warned of what stays in doubt."""

from collections.abc import Mapping

from lockstep.core.doubt_watch import LOOKED_AT_IN_ONE, DoubtFigures, DoubtWatch
from lockstep.core.due_times import Key


def look(watch: DoubtWatch[Key], since_ms: Mapping[Key, int], wall_ms: int) -> list[Key]:
    for _ in watch.look(since_ms):
        pass
    return watch.late(wall_ms)


def test_a_warning_comes_at_the_threshold_and_then_whenever_the_age_has_doubled() -> None:
    watch = DoubtWatch[str](threshold_ms=60, warnings_max=10)
    warned = [age for age in range(0, 1000, 5) if look(watch, {"x": 7}, 7 + age)]
    assert warned == [60, 120, 240, 480, 960]


def test_one_that_is_found_late_is_warned_of_at_once() -> None:
    watch = DoubtWatch[str](threshold_ms=60, warnings_max=10)
    assert look(watch, {"x": 0}, 1000) == ["x"]
    assert look(watch, {"x": 0}, 1999) == []
    assert look(watch, {"x": 0}, 2000) == ["x"]


def test_a_burst_is_spread_over_looks_the_oldest_first_and_nothing_is_left_out() -> None:
    watch = DoubtWatch[int](threshold_ms=60, warnings_max=3)
    since_ms = {number: 100 - number for number in range(8)}
    looks = [look(watch, since_ms, 1000 + number) for number in range(4)]
    assert looks == [[7, 6, 5], [4, 3, 2], [1, 0], []]


def test_what_is_over_is_forgotten_and_begins_anew() -> None:
    watch = DoubtWatch[str](threshold_ms=60, warnings_max=10)
    assert look(watch, {"x": 0}, 60) == ["x"]
    assert look(watch, {}, 61) == []
    assert watch.figures(61) == DoubtFigures(0, 0.0, 0)
    assert look(watch, {"x": 62}, 121) == []
    assert look(watch, {"x": 62}, 122) == ["x"]


def test_figures_grow_between_looks_and_a_clock_that_went_back_makes_no_age() -> None:
    watch = DoubtWatch[str](threshold_ms=2_000, warnings_max=10)
    look(watch, {"old": 1_000, "young": 2_500}, 2_600)
    assert watch.figures(2_600) == DoubtFigures(2, 1.6, 0)
    assert watch.figures(3_000) == DoubtFigures(2, 2.0, 1)
    assert watch.figures(0) == DoubtFigures(2, 0.0, 0)
    assert look(watch, {"old": 1_000}, 0) == []


def test_a_look_at_many_is_done_in_steps() -> None:
    watch = DoubtWatch[int](threshold_ms=60, warnings_max=3)
    since_ms = dict.fromkeys(range(10 * LOOKED_AT_IN_ONE), 0)
    for expected in (20, 20):
        costs = list(watch.look(since_ms))
        assert max(costs) <= LOOKED_AT_IN_ONE + 1 and len(costs) >= expected // 2
    assert watch.figures(0).count == len(since_ms)
