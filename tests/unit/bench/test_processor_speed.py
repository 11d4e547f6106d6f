"""How fast the processors are, of which others may use a part."""

import asyncio
import os

import pytest

from bench import processor_speed
from bench.processor_speed import SpeedProbe, wait_until_fast


class Machine:
    """Processors whose piece of work takes as long as a test says, in milliseconds; the last time stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *took_ms: float) -> None:
        self.took_ms = list(took_ms)
        self.looks: list[int] = []
        monkeypatch.setattr(processor_speed, "_work_ms", self._work)
        monkeypatch.setattr(processor_speed, "_PAUSE_SECONDS", 0.0)
        monkeypatch.setattr(processor_speed, "_LOOK_SECONDS", 0.01)
        monkeypatch.setattr(SpeedProbe, "fastest_ms", 1.0)

    def _work(self, processor: int) -> float:
        self.looks.append(processor)
        return self.took_ms.pop(0) if len(self.took_ms) > 1 else self.took_ms[0]


async def test_all_processors_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 1.5)
    async with SpeedProbe() as probe:
        await asyncio.sleep(0.05)
    assert set(machine.looks) == os.sched_getaffinity(0)
    assert probe.slowdown == 1.5


async def test_the_slower_processor_counts_and_the_best_that_was_ever_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    Machine(monkeypatch, *(0.5, 2.0) * 3, 1.0)
    probe = SpeedProbe()
    async with probe:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert SpeedProbe.fastest_ms == 0.5
    assert probe.slowdown > 1.0


def test_nothing_was_looked_at() -> None:
    assert SpeedProbe().slowdown == 0.0


async def test_whoever_waits_goes_on_when_the_processors_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, *[2.0] * 5000, 1.0)
    async with asyncio.timeout(30):
        await wait_until_fast(1.25, 60.0)
    assert machine.took_ms == [1.0]


async def test_whoever_waits_goes_on_after_a_while_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, 2.0)
    async with asyncio.timeout(30):
        await wait_until_fast(1.25, 0.03)


def test_a_real_piece_of_work_takes_processor_time_and_leaves_the_processors_as_they_were() -> None:
    allowed = os.sched_getaffinity(0)
    assert processor_speed._work_ms(min(allowed)) > 0.0
    assert os.sched_getaffinity(0) == allowed
