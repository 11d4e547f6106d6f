"""A primary believes in its lease for ever once it was granted, and its driver does not look either (R6, history 10c)."""

from lockstep.core.clock import Now
from services.broker.core.lease_keeper import LeaseEffect, LeaseInput, LeaseKeeper, ServeUntil, StopServing
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class EndlessLease(LeaseKeeper):
    def handle(self, given: LeaseInput, now: Now) -> list[LeaseEffect]:
        return [
            ServeUntil(effect.lease_id, effect.serve_until_ms + 3_600_000)
            if isinstance(effect, ServeUntil)
            else effect
            for effect in super().handle(given, now)
            if not isinstance(effect, StopServing)
        ]


def _aim(options: Options) -> None:
    options.faults = ("cut off from etcd", "pause broker", "isolate machine")
    options.fault_gap_us = 2 * SECOND


MUTATION = Mutation(
    "R6: answering ends with the lease",
    lambda: Parts(make_lease_keeper=EndlessLease, is_lease_checked=False),
    ("history_10c_accepted_loss", "history_10a_refusing_port"),
    seeds=range(2, 12),
    aim=_aim,
)
