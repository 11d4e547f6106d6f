"""What is written to etcd in the place of what was read there compares its revision, and not its value (R1)."""

from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts

MUTATION = Mutation(
    "R1: an etcd that was set back gives its revisions once more, so that what was read is compared by value, too",
    lambda: Parts(are_values_compared=False),
    ("revision_given_once_more", "stamps_given_once_more"),
)
