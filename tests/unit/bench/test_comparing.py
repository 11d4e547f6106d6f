"""Ratios of a run, and of its rounds."""

from bench.comparing import compared
from bench.musts import MUSTS, PEER, standings
from tests.unit.bench.made import measurement

CASE = MUSTS[0].case


def test_each_round_has_a_ratio_of_what_was_measured_in_it() -> None:
    own = [measurement(CASE, rate) for rate in (30.0, 50.0, 40.0)]
    peer = [measurement(CASE, rate, PEER, path="C") for rate in (10.0, 10.0, 20.0)]
    found = compared([*own, *peer], CASE, PEER)
    assert (found.ratio, found.by_round) == (4.0, (3.0, 5.0, 2.0))
    assert str(found.interval) == "2.00 to 5.00, all of 3 rounds"


def test_a_round_in_which_one_side_is_missing_has_none() -> None:
    own = [measurement(CASE, 30.0, round_number=number) for number in (1, 3)]
    peer = [measurement(CASE, rate, PEER, round_number=number) for number, rate in ((2, 10.0), (3, 15.0))]
    assert compared([*own, *peer], CASE, PEER).by_round == (2.0,)


def test_of_several_ways_to_drive_a_peer_all_rounds_are_of_the_one_with_the_best_median() -> None:
    own = [measurement(CASE, 60.0) for _ in range(3)]
    peer = [
        measurement(CASE, rate, PEER, path=path)
        for path, rates in (("one", (10.0, 60.0, 10.0)), ("all", (20.0, 30.0, 20.0)))
        for rate in rates
    ]
    found = compared([*own, *peer], CASE, PEER)
    assert (found.ratio, found.by_round) == (3.0, (3.0, 2.0, 3.0))


def test_the_proxy_is_compared_by_itself() -> None:
    measured = [measurement(CASE, 90.0), measurement(CASE, 20.0, path="amqp"), measurement(CASE, 10.0, PEER)]
    assert compared(measured, CASE, PEER).ratio == 9.0
    assert compared(measured, CASE, PEER, "amqp").ratio == 2.0


def test_what_nobody_watched_is_told_from_what_was() -> None:
    watched = [
        measurement(CASE, 30.0, system_cores={PEER: 0.0}),
        measurement(CASE, 10.0, PEER, system_cores={"lockstep": 0.1}),
    ]
    assert compared(watched, CASE, PEER).was_watched
    assert not compared([watched[0], measurement(CASE, 10.0, PEER)], CASE, PEER).was_watched


def test_a_verdict_says_whether_rounds_leave_it_open() -> None:
    def verdict(*rates: float) -> str:
        own = [measurement(CASE, rate) for rate in rates]
        return standings([*own, *(measurement(CASE, 10.0, PEER) for _ in rates)])[0].verdict

    assert verdict(31.0, 40.0, 35.0) == "reached"
    assert verdict(29.0, 40.0, 35.0) == "reached, rounds differ"
    assert verdict(29.0, 31.0, 28.0) == "missed, rounds differ"
    assert verdict(29.0, 28.0, 28.0) == "missed"
