"""What is measured again, and which one counts."""

from collections.abc import Awaitable, Callable

import pytest

from bench import patience
from bench.load_programs import LoadFailed, ServerEnded
from bench.patience import NOISY_TRIES_MAX, Patience
from bench.results import Measurement
from tests.unit.bench.made import measurement


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it would have waited, at most, each time."""
    asked: list[float] = []

    async def at_once(_slowdown_max: float, seconds_max: float) -> None:
        asked.append(seconds_max)

    monkeypatch.setattr(patience, "wait_until_fast", at_once)
    return asked


Found = Measurement | LoadFailed | ServerEnded


def measuring(*found: Found) -> tuple[list[Found], Callable[[], Awaitable[Measurement]]]:
    """What is left to be found, or to fail, and who finds it."""
    left = list(found)

    async def once() -> Measurement:
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    return left, once


def made(rate: float, slowdown: float, other_cores: float = 0.0) -> Measurement:
    return measurement("tx", rate, slowdown=slowdown, other_cores=other_cores)


async def test_a_quiet_measurement_is_the_only_one() -> None:
    left, once = measuring(made(10.0, 1.2), made(20.0, 1.0))
    assert (await Patience(60.0).least_noisy(once)).messages_per_second == 10.0
    assert len(left) == 1


async def test_the_first_quiet_one_counts_however_fast_another_was() -> None:
    left, once = measuring(
        made(30.0, 1.5), made(40.0, 1.0, other_cores=0.5), made(10.0, 1.2), made(50.0, 1.0)
    )
    assert (await Patience(60.0).least_noisy(once)).messages_per_second == 10.0
    assert len(left) == 1


async def test_of_noisy_ones_the_least_disturbed_counts_and_not_the_fastest() -> None:
    _, once = measuring(made(30.0, 1.5), made(10.0, 1.3), made(40.0, 1.6), made(20.0, 1.4), made(50.0, 1.0))
    assert NOISY_TRIES_MAX == 4
    assert (await Patience(60.0).least_noisy(once)).messages_per_second == 10.0


async def test_all_that_does_not_count_is_kept() -> None:
    patient = Patience(60.0)
    for found in ((made(1.0, 1.5), made(2.0, 1.3), made(3.0, 1.6), made(4.0, 1.2)), (made(5.0, 1.0),)):
        _, once = measuring(*found)
        await patient.least_noisy(once)
    assert [one.messages_per_second for one in patient.set_aside] == [1.0, 3.0, 2.0]


async def test_others_and_slow_processors_disturb_alike() -> None:
    _, once = measuring(
        made(10.0, 1.3, other_cores=0.7), made(20.0, 1.9), made(30.0, 1.0, other_cores=0.6), made(40.0, 2.0)
    )
    assert (await Patience(60.0).least_noisy(once)).messages_per_second == 20.0


async def test_a_system_that_is_lost_when_it_is_measured_again_leaves_the_first() -> None:
    left, once = measuring(made(10.0, 1.5), ServerEnded("store B1 ended"), made(20.0, 1.0))
    assert (await Patience(60.0).least_noisy(once)).messages_per_second == 10.0
    assert len(left) == 1, "nobody asks it again"


async def test_without_patience_what_comes_is_taken() -> None:
    _, once = measuring(made(10.0, 1.5), made(20.0, 1.0))
    assert (await Patience(0.0).least_noisy(once)).messages_per_second == 10.0


async def test_what_fails_when_it_is_measured_again_leaves_the_first() -> None:
    gone = LoadFailed("gone")
    left, once = measuring(made(10.0, 1.5), gone, gone, gone)
    assert (await Patience(60.0).least_noisy(once)).messages_per_second == 10.0
    assert not left
    left.append(LoadFailed("at once"))
    with pytest.raises(LoadFailed):
        await Patience(60.0).least_noisy(once)


async def test_who_has_more_patience_waits_longer_at_one_time(waits: list[float]) -> None:
    for seconds in (900.0, 9_000.0):
        _, once = measuring(made(10.0, 1.5), made(20.0, 1.0))
        await Patience(seconds).least_noisy(once)
    assert waits == [60.0, 600.0]


async def test_nobody_waits_longer_than_the_patience_that_is_left(waits: list[float]) -> None:
    patient = Patience(900.0)
    patient.seconds_left = 30.0
    await patient.wait()
    assert waits == [30.0]
