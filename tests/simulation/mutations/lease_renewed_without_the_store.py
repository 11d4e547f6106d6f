"""The lease is renewed whether or not the own store answers (R6, history 27)."""

from lockstep.core.clock import Now
from services.broker.core.lease_keeper import LeaseEffect, LeaseInput, LeaseKeeper, LeaseTick, StoreAnswered
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class Careless(LeaseKeeper):
    def handle(self, given: LeaseInput, now: Now) -> list[LeaseEffect]:
        if isinstance(given, LeaseTick):
            super().handle(StoreAnswered(), now)
        return super().handle(given, now)


MUTATION = Mutation(
    "R6: a primary whose store stays silent stops serving and gives up its key",
    lambda: Parts(make_lease_keeper=Careless),
    ("history_27_live_lease_dead_primary/store hangs",),
)
