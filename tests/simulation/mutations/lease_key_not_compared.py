"""A promotion does not compare that the old primary's lease key is absent (R5, history 10b)."""

from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts

MUTATION = Mutation(
    "R5: a promotion needs the old primary's lease key to be absent, in the transaction that promotes",
    lambda: Parts(is_lease_key_compared=False),
    ("history_10b_lease_granted_again",),
)
