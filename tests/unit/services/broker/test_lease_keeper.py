"""The lease keeper: never longer than etcd believes, and not for a process that cannot commit (R6, histories 10 and 27)."""

import pytest

from services.broker.core.lease_keeper import (
    GrantLease,
    LeaseCallFailed,
    LeaseEffect,
    LeaseGone,
    LeaseGranted,
    LeaseInput,
    LeaseKeeper,
    LeaseRenewed,
    LeaseSettings,
    LeaseTick,
    RenewLease,
    RevokeLease,
    ServeUntil,
    StopServing,
    StoreAnswered,
)
from tests.unit.services.replicas import at

ZERO_MS = at(0).boottime_ms


class Bench:
    """A keeper with 3 s of lease and 80 ms of margin, renewed every 500 ms."""

    def __init__(self) -> None:
        self.keeper = LeaseKeeper(LeaseSettings())
        self.ms = 0

    def take(self, *given: LeaseInput) -> list[LeaseEffect]:
        return [effect for each in given for effect in self.keeper.handle(each, at(self.ms))]

    def tick(self, ms: int = 0, is_store_well: bool = True) -> list[LeaseEffect]:
        self.ms += ms
        return self.take(*([StoreAnswered()] if is_store_well else []), LeaseTick())


def holding() -> Bench:
    """Granted at 0, under number 7."""
    bench = Bench()
    assert bench.tick() == [GrantLease(3)]
    bench.take(LeaseGranted(7, 3000, ZERO_MS))
    return bench


def test_nothing_is_granted_before_the_store_answers() -> None:
    bench = Bench()
    assert bench.tick(is_store_well=False) == []
    assert bench.tick(5_000) == [GrantLease(3)]


def test_the_right_to_serve_is_measured_from_the_sending_less_the_margin() -> None:
    bench = Bench()
    bench.tick()
    bench.ms = 900
    assert bench.take(LeaseGranted(7, 3000, ZERO_MS)) == [ServeUntil(7, ZERO_MS + 3000 - 30 - 50)]


def test_it_is_renewed_in_time_and_one_call_is_under_way_at_most() -> None:
    bench = holding()
    assert bench.tick(400) == []
    assert bench.tick(100) == [RenewLease(7)]
    assert bench.tick(500) == []
    assert bench.take(LeaseRenewed(7, 3000, ZERO_MS + 500)) == [ServeUntil(7, ZERO_MS + 500 + 2920)]
    assert bench.tick(100) == [RenewLease(7)]


@pytest.mark.parametrize("answer", [LeaseCallFailed(), None])
def test_a_call_that_fails_or_is_not_answered_is_made_again(answer: LeaseInput | None) -> None:
    bench = holding()
    bench.tick(500)
    if answer is not None:
        bench.take(answer)
    assert bench.tick(1_000) == [RenewLease(7)]


def test_a_renewal_needs_a_store_that_answered_since_the_last_one() -> None:
    bench = holding()
    bench.tick(500)
    bench.take(LeaseRenewed(7, 3000, ZERO_MS + 500))
    assert bench.tick(600, is_store_well=False) == []
    assert bench.tick(100) == [RenewLease(7)]


def test_a_silent_store_ends_serving_and_then_the_lease() -> None:
    """History 27: nothing commits, and somebody else may lead."""
    bench = holding()
    assert bench.tick(2_900, is_store_well=False) == []
    assert bench.tick(200, is_store_well=False) == [StopServing(), RevokeLease(7)]
    assert bench.tick(100, is_store_well=False) == []
    assert bench.tick(100) == [GrantLease(3)]


def test_a_lease_that_is_over_by_the_own_clock_is_given_up_and_another_one_is_asked_for() -> None:
    """etcd may have heard the renewals, and keep the lease alive for a process that may not serve by it."""
    bench = holding()
    bench.tick(500)
    bench.tick(1_000)
    assert bench.tick(1_000) == [RenewLease(7)]
    assert bench.tick(419) == []
    bench.take(LeaseCallFailed())
    assert bench.tick(1) == [StopServing(), RevokeLease(7)]
    assert bench.take(LeaseRenewed(7, 3000, ZERO_MS + 2500)) == []
    assert bench.tick(100) == [GrantLease(3)]


def test_a_renewal_that_left_when_the_lease_was_over_by_the_own_clock_does_not_revive_it() -> None:
    """The machine slept before it left, and no tick has come yet. An etcd that was set back meanwhile has the lease again."""
    bench = holding()
    assert bench.tick(500) == [RenewLease(7)]
    bench.ms = 30_000
    assert bench.take(LeaseRenewed(7, 3000, ZERO_MS + 29_990)) == [StopServing(), RevokeLease(7)]
    assert bench.keeper.lease_id == 0


def test_a_renewal_counts_while_the_lease_is_not_over_by_the_own_clock() -> None:
    bench = holding()
    assert bench.tick(2_900) == [RenewLease(7)]
    bench.ms = 2_919
    assert bench.keeper.held(at(bench.ms)) == 7
    assert bench.take(LeaseRenewed(7, 3000, ZERO_MS + 2_910)) == [ServeUntil(7, ZERO_MS + 2_910 + 2920)]
    bench.ms = 5_830
    assert bench.keeper.held(at(bench.ms)) == 0
    assert bench.take(LeaseRenewed(7, 3000, ZERO_MS + 5_829)) == [StopServing(), RevokeLease(7)]


def test_a_grant_that_was_answered_too_late_is_not_served_by() -> None:
    bench = Bench()
    bench.tick()
    bench.ms = 5_000
    assert bench.take(LeaseGranted(7, 3000, ZERO_MS)) == [RevokeLease(7)]
    assert bench.keeper.lease_id == 0


def test_a_lease_that_etcd_does_not_know_is_over_at_once() -> None:
    bench = holding()
    assert bench.take(LeaseGone(7)) == [StopServing()]
    assert bench.keeper.lease_id == 0
    assert bench.tick(100) == [GrantLease(3)]


def test_answers_about_an_earlier_lease_mean_nothing() -> None:
    bench = holding()
    bench.take(LeaseGone(7))
    bench.tick(100)
    bench.take(LeaseGranted(8, 3000, ZERO_MS + 100))
    assert bench.take(LeaseGone(7), LeaseRenewed(7, 3000, ZERO_MS + 100)) == []
    assert bench.keeper.lease_id == 8


def test_the_right_to_serve_never_goes_back() -> None:
    bench = holding()
    bench.take(LeaseRenewed(7, 3000, ZERO_MS + 500))
    assert bench.take(LeaseRenewed(7, 3000, ZERO_MS + 200)) == [ServeUntil(7, ZERO_MS + 500 + 2920)]


def test_a_second_grant_that_comes_late_is_given_back() -> None:
    """The first attempt was only slow: keys hang on the lease that is held, and stay there."""
    bench = Bench()
    bench.tick()
    assert bench.tick(1_000) == [GrantLease(3)]
    bench.take(LeaseGranted(7, 3000, ZERO_MS))
    assert bench.take(LeaseGranted(8, 3000, ZERO_MS + 1000)) == [RevokeLease(8)]
    assert bench.keeper.lease_id == 7


def test_a_new_lease_does_not_inherit_the_end_of_the_old_one() -> None:
    bench = holding()
    bench.tick(500)
    bench.take(LeaseRenewed(7, 3000, ZERO_MS + 500), LeaseGone(7))
    bench.tick(100)
    assert bench.take(LeaseGranted(8, 1000, ZERO_MS + 600)) == [ServeUntil(8, ZERO_MS + 600 + 1000 - 60)]
