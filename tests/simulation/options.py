"""Swarm options: everything that a seed draws before its world begins. Most seeds leave some kinds of fault out: others go far.

Law: options are a function of the seed alone; a scenario writes its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from services.coordinator.core.settings import CoordinatorLimits
from tests.simulation.core_faults import draw_core_faults
from tests.simulation.etcd import EtcdOptions
from tests.simulation.loop import MS, SECOND
from tests.simulation.network import NetworkOptions
from tests.simulation.tiny_steps import draw_tiny_steps

FAULT_KINDS = (
    "kill broker",
    "kill broker between effects",
    "kill store",
    "power loss",
    "power loss of all",
    "full restart",
    "rolling kill",
    "pause broker",
    "pause broker between effects",
    "pause store",
    "pause machine",
    "partition",
    "isolate machine",
    "one-way partition",
    "cut off from etcd",
    "cut clients off",
    "refuse connections",
    "reset streams",
    "slow link",
    "etcd restart",
    "etcd answers lost",
    "wall clock jump",
    "disk failure",
    "disk full",
    "disk reserve low",
    "disk slow",
    "disk lost",
    "restart with a lost disk",
)
"""Kinds that a seed may draw; `tests/simulation/faults.py` does them."""
ONE_DISK_LEFT = "restart with one disk left"
ETCD_SET_BACK = "etcd set back"
RARE_KINDS = (ONE_DISK_LEFT, ETCD_SET_BACK)
"""Kinds that few seeds have."""


@dataclass(frozen=True, slots=True)
class CoordinationOptions:
    """Of a world with coordinators."""

    coordinators: int
    clients: int
    """Those that work over several resource sets at once."""
    think_us: int
    """Mean pause between two distributed transactions of a client."""
    branch_timeout_ms: int
    decision_ask_ms: int
    """Before a prepared branch looks for its decision by itself, and between two looks."""
    limits: CoordinatorLimits


@dataclass(slots=True)
class Options:
    """One run."""

    seed: int = 0
    safety_us: int = 45 * SECOND
    """Length of the phase with faults."""
    settle_us: int = 15 * SECOND
    """At least so long after healing the clients go on with their work."""
    transactions: int = 200
    """At least so many are begun: if there were fewer after the faults, the work goes on until there are."""
    liveness_us: int = 60 * SECOND
    """After that everything must come to rest in this time (P7)."""
    sets: int = 3
    brokers: int = 3
    min_in_sync: int = 2
    is_minimum_all: bool = False
    """Instead, every broker has to be in sync."""
    clients: int = 5
    body_bytes_max: int = 200
    think_us: int = 2500 * MS
    """Mean pause of a client between two pieces of work."""
    has_pauses: bool = False
    """Transactions are longer, and pause between their operations, too, as they do behind all of them."""
    visit_gap_us: int = 0
    """Mean time between two clients that come and leave in the middle of something; 0: none."""
    fault_gap_us: int = 4 * SECOND
    """Mean time between faults."""
    core_fault_gap_us: int = 0
    """Mean time between two faults of cores; 0: none."""
    faults: tuple[str, ...] = FAULT_KINDS
    lease_seconds: int = 3
    supervisor_revokes: bool = False
    rate_error_max: float = 1e-3
    torn_share: float = 0.9
    """Share of power losses that tear or drop what was not synced."""
    disk_sync_us: int = 300
    small_limits: bool = True
    """Batches, retained frames and segments so small that every limit is reached."""
    resident_bytes_max: int = 0
    """Content that a replica keeps in memory; 0: as much as the default, which is never reached."""
    command_bytes_max: int = 0
    """What one command brings into the log, and about what frames have; 0: as much as the default, which is never reached."""
    command_messages_max: int = 0
    """Messages that one command names, and that a part of a long purge has; 0: as many as the default, never reached."""
    outcome_retention_ms: int = 0
    """How long outcomes are kept; 0: as long as the default, which is longer than any run."""
    outcomes_max: int = 0
    """Outcomes of one set; 0: as many as the default, never reached."""
    has_choosers: bool = False
    """Messages have colours, and some clients work with selectors, browsers, drains and exclusion."""
    has_priorities: bool = False
    """Messages have priorities."""
    has_subscriber: bool = False
    """A group of readers is owed committed events; segments are smaller than small."""
    tells_candidates: bool = True
    """Open streams hear when another leads, or the order of who may lead is another."""
    give_back_ms: int = 0
    """A set that lacks no member for so long is led by its first broker again; 0: it stays where it is."""
    piece_cost: int = 0
    """Of what is done in one go of works that are long; 0: the seed draws it."""
    tiny_steps: Mapping[str, int] = field(default_factory=dict)
    """Constants by their full names, and what they are in this run (`tests/simulation/tiny_steps.py`). Where there are any, the
    settings that cut works are tiny, too. Empty: the real ones.
    """
    coordination: CoordinationOptions | None = None
    """None: there are no coordinators."""
    network: NetworkOptions = field(default_factory=NetworkOptions)
    etcd: EtcdOptions = field(default_factory=EtcdOptions)


RESIDENT_SHARE = 0.3
"""Of seeds in which bodies do not fit into memory."""


CHOOSING_SHARE = 0.5
"""Of seeds with clients that choose."""


PRIORITIES_SHARE = 0.3
"""Of seeds with priorities."""


SUBSCRIBER_SHARE = 0.4
"""Of seeds with a group of readers."""


ALL_SHARE = 0.12
"""Of seeds in which no member may be missing."""


ONE_LEFT_SHARE = 0.2
"""Of seeds in which all disks but one may be lost at once."""


SET_BACK_SHARE = 0.2
"""Of seeds in which etcd may be restored from a backup."""


def draw(seed: int) -> Options:
    """The options of a seed."""
    random = Random(f"options {seed}")
    kinds = tuple(kind for kind in FAULT_KINDS if random.random() < 0.6) or FAULT_KINDS
    # Of a generator of its own: seeds that are known by what they find stay what they are.
    bodies = Random(f"bodies {seed}")
    resident = bodies.choice((1, 400, 4000)) if bodies.random() < RESIDENT_SHARE else 0
    choosers = Random(f"choosers {seed}")
    subscriber = Random(f"has subscriber {seed}")
    is_minimum_all = Random(f"minimum {seed}").random() < ALL_SHARE
    if Random(f"disks {seed}").random() < ONE_LEFT_SHARE:
        kinds += (ONE_DISK_LEFT,)
    if Random(f"etcd set back {seed}").random() < SET_BACK_SHARE:
        kinds += (ETCD_SET_BACK,)
    return Options(
        seed=seed,
        min_in_sync=random.choice((1, 2, 2, 2)),
        is_minimum_all=is_minimum_all,
        clients=random.randint(4, 6),
        body_bytes_max=random.choice((40, 200, 2000)),
        think_us=random.choice((2500, 3000)) * MS,
        visit_gap_us=random.choice((4, 8)) * SECOND,
        fault_gap_us=random.choice((2, 4, 6)) * SECOND,
        core_fault_gap_us=draw_core_faults(seed),
        faults=kinds,
        lease_seconds=random.choice((2, 3, 3, 4)),
        supervisor_revokes=random.random() < 0.5,
        rate_error_max=random.choice((0.0, 1e-4, 1e-3)),
        torn_share=random.uniform(0.8, 1.0),
        disk_sync_us=random.choice((100, 300, 2000, 10_000)),
        small_limits=random.random() < 0.7,
        resident_bytes_max=resident,
        has_choosers=choosers.random() < CHOOSING_SHARE,
        has_priorities=Random(f"priorities {seed}").random() < PRIORITIES_SHARE,
        has_subscriber=subscriber.random() < SUBSCRIBER_SHARE,
        tiny_steps=draw_tiny_steps(seed),
        network=NetworkOptions(
            delay_us=random.choice((50, 200, 1000, 5000)),
            loss=random.choice((0.0, 0.0, 0.001, 0.01)),
            stall_timeout_us=random.choice((2, 8, 15)) * SECOND,
        ),
        etcd=EtcdOptions(
            answer_lost=random.choice((0.0, 0.0, 0.01)),
            answer_slow=random.choice((0.0, 0.0, 0.02)),
            watch_lag_us=random.choice((0, 0, 20, 200)) * MS,
        ),
    )
