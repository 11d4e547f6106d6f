"""The lease's rules switched off: a primary that goes on answering, a promotion that does not look at the lease key (R5, R6)."""

from lockstep.core.clock import Now
from services.broker.core.lease_keeper import (
    LeaseEffect,
    LeaseInput,
    LeaseKeeper,
    ServeUntil,
    StopServing,
)
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class EndlessLease(LeaseKeeper):
    """Believes in its lease for ever once it was granted."""

    def handle(self, given: LeaseInput, now: Now) -> list[LeaseEffect]:
        return [
            ServeUntil(effect.lease_id, effect.serve_until_ms + 3_600_000)
            if isinstance(effect, ServeUntil)
            else effect
            for effect in super().handle(given, now)
            if not isinstance(effect, StopServing)
        ]


def _deposed(options: Options) -> None:
    options.faults = ("cut off from etcd", "pause broker", "isolate machine")
    options.fault_gap_us = 2_000_000


def _late_promotions(options: Options) -> None:
    options.faults = ("cut off from etcd", "etcd answers lost", "pause broker")
    options.fault_gap_us = 1_000_000
    options.etcd.watch_lag_us = 500_000
    options.lease_seconds = 2


MUTATIONS = (
    Mutation(
        "lease never ends",
        "R6: answering ends with the lease",
        lambda: Parts(make_lease_keeper=EndlessLease, is_lease_checked=False),
        _deposed,
    ),
    Mutation(
        "lease key not compared",
        "R5: a promotion needs the old primary's lease key to be absent",
        lambda: Parts(is_lease_key_compared=False),
        _late_promotions,
    ),
)
