"""Histograms: each value in one range."""

from lockstep.core.histogram import Histogram


def test_a_value_is_counted_in_the_lowest_range_whose_bound_is_not_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2]
    assert (histogram.count, histogram.sum) == (6, 16.5)
