"""Ratios, and the status that a run with peers ends with."""

import pytest

from bench.musts import MUSTS, PEER, Standing, exit_status, ratio_line, standings
from tests.unit.bench.made import measurement


def found(factor: float) -> list[Standing]:
    """Of a run in which Lockstep is `factor` times as fast as every must asks for."""
    measured = []
    for must in MUSTS:
        measured.append(measurement(must.case, 1000.0 * must.ratio * factor))
        measured.append(measurement(must.case, 1000.0, PEER, path="C"))
    return standings(measured)


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.5, 0), (0.99, 1)])
def test_the_status_says_whether_every_must_is_reached(factor: float, status: int) -> None:
    assert exit_status(found(factor)) == status


def test_one_missed_must_is_enough() -> None:
    assert exit_status([*found(2.0)[1:], found(0.5)[0]]) == 1


def test_what_was_not_measured_is_missed() -> None:
    assert exit_status(standings([])) == 1
    assert exit_status(found(2.0)[1:] + standings([])[:1]) == 1


def test_what_went_through_the_proxy_does_not_count() -> None:
    case = MUSTS[0].case
    measured = [
        measurement(case, 9e9, path="amqp"),
        measurement(case, 10.0),
        measurement(case, 10.0, PEER),
    ]
    assert standings(measured)[0].ratio == 1.0


def test_medians_count_and_not_the_best() -> None:
    case = MUSTS[0].case
    own = [measurement(case, rate) for rate in (10.0, 90.0, 20.0)]
    assert standings([*own, measurement(case, 10.0, PEER)])[0].ratio == 2.0


def test_of_several_ways_to_drive_a_peer_the_best_counts() -> None:
    case = MUSTS[0].case
    peers = [
        measurement(case, rate, PEER, path=path) for path, rate in (("a", 10.0), ("b", 30.0), ("c", 20.0))
    ]
    assert standings([measurement(case, 60.0), *peers])[0].ratio == 2.0


def test_the_last_line_names_every_must_with_its_ratio_and_verdict() -> None:
    line = ratio_line([found(2.0)[0], found(0.5)[1]])
    assert line == (
        "ratios to rabbitmq: W1 tx of 100, 4 clients: 6.00 of 3 ok; W1 tx of 10, 4 clients: 0.65 of 1.3 MISSED"
    )


def test_a_ratio_of_a_disturbed_measurement_says_so() -> None:
    case = MUSTS[0].case
    for own, peer in ((1.0, 1.3), (1.3, 1.0)):
        measured = [measurement(case, 30.0, slowdown=own), measurement(case, 10.0, PEER, slowdown=peer)]
        assert str(standings(measured)[0]) == "W1 tx of 100, 4 clients: 3.00 of 3 ok (noisy)"
