"""Mutations: worlds in which one safety rule is switched off. The simulator must find each (tests/simulation/test_mutations.py).

Law: a mutation exchanges one part of a world (`Parts`) for one that breaks one rule, and changes nothing else. Where the rule
sits inside a core, the replaced part gives the object in question another class when it comes to be; no module is touched.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.options import Options, draw
from tests.simulation.parts import Parts


@dataclass(frozen=True, slots=True)
class Mutation:
    """One rule switched off."""

    name: str
    rule: str
    """What is weakened, and where DESIGN has it."""
    make: Callable[[], Parts]
    aim: Callable[[Options], None] = lambda options: None
    """Makes the drawn options meet what the rule guards more often (kinds of fault, sizes); never the cores."""


def options_of(mutation: Mutation, seed: int) -> Options:
    """A seed's options for this mutation."""
    options = draw(seed)
    mutation.aim(options)
    return options


def all_mutations() -> list[Mutation]:
    """Every mutation, by name."""
    from tests.simulation.mutations import clients, disks, leases, promotions, replication, states

    found = [
        mutation
        for module in (clients, disks, leases, promotions, replication, states)
        for mutation in module.MUTATIONS
    ]
    return sorted(found, key=lambda mutation: mutation.name)
