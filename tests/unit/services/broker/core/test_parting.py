"""Parting: the lease key is kept until the backups have heard of the hand-over, and not for ever (T8)."""

import pytest

from lockstep.core.clock import Now
from lockstep.core.ids import Epoch
from lockstep.core.inputs import AnyInput, BackupStreamClosed, LeaseLost, StoreLost, Tick
from services.broker.core.parting import Parting
from tests.unit.services.replicas import SET, entry, member, seen

EARLY, LATE = Now(1_000, 0), Now(1_500, 0)
B = member("b")


def parting(*streams: int) -> Parting:
    """Everybody was told at once."""
    waiting = Parting(Epoch(2), streams, EARLY)
    waiting.told(LATE.boottime_ms - EARLY.boottime_ms, EARLY)
    return waiting


def test_it_is_over_when_every_backup_has_ended_its_stream() -> None:
    waiting = parting(3, 4)
    for stream in (3, 5, 3):
        waiting.take(BackupStreamClosed(SET, stream))
        assert not waiting.is_over(EARLY)
    waiting.take(BackupStreamClosed(SET, 4))
    assert waiting.is_over(EARLY)


def test_nobody_is_waited_for_where_nobody_followed() -> None:
    assert parting().is_over(EARLY)


def test_a_backup_that_never_hears_it_is_not_waited_for_any_longer() -> None:
    waiting = parting(3)
    waiting.take(Tick(SET))
    assert not waiting.is_over(EARLY)
    assert waiting.is_over(LATE)


@pytest.mark.parametrize("given", [LeaseLost(SET), StoreLost(SET), seen(entry(3, B), 12)])
def test_it_is_cut_short_when_the_key_is_gone_or_another_epoch_began(given: AnyInput) -> None:
    waiting = parting(3)
    waiting.take(seen(entry(2, B), 11))
    assert not waiting.is_over(EARLY)
    waiting.take(given)
    assert waiting.is_over(EARLY)


def test_nobody_is_given_up_before_the_word_is_said_unless_it_is_cut_short() -> None:
    for given, is_over in ((BackupStreamClosed(SET, 3), False), (LeaseLost(SET), True)):
        waiting = Parting(Epoch(2), (3,), EARLY)
        assert not waiting.is_over(LATE)
        waiting.take(given)
        assert waiting.is_over(LATE) == is_over


def test_what_took_long_to_be_gathered_is_waited_for_as_long_once_more() -> None:
    waiting = Parting(Epoch(2), (3,), EARLY)
    waiting.told(200, LATE)
    assert not waiting.is_over(Now(2_199, 0)) and waiting.is_over(Now(2_200, 0))
