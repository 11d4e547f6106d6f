"""A set's lease key: the right to serve is there only under the very lease that the process holds (R6)."""

from lockstep.core.clock import Now
from lockstep.core.effects import MapRead
from lockstep.core.ids import Incarnation
from lockstep.core.inputs import LeaseExtended, Verdict
from services.broker.core.set_lease import SetLease
from tests.unit.services.replicas import SET

NOW = Now(500, 0)
HOLDER = Incarnation("a.0")
ENTRY = MapRead(10, b"map")


def lease_under(lease_id: int) -> SetLease:
    """The process holds this lease; what it asks of etcd is numbered from 1 on."""
    found = SetLease(SET, 100, iter(range(1, 9)).__next__)
    found.extended(LeaseExtended(SET, lease_id, 3_000))
    return found


def is_held(lease: SetLease) -> bool:
    """As it is now."""
    return lease.is_key_held


def test_a_promotion_that_landed_under_an_earlier_lease_gives_no_right() -> None:
    lease = lease_under(1)
    lease.lost()
    lease.extended(LeaseExtended(SET, 2, 4_000))
    lease.put(1)
    assert not is_held(lease)
    restore = lease.restore(ENTRY, HOLDER, NOW, is_mark_compared=True)
    assert restore is not None
    lease.answered(restore.request, Verdict.DONE, NOW)
    assert is_held(lease)


def test_a_key_goes_with_the_lease_under_which_it_was_put() -> None:
    lease = lease_under(1)
    lease.put(1)
    assert is_held(lease)
    lease.lost()
    assert not is_held(lease)
    lease.extended(LeaseExtended(SET, 2, 4_000))
    assert not is_held(lease)


def test_a_restoration_that_is_answered_under_the_next_lease_gives_no_right() -> None:
    lease = lease_under(1)
    restore = lease.restore(ENTRY, HOLDER, NOW, is_mark_compared=True)
    assert restore is not None
    lease.lost()
    lease.extended(LeaseExtended(SET, 2, 4_000))
    lease.answered(restore.request, Verdict.DONE, NOW)
    assert not is_held(lease)


def test_a_restoration_that_failed_is_asked_for_again_after_a_pause() -> None:
    lease = lease_under(1)
    restore = lease.restore(ENTRY, HOLDER, NOW, is_mark_compared=True)
    assert restore is not None and lease.restore(ENTRY, HOLDER, NOW, is_mark_compared=True) is None
    lease.answered(restore.request, Verdict.FAILED, NOW)
    assert lease.restore(ENTRY, HOLDER, NOW, is_mark_compared=True) is None
    assert lease.restore(ENTRY, HOLDER, Now(NOW.boottime_ms + 100, 0), is_mark_compared=True) is not None


def test_a_lease_is_held_from_the_first_look_at_it_until_there_is_another() -> None:
    lease = lease_under(1)
    assert [lease.held_ms(Now(at_ms, 0)) for at_ms in (500, 900)] == [0, 400]
    lease.extended(LeaseExtended(SET, 1, 4_000))
    assert lease.held_ms(Now(1_000, 0)) == 500
    lease.lost()
    assert lease.held_ms(Now(1_100, 0)) == 0
    lease.extended(LeaseExtended(SET, 2, 5_000))
    assert [lease.held_ms(Now(at_ms, 0)) for at_ms in (1_200, 1_300)] == [0, 100]
