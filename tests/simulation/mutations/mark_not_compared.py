"""A promotion, and asking for a lease key again, do not compare that etcd does not say that it was set back (R1)."""

from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts

MUTATION = Mutation(
    "R1: what may be done only in an etcd that was not set back compares that in the transaction that does it",
    lambda: Parts(is_mark_compared=False),
    (
        "marked_before_it_is_done/a key asked for again",
        "marked_before_it_is_done/a promotion",
    ),
)
