"""Scenarios as they are found in `tests/simulation/scenarios`, and played: each case in a world of its own.

Law: a case is the same at every run; what it finds broken begins with the promise, or with what the script expected.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType

from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.staging.stage import Stage, calm, perform
from tests.simulation.tiny_steps import step_sizes


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file."""

    name: str
    module: ModuleType

    @property
    def cases(self) -> tuple[object, ...]:
        """What the script is played with, one after the other; (None,): once, without an argument."""
        return tuple(getattr(self.module, "CASES", (None,)))

    def options(self, case: object = None) -> Options:
        """Of the world of a case: `options_of(case)` or `options()` of the file, or a calm world's."""
        of_case: Callable[[object], Options] | None = getattr(self.module, "options_of", None)
        if of_case is not None:
            return of_case(case)
        make: Callable[[], Options] = getattr(self.module, "options", calm)
        return make()

    def run(
        self,
        case: object = None,
        parts: Parts | None = None,
        trace: bool = False,
        seed: int | None = None,
    ) -> list[str]:
        """Play one case in a new world; the sentences of what is broken. `seed`: of that world, None: the case's own."""
        options = self.options(case)
        options.seed = options.seed if seed is None else seed
        play: Callable[..., None] = self.module.play
        with step_sizes(options.tiny_steps):
            stage = Stage(parts, options)
            if trace:
                stage.world.traced = frozenset(stage.world.set_names)
            return perform(stage, play if case is None else partial(_with_case, play, case))

    def violations(self, make_parts: Callable[[], Parts] = Parts, seed: int | None = None) -> Iterator[str]:
        """What is broken in any case, the first broken case only; `seed` as of `run`."""
        for case in self.cases:
            broken = self.run(case, make_parts(), seed=seed)
            if broken:
                label = self.name if case is None else f"{self.name} [{case}]"
                yield from (f"{label}: {sentence}" for sentence in broken)
                return


def _with_case(play: Callable[..., None], case: object, stage: Stage) -> None:
    play(stage, case)


def all_scenarios() -> dict[str, Scenario]:
    """Every scenario, by name, which is its file's."""
    package = importlib.import_module("tests.simulation.scenarios")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return {name: Scenario(name, importlib.import_module(f"{package.__name__}.{name}")) for name in names}


def run_named(name: str, seeds: Iterable[int] = ()) -> int:
    """Run one scenario, or with `all` every one; 0 when all is well. `NAME/CASE` traces one case of it.

    `seeds`: play each case once with each of them; empty: with its own.
    """
    wanted_seeds = tuple(seeds) or (None,)
    name, _, wanted = name.partition("/")
    scenarios = all_scenarios()
    if name != "all" and name not in scenarios:
        raise SystemExit(f"no scenario {name!r}; there are: {', '.join(scenarios)}")
    failed = 0
    for scenario in scenarios.values() if name == "all" else (scenarios[name],):
        for case in scenario.cases:
            if wanted and str(case) != wanted:
                continue
            for seed in wanted_seeds:
                is_alone = name != "all" and case is None and len(wanted_seeds) == 1
                broken = scenario.run(case, trace=bool(wanted) or is_alone, seed=seed)
                label = scenario.name if case is None else f"{scenario.name} [{case}]"
                label = label if seed is None else f"{label} with seed {seed}"
                print(f"{label}: {'; '.join(broken[:8]) if broken else 'holds'}", flush=True)
                failed += bool(broken)
    return 1 if failed else 0
