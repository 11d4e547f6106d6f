"""Tiny steps: how much works do in one step, made so small for one run that small states are seen with every work half done.

The constants that cut works are sized for big states, and simulated ones are small: with the real ones nearly every work ends in
the step that begins it. So a share of the seeds draws tiny ones, and everything comes in between.

Law: a run has them from before its world is made until it ends, and every module that imported one has the same. What a setting
says (`tests/simulation/limits.py`) is drawn there. `tests/unit/simulation/test_tiny_steps.py` holds the table: whoever adds such
a constant says here how small it may be, or why it is left as it is.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

SHARE = 0.25
"""Of seeds with tiny steps."""
MADE_TINY = 0.85
"""Share of the constants that such a seed makes tiny: what one tiny constant keeps from coming about, another seed shows."""
ABOVE = (0, 0, 1, 3)
"""What is drawn is so much more than the smallest."""

SMALLEST: dict[str, dict[str, int]] = {
    "lockstep.core.apply_epochs": {"GIVEN_BACK_IN_ONE": 1},
    "lockstep.core.apply_messages": {
        "FEW_MESSAGES": 1,
        "MOVED_AT_ONCE": 1,
        "MOVED_IN_ONE": 1,
        "SHARES_AT_ONCE": 1,
        "SHARES_IN_ONE": 1,
        "TARGETS_AT_ONCE": 1,
    },
    "lockstep.core.apply_transactions": {"ENDED_IN_ONE": 1},
    "lockstep.core.apply_whole": {"SPREAD_WHOLE": 1},
    "lockstep.core.clearing": {"CLEARED_IN_ONE": 1},
    "lockstep.core.doubt_watch": {"LOOKED_AT_IN_ONE": 1},
    "lockstep.core.entry_pages": {"PAGE_ENTRIES": 1},
    "lockstep.core.frames": {"_PIECE_BYTES_MIN": 1, "_QUEUES_MIN": 1},
    "lockstep.core.outcomes": {"RESTORED_IN_ONE": 1},
    "lockstep.core.position_sets": {"FEW_MAX": 1, "PART_MAX": 1},
    "lockstep.core.priorities": {"_CHUNK": 1},
    "lockstep.core.queues": {"RESTORED_IN_ONE": 1},
    "lockstep.core.replication": {"FRAMES_IN_ONE": 1, "HELD_IN_ONE": 1},
    "lockstep.core.resident_bodies": {"QUEUES_IN_ONE": 1, "TURN_COST": 1, "_FIRST_MAX": 1, "_STEP": 1},
    "lockstep.core.restoration": {"SAID_IN_ONE": 1, "TAKEN_IN_ONE": 1},
    "lockstep.core.routing": {"STEPS_IN_ONE": 1},
    "lockstep.core.set_state": {
        "CALLED_IN_ONE": 1,
        "DECODED_AT_ONCE": 0,
        "DONE_IN_ONE": 0,
        "SPREAD_IN_ONE": 1,
        "STEP_RECORDS": 1,
        "WHOLE_MAX": 1,
    },
    "lockstep.core.state_captures": {
        "LOOKED_AT": 1,
        "PIECE_ENTRIES": 1,
        "_SKIPPED_QUEUES": 1,
        "_SKIPPED_SHELVES": 1,
    },
    "lockstep.core.taking_apart": {"TAKEN_OUT_IN_ONE": 1},
    "services.primary.core.aftermath": {"GIVEN_BACK_IN_ONE": 1, "WATCHED_IN_ONE": 1},
    "services.primary.core.attachments": {"LOOKED_AT_MAX": 1},
    "services.primary.core.backups": {"CATCH_UP_CHUNKS": 1, "SNAPSHOT_TURN_CHUNKS": 1},
    "services.primary.core.branch_requests": {"_LOOKED_AT": 1},
    "services.primary.core.client_hearing": {"WORK_IN_ONE": 0},
    "services.primary.core.dead_letter_targets": {"LOOKED_AT_IN_ONE": 1},
    "services.primary.core.describing": {"_LOOKED_AT": 1},
    "services.primary.core.dispatch": {"RETURNED_IN_ONE": 1},
    "services.primary.core.expiry": {"LOOKED_AT_MAX": 1, "QUEUES_LOOKED_AT": 1, "WATCHED_MAX": 1},
    "services.primary.core.forgetting": {"_LOOKED_AT_IN_ONE": 1},
    "services.primary.core.gate": {"RELEASED_IN_ONE": 1},
    "services.primary.core.gone_before": {"LOOKED_AT_IN_ONE": 1},
    "services.primary.core.listener": {"WATCHED_AT_ONCE": 1},
    "services.primary.core.name_claims": {"_COMPARED": 1},
    "services.primary.core.primary": {"TAKEN_IN_ONE": 1},
    "services.primary.core.publish_records": {"ALIKE_PLACES_IN_ONE": 1, "PLACES_IN_ONE": 1, "_MANY": 1},
    "services.primary.core.publishing": {"_LOOKED_AT_IN_ONE": 1},
    "services.primary.core.queue_view": {"LOOK_AHEAD": 1, "MANY": 1, "STEP": 1},
    "services.primary.core.removing": {"EVICTED_AT_ONCE": 1, "EVICTED_IN_ONE": 1},
    "services.primary.core.selecting": {"COMPARED_IN_ALL": 1, "COMPARED_MANY": 1, "QUEUES_MANY": 1},
    "services.primary.core.settling": {"SETTLED_IN_ONE": 1, "SETTLED_PART": 1},
    "services.primary.core.writer": {"NAMES_MANY": 1},
    "services.store.core.blocks": {"PIECE_BLOCKS_MAX": 1, "PIECE_ITEMS_MAX": 1},
}
"""By module: the smallest value of each constant that makes sense."""
ANY_STEP_ENDS_A_PIECE = {"lockstep.core.pieces.STEP_COST_MIN": 1}
"""In every run with tiny steps."""

_SETTING = "the default of a setting, which seeds draw"
_BUDGET = (
    "what asking selectors may cost before others have their turn, or before it is refused: no step of a work"
)
_ASKED = "how much is asked of a selector between two looks at what it cost"

EXCEPTIONS: dict[str, dict[str, str]] = {
    "lockstep.core.amqp.like_pattern": {"_CHARS_PER_STEP": _ASKED},
    "lockstep.core.amqp.selector_terms": {"_CHARS_PER_STEP": _ASKED},
    "lockstep.core.pieces": {"PIECE_COST": _SETTING},
    "services.broker.core.witness": {"BEGINNINGS_AT_ONCE": "tries before a pause: no work goes on behind it"},
    "services.primary.core.dispatch": {"_APPENDED_AS_ONE": "a weight of what is counted: no step of a work"},
    "services.primary.core.purging": {
        "PURGED_IN_ONE": "a part is as small as command_messages_max, which scenarios set"
    },
    "services.primary.core.removing": {"PARTS_OF_A_FRAME": "a part of a setting, which seeds draw"},
    "services.primary.core.selecting": {
        "SHARE_STEPS": _BUDGET,
        "DEAD_LETTER_STEPS_MAX": _BUDGET,
        "PLACES_MANY": _BUDGET,
    },
}
"""Constants that are called like such, and why they are left as they are."""


def draw_tiny_steps(seed: int) -> dict[str, int]:
    """What a seed makes of these constants, by their full names; empty: it has the real ones."""
    if Random(f"tiny steps {seed}").random() >= SHARE:
        return {}
    drawn = dict(ANY_STEP_ENDS_A_PIECE)
    for module, constants in SMALLEST.items():
        for name, smallest in constants.items():
            # Of a generator of its own: one more constant changes nothing of the others.
            random = Random(f"{module}.{name} {seed}")
            if random.random() < MADE_TINY:
                drawn[f"{module}.{name}"] = smallest + random.choice(ABOVE)
    return drawn


@contextmanager
def step_sizes(sizes: Mapping[str, int]) -> Iterator[None]:
    """While this lasts the constants of these full names have these values, wherever they were imported."""
    before: list[tuple[dict[str, object], str, object]] = []
    try:
        for full_name, size in sizes.items():
            module, _, name = full_name.rpartition(".")
            for names in holders(module, name):
                before.append((names, name, names[name]))
                names[name] = size
        yield
    finally:
        for names, name, value in reversed(before):
            names[name] = value


def holders(module: str, name: str) -> list[dict[str, object]]:
    """The names of the module that defines a constant, and of all that imported it. Another module that defines one of the same
    name is in the table, too, or in the exceptions.
    """
    own = vars(importlib.import_module(module))
    defining = {other for table in (SMALLEST, EXCEPTIONS) for other in table if name in table[other]}
    return [own] + [
        vars(other)
        for full_name, other in list(sys.modules.items())
        if full_name.partition(".")[0] in ("lockstep", "services")
        and full_name not in defining
        and vars(other).get(name) is own[name]
    ]
