"""Seeds of worlds whose sets are handed over, as before a broker is stopped on purpose: in half of them nothing else goes wrong.

Law: a family of its own, so that the seeds of other worlds stay what they are. In a calm world no client notices anything.
"""

from dataclasses import replace
from random import Random

from tests.simulation.coordinated import draw_coordinated
from tests.simulation.etcd import EtcdOptions
from tests.simulation.loop import MS, SECOND
from tests.simulation.network import NetworkOptions
from tests.simulation.options import Options, draw

HAND_OVER = "hand over"
IN_VAIN = "hand over to one that dies"
IN_VAIN_SHARE = 0.5
"""Of seeds in which other things go wrong, too."""


def is_calm(seed: int) -> bool:
    return seed % 2 == 0


GIVEN_BACK_SHARE = 0.6
"""Of seeds in which sets go back to their first brokers by themselves."""


def draw_handed_over(seed: int) -> Options:
    """The options of a seed in this family."""
    given_back = Random(f"given back {seed}")
    give_back_ms = given_back.choice((300, 600)) if given_back.random() < GIVEN_BACK_SHARE else 0
    return replace(_draw_handed_over(seed), give_back_ms=give_back_ms)


def _draw_handed_over(seed: int) -> Options:
    random = Random(f"handed over {seed}")
    if seed % 4 == 1:  # Branches of distributed transactions stay open, too.
        coordinated = draw_coordinated(seed)
        return replace(coordinated, faults=coordinated.faults + (HAND_OVER,) * 30)
    drawn = replace(
        draw(seed),
        safety_us=20 * SECOND,
        settle_us=10 * SECOND,
        transactions=100,
        fault_gap_us=random.choice((600, 1000, 2000)) * MS,
        think_us=random.choice((600, 1200, 2000)) * MS,
        has_pauses=True,
    )
    if not is_calm(seed):
        faults = drawn.faults + (HAND_OVER,) * random.choice((10, 30, 60))
        in_vain = Random(f"in vain {seed}").random() < IN_VAIN_SHARE
        return replace(drawn, faults=faults + (IN_VAIN,) * (len(faults) // 4 if in_vain else 0))
    return replace(
        drawn,
        faults=(HAND_OVER,),
        core_fault_gap_us=0,
        visit_gap_us=0,
        has_subscriber=False,
        network=NetworkOptions(delay_us=drawn.network.delay_us),
        etcd=EtcdOptions(watch_lag_us=min(drawn.etcd.watch_lag_us, 20 * MS)),
    )


NOTICED = (
    "begin: in doubt",
    "commit: in doubt",
    "publish: in doubt",
    "rollback: in doubt",
    "settle: in doubt",
    "session lost",
    "settle: STALE_DELIVERY",
    "transaction aborted",
)
"""Branches that a client comes to where its primary was lost, and not where it was handed over."""

REACHED_BY_HAND_OVERS: dict[str, str] = {
    "note: handed over in vain": "T8: what is handed on holds behind the very log that it was said of",
    "promoted with open transactions": "T8: open transactions survive a set that is handed over",
    "promoted with deliveries in hand": "T6: deliveries stay in hand where the set is handed over",
    "set given back": "C4: a set that lacks no member for a while is led by its first broker again",
    "transaction aborted": "R12: any other new epoch aborts open transactions",
}
"""As `branches.MUST_BE_REACHED`, for this family."""
