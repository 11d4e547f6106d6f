"""Who leads next: the set's order decides, and a set that lacks nobody goes back to its first broker (C4)."""

from dataclasses import replace

import pytest

from lockstep.core.cluster_map import SetMap
from lockstep.core.ids import BrokerId, Epoch, SetName
from services.broker.core.succession import DOUBLINGS_MAX, FORGET_MS, GivingBack, successor
from tests.unit.services.replicas import SET, entry, member

A, B, C = BrokerId("a"), BrokerId("b"), BrokerId("c")
ALL = (A, B, C)
WAIT_MS = 1_000


def led_by(broker: str, *brokers: BrokerId, epoch: int = 4) -> SetMap:
    """Of a set whose order is `brokers`."""
    others = [member(one) for one in brokers if one != broker]
    return replace(entry(epoch, member(broker), *others), brokers=brokers)


@pytest.mark.parametrize(
    ("order", "leaving", "whole", "expected"),
    [
        ((A, B, C), A, ALL, B),
        ((C, B, A), A, ALL, C),
        ((C, A, B), A, (A, B), B),
        ((B, C, A), B, (B, A), A),
        ((A, B, C), A, (A,), None),
        ((A, B, C), A, (), None),
        ((A,), A, (A,), None),
    ],
)
def test_a_set_is_handed_over_to_the_first_in_its_order_that_is_in_sync(
    order: tuple[BrokerId, ...], leaving: BrokerId, whole: tuple[BrokerId, ...], expected: BrokerId | None
) -> None:
    assert successor(led_by(leaving, *order), leaving, whole) == expected


def due(
    giving: GivingBack,
    now_ms: int,
    set_map: SetMap | None = None,
    whole: tuple[BrokerId, ...] = ALL,
    is_serving: bool = True,
    is_chosen: bool = False,
) -> BrokerId | None:
    return giving.due(set_map or led_by("b", A, B, C), whole, is_serving, is_chosen, now_ms)


def test_a_set_goes_back_when_it_has_lacked_no_member_for_a_while() -> None:
    giving = GivingBack(B, WAIT_MS)
    assert due(giving, 0) is None
    assert due(giving, 999) is None
    assert due(giving, 1_000) == A


@pytest.mark.parametrize("lacking", [(A, B), (B, C), (A, C), ()])
def test_the_while_begins_anew_when_a_member_was_lacking(lacking: tuple[BrokerId, ...]) -> None:
    giving = GivingBack(B, WAIT_MS)
    due(giving, 0)
    assert due(giving, 1_000, whole=lacking) is None
    assert due(giving, 1_500) is None
    assert due(giving, 2_400) is None
    assert due(giving, 2_500) == A


def test_the_while_begins_anew_with_another_reign() -> None:
    giving = GivingBack(B, WAIT_MS)
    due(giving, 0)
    later = led_by("b", A, B, C, epoch=6)
    assert due(giving, 1_000, later) is None
    assert due(giving, 2_000, later) == A


@pytest.mark.parametrize(
    ("set_map", "is_serving", "is_chosen"),
    [
        pytest.param(led_by("b", B, A, C), True, False, id="its first broker leads"),
        pytest.param(led_by("c", A, B, C), True, False, id="another leads"),
        pytest.param(led_by("b", A, B, C), False, False, id="nobody serves it yet"),
        pytest.param(led_by("b", A, B, C), True, True, id="somebody said so"),
    ],
)
def test_a_set_stays_where_it_is(set_map: SetMap, is_serving: bool, is_chosen: bool) -> None:
    giving = GivingBack(B, WAIT_MS)
    for now_ms in (0, 1_000, 60_000):
        found = due(giving, now_ms, set_map, is_serving=is_serving, is_chosen=is_chosen)
        assert found is None


def test_a_broker_that_keeps_losing_a_set_is_given_it_less_and_less_often() -> None:
    giving, now_ms, waited = GivingBack(B, WAIT_MS), 0, []
    for _ in range(DOUBLINGS_MAX + 2):
        began_ms = now_ms
        while due(giving, now_ms) is None:
            now_ms += 100
        giving.given(SET, now_ms)
        waited.append(now_ms - began_ms)
    assert waited == [WAIT_MS << min(times, DOUBLINGS_MAX) for times in range(DOUBLINGS_MAX + 2)]


def test_what_was_long_ago_is_forgotten() -> None:
    giving = GivingBack(B, WAIT_MS)
    giving.given(SET, 0)
    giving.given(SET, 0)
    due(giving, FORGET_MS)
    assert due(giving, FORGET_MS + WAIT_MS) == A
    giving.given(SET, FORGET_MS + WAIT_MS)
    due(giving, FORGET_MS + WAIT_MS)
    assert due(giving, FORGET_MS + 2 * WAIT_MS) is None
    assert due(giving, FORGET_MS + 3 * WAIT_MS) == A


def test_sets_wait_each_for_itself() -> None:
    giving, other = GivingBack(B, WAIT_MS), replace(led_by("b", C, B, A), set_name=SetName("other"))
    due(giving, 0)
    due(giving, 500, other)
    assert (due(giving, 1_000), due(giving, 1_000, other)) == (A, None)
    giving.given(SET, 1_000)
    assert due(giving, 1_500, other) == C


def test_an_entry_of_epoch_zero_is_led_by_nobody() -> None:
    assert (
        due(GivingBack(B, 0), 0, replace(led_by("b", A, B, C), primary=BrokerId(""), epoch=Epoch(0))) is None
    )
