"""The routes of the demo: in every resource set one queue from which messages are moved to two others.

Law: a transaction stays within its route, as a transaction of one resource set does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.cli.demo.data import id_of
from lockstep.cli.demo.movers import Tally

SETS = ("east", "west", "north")
"""As many as brokers: each of these is the first primary of one."""


@dataclass(slots=True)
class Route:
    """One set's part of the demo."""

    set_name: str
    brokers: list[str]
    """The first is the first primary."""
    bodies: list[bytes]
    tally: Tally

    @property
    def source(self) -> str:
        return f"{self.set_name}-readings"

    @property
    def targets(self) -> list[str]:
        return [f"{self.set_name}-ledger", f"{self.set_name}-analytics"]

    @property
    def ids(self) -> list[int]:
        return [id_of(body) for body in self.bodies]


def plan_routes(brokers: Sequence[str], bodies: Sequence[bytes]) -> list[Route]:
    """Every set gets its share of the messages, and another broker as its first primary."""
    routes = []
    for place, set_name in enumerate(SETS):
        first = place % len(brokers)
        share = list(bodies[place :: len(SETS)])
        routes.append(Route(set_name, [*brokers[first:], *brokers[:first]], share, Tally(len(share))))
    return routes
