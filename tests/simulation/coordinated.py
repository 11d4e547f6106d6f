"""Seeds of worlds with coordinators: clients that work over several resource sets at once, and faults that aim at them.

Law: a family of its own, so that the seeds of worlds without coordinators stay what they are, and as fast.
"""

from dataclasses import replace
from random import Random

from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.core.steps import STEPS
from tests.simulation.loop import MS, SECOND
from tests.simulation.options import CoordinationOptions, Options, draw

COORDINATOR_FAULT_KINDS = (
    "kill coordinator",
    "kill coordinator between effects",
    "kill all coordinators",
    "pause coordinator",
    "cut coordinator off from etcd",
    "cut coordinator off from brokers",
)
AT_A_STEP = "kill coordinator at a step"
"""In every world, and often: while nobody decides, prepared branches meet whatever else goes wrong."""
BROKER_FAULT_KINDS = (
    "kill broker",
    "kill broker between effects",
    "full restart",
    "rolling kill",
    "pause broker",
    "pause broker between effects",
    "partition",
    "cut off from etcd",
    "power loss",
)
"""Those after which somebody else leads, or the same one again without its memory: drawn more often than others."""

LIMITS = CoordinatorLimits(
    prepare_ms=5_000,
    answer_ms=1_000,
    doubt_ms=6_000,
    open_ms=6_000,
    open_ms_max=8_000,
    clock_ms=4_000,
    outcome_ms=20_000,
    closed_ms=4_000,
    elsewhere_ms=12_000,
    recovery_every_ms=500,
    hold_ms_max=250,
    retry_ms_max=500,
)
"""Shorter than the real ones, so that every one of them ends within a run; a prepare outlasts a failover."""


def draw_coordinated(seed: int) -> Options:
    """The options of a seed in this family."""
    random = Random(f"coordinated {seed}")
    drawn = draw(seed)
    kinds = tuple(kind for kind in COORDINATOR_FAULT_KINDS if random.random() < 0.7)
    brokers = tuple(kind for kind in BROKER_FAULT_KINDS if random.random() < 0.5)
    return replace(
        drawn,
        safety_us=30 * SECOND,
        settle_us=8 * SECOND,
        transactions=0,
        clients=2,
        visit_gap_us=0,
        has_choosers=False,
        fault_gap_us=random.choice((800, 1500, 3000)) * MS,
        faults=drawn.faults + (AT_A_STEP,) * 8 + 3 * kinds + 2 * (brokers or BROKER_FAULT_KINDS),
        coordination=CoordinationOptions(
            coordinators=random.choice((2, 2, 3)),
            clients=random.choice((2, 3)),
            think_us=random.choice((300, 700, 1200)) * MS,
            branch_timeout_ms=random.choice((4_000, 8_000)),
            decision_ask_ms=random.choice((800, 2_000, 5_000)),
            limits=replace(LIMITS, piece_cost=1, recovered_max=2) if drawn.tiny_steps else LIMITS,
        ),
    )


REACHED_BY_COORDINATORS: dict[str, str] = {
    "commit hold: quiet": "DESIGN 7: commits are held for plans",
    "commit hold: refused": "DESIGN 7: commits are held for a small part of the time",
    "commit branch: NOT_FOUND": "T4: a completion that was lost is repeated (history 20)",
    "commit branch: in doubt": "T4: a completion that was lost is repeated",
    "coordinator crash: at a step": "T3: every step of the protocol",
    "coordinator crash: between effects": "DESIGN 9: crashes at any effect",
    "coordinator crash: killed": "DESIGN 9: crashes",
    "coordinator's presence lost": "T4: a coordinator that stood still for longer than its lease",
    "coordinator: taken_up": "T4: another coordinator finishes what one began",
    "coordinator: timed_out": "T2: time-outs before prepare",
    "decision log in doubt": "T3: a change of the log whose answer was lost",
    "distributed: asked again": "P6: a client that lost its coordinator",
    "distributed: begun as a TX": "section 4: a TX becomes a branch",
    "distributed: committed": "T3: COMMIT",
    "distributed: not known": "T3: nothing in the log is no outcome (history 26)",
    "distributed: prepared by its workers": "DESIGN 7: who votes first does not know the other sets",
    "distributed: rolled back": "T3: ABORT",
    "note: decision found": "T4: a prepared branch finds its decision by itself (history 6)",
    "prepare branch: in doubt": "T3: a vote that was lost",
    "promoted with prepared branches": "P5: prepared branches survive a failover, with their locks",
    "start branch: UNKNOWN_SESSION": "DESIGN 6: a session that the set no longer knows",
    **{f"step: {step}": "T3: every step of the protocol" for step in STEPS},
}
"""As `branches.MUST_BE_REACHED`, for this family."""
