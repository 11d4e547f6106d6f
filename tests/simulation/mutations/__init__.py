"""Mutations: worlds in which one safety rule is switched off, one file for each. `tests/simulation/test_mutations.py` proves that
the simulator finds every one of them.

Law: a mutation exchanges parts of a world (`Parts`) for such as break one rule, and changes nothing else. Where the rule sits
inside a core, the exchanged part gives the object in question another class when it comes to be; no module is touched.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.options import RARE_KINDS, Options, draw
from tests.simulation.parts import Parts


@dataclass(frozen=True, slots=True)
class Mutation:
    """One rule switched off."""

    rule: str
    """What is weakened, and where DESIGN or a history has it."""
    make: Callable[[], Parts]
    scenarios: tuple[str, ...] = ()
    """Scenarios that find it, every one of them; a case may be named: `scenario/case`."""
    seeds: range = range(0)
    """One of these seeds finds it, at the time of writing the first; empty: it is left to the scenarios."""
    aim: Callable[[Options], None] = lambda options: None
    """Makes the options of a seed meet what the rule guards more often (kinds of fault, sizes); never the cores."""

    draw: Callable[[int], Options] = draw
    """The family of the seeds."""

    def options(self, seed: int) -> Options:
        """A seed's options for this mutation; all bodies fit into memory, nobody chooses, is owed events or sends with
        priorities, no open stream hears of candidates, no set goes back to its first broker by itself, no steps are tiny, no core
        raises, and nothing rare happens, as when the recorded seeds were found."""
        options = self.draw(seed)
        options.resident_bytes_max = 0
        options.give_back_ms = options.core_fault_gap_us = 0
        options.tiny_steps = {}
        options.has_choosers = options.has_subscriber = options.tells_candidates = False
        options.has_priorities = options.is_minimum_all = False
        options.faults = tuple(kind for kind in options.faults if kind not in RARE_KINDS)
        self.aim(options)
        return options


def all_mutations() -> dict[str, Mutation]:
    """Every mutation, by name, which is its file's."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}").MUTATION for name in names}
