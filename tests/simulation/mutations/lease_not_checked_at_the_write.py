"""The lease is checked when an answer is decided, and not again when it is written (R6, history 10e)."""

from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts

MUTATION = Mutation(
    "R6, history 10e: what was decided within the lease is dropped when it would be written behind its end",
    lambda: Parts(is_lease_checked=False),
    ("history_10e_pause_before_the_write",),
)
