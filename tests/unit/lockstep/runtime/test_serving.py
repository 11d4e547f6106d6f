"""Serving rights: what may still leave, and what may not whatever comes later."""

from lockstep.core.ids import SetName
from lockstep.runtime.serving import ServingRights

ORDERS, BILLING = SetName("orders"), SetName("billing")


def test_a_renewal_in_time_prolongs_the_right_of_what_waits() -> None:
    rights = ServingRights()
    rights.extend(1000, now_ms=0)
    right = rights.of(ORDERS)
    rights.extend(2000, now_ms=900)
    assert right.until_ms == 2000
    assert rights.of(ORDERS) is right


def test_a_renewal_after_a_gap_revives_nothing() -> None:
    rights = ServingRights()
    rights.extend(1000, now_ms=0)
    right = rights.of(ORDERS)
    rights.extend(3000, now_ms=1500)
    assert right.until_ms == 1000
    assert rights.of(ORDERS).until_ms == 3000


def test_giving_the_lease_key_up_ends_the_right_of_that_set_only() -> None:
    rights = ServingRights()
    rights.extend(1000, now_ms=0)
    orders, billing = rights.of(ORDERS), rights.of(BILLING)
    rights.end(ORDERS)
    assert (orders.until_ms, billing.until_ms) == (0, 1000)
    rights.extend(2000, now_ms=500)
    assert (orders.until_ms, rights.of(ORDERS).until_ms) == (0, 1000 + 1000)


def test_a_lost_lease_ends_all_rights_and_grants_none() -> None:
    rights = ServingRights()
    rights.extend(1000, now_ms=0)
    orders = rights.of(ORDERS)
    rights.end_all()
    assert (orders.until_ms, rights.of(ORDERS).until_ms) == (0, 0)
