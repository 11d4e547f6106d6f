"""Cores that raise in the simulator: a share of the seeds, the same calls each time, and what was noted of etcd is kept."""

import sys
from dataclasses import replace

import pytest

from lockstep.core.effects import AnyEffect
from lockstep.core.ids import SetName
from lockstep.core.inputs import AnyInput, PresencesSeen, Tick
from tests.simulation.core_faults import SHARE, CoreFault, draw_core_faults
from tests.simulation.handed_over import draw_handed_over, is_calm
from tests.simulation.loop import SECOND
from tests.simulation.mutations import all_mutations
from tests.simulation.options import Options, draw
from tests.simulation.run import run
from tests.simulation.staging.stage import A, Stage, calm

SET = SetName("s1")


def short(seed: int) -> Options:
    return replace(
        draw(seed),
        core_fault_gap_us=1 * SECOND,
        safety_us=10 * SECOND,
        settle_us=2 * SECOND,
        transactions=20,
        tiny_steps={},
    )


def test_a_share_of_the_seeds_has_cores_that_raise_and_a_seed_draws_the_same_again() -> None:
    drawn = {seed: draw_core_faults(seed) for seed in range(400)}
    share = sum(map(bool, drawn.values())) / len(drawn)
    assert SHARE - 0.05 < share < SHARE + 0.05
    assert all(draw(seed).core_fault_gap_us == drawn[seed] for seed in range(40))
    calm_ones = [draw_handed_over(seed) for seed in range(40) if is_calm(seed)]
    assert not any(options.core_fault_gap_us for options in calm_ones)
    mutation = next(iter(all_mutations().values()))
    assert not any(mutation.options(seed).core_fault_gap_us for seed in range(40))


def test_a_run_whose_cores_raise_keeps_all_promises_and_repeats() -> None:
    first, second = run(short(4028)), run(short(4028))
    assert not first.broken and first.digest == second.digest
    counts = {name: count for name, count in first.faults.items() if name.startswith("core fault")}
    assert sum(counts.values()) >= 3
    assert sum(count for name, count in first.branches.items() if name.startswith("core fault")) == sum(
        counts.values()
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_core_raises_at_an_input_and_keeps_what_that_says_of_etcd(seed: int) -> None:
    stage = Stage(options=calm(seed=seed))
    stage.start()
    process, core_faults = stage.world.brokers[A], stage.world.core_faults
    replica = process.replicas[SET]
    ended: list[list[AnyEffect]] = []
    given: AnyInput

    def handle() -> list[AnyEffect]:
        ended.append(replica.handle(given, process.clocks.now()))
        return ended[-1]

    before = sys.gettrace()
    for given in (PresencesSeen(SET, ()), Tick(SET)):
        ended.clear()
        core_faults.counts.clear()
        with pytest.raises(CoreFault):
            core_faults.raise_over(replica, given, handle)
        way = "behind" if ended else "amid"
        assert list(core_faults.counts) == [f"core fault {way} {type(given).__name__}"]
    assert sys.gettrace() is before
    assert not replica._facts.presences
