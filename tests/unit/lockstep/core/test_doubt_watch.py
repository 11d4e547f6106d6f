"""When somebody is warned of what stays in doubt."""

from lockstep.core.doubt_watch import DoubtFigures, DoubtWatch


def test_a_warning_comes_at_the_threshold_and_then_whenever_the_age_has_doubled() -> None:
    watch = DoubtWatch[str](threshold_ms=60, warnings_max=10)
    warned = [age for age in range(0, 1000, 5) if watch.look({"x": 7}, 7 + age)]
    assert warned == [60, 120, 240, 480, 960]


def test_one_that_is_found_late_is_warned_of_at_once() -> None:
    watch = DoubtWatch[str](threshold_ms=60, warnings_max=10)
    assert watch.look({"x": 0}, 1000) == ["x"]
    assert watch.look({"x": 0}, 1999) == []
    assert watch.look({"x": 0}, 2000) == ["x"]


def test_a_burst_is_spread_over_looks_the_oldest_first_and_nothing_is_left_out() -> None:
    watch = DoubtWatch[int](threshold_ms=60, warnings_max=3)
    since_ms = {number: 100 - number for number in range(8)}
    looks = [watch.look(since_ms, 1000 + look) for look in range(4)]
    assert looks == [[7, 6, 5], [4, 3, 2], [1, 0], []]


def test_what_is_over_is_forgotten_and_begins_anew() -> None:
    watch = DoubtWatch[str](threshold_ms=60, warnings_max=10)
    assert watch.look({"x": 0}, 60) == ["x"]
    assert watch.look({}, 61) == []
    assert watch.figures(61) == DoubtFigures(0, 0.0, 0)
    assert watch.look({"x": 62}, 121) == []
    assert watch.look({"x": 62}, 122) == ["x"]


def test_figures_grow_between_looks_and_a_clock_that_went_back_makes_no_age() -> None:
    watch = DoubtWatch[str](threshold_ms=2_000, warnings_max=10)
    watch.look({"old": 1_000, "young": 2_500}, 2_600)
    assert watch.figures(2_600) == DoubtFigures(2, 1.6, 0)
    assert watch.figures(3_000) == DoubtFigures(2, 2.0, 1)
    assert watch.figures(0) == DoubtFigures(2, 0.0, 0)
    assert watch.look({"old": 1_000}, 0) == []
