"""How long failovers took, as the next primary tells it."""

from lockstep.core.clock import Now
from lockstep.core.ids import Epoch
from services.broker.core.reign_watch import ReignWatch


def at(ms: int) -> Now:
    return Now(ms, 0)


def test_a_failover_lasts_from_the_last_word_of_the_previous_primary() -> None:
    watch = ReignWatch()
    watch.look(None, at(1000))
    watch.heard(at(2000))
    watch.look(None, at(4000))
    watch.look(Epoch(2), at(5500))
    watch.look(Epoch(2), at(5600))
    assert (watch.failover_seconds.count, watch.failover_seconds.sum) == (1, 3.5)


def test_without_a_word_it_lasts_from_the_first_look() -> None:
    watch = ReignWatch()
    watch.look(None, at(1000))
    watch.look(None, at(1500))
    watch.look(Epoch(7), at(3000))
    assert watch.failover_seconds.sum == 2


def test_the_own_next_epoch_follows_the_own_last_one() -> None:
    watch = ReignWatch()
    watch.heard(at(1000))
    watch.look(Epoch(2), at(2000))
    watch.look(Epoch(2), at(9000))
    watch.look(None, at(9100))
    watch.look(Epoch(3), at(9500))
    assert (watch.failover_seconds.count, watch.failover_seconds.sum) == (2, 1.5)


def test_the_first_epoch_of_a_set_is_no_failover() -> None:
    watch = ReignWatch()
    watch.look(None, at(1000))
    watch.look(Epoch(1), at(2000))
    assert watch.failover_seconds.count == 0
