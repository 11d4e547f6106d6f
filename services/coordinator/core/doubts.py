"""Warns of distributed transactions that are not over for too long: in the log at the last look, or in hand here.

Law: it only says so. Ages count from when the list of participants was written, by its writer's clock, or, for what no log has,
from when it was first seen in hand.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lockstep.core.branch_names import GlobalId, branch_xid
from lockstep.core.clock import Now
from lockstep.core.doubt_watch import LOOKED_AT_IN_ONE, DoubtFigures, DoubtWatch
from lockstep.core.taking_apart import emptied
from services.coordinator.core.branches import Branch
from services.coordinator.core.context import Context
from services.coordinator.core.messages import LoggedTransaction, Note
from services.coordinator.core.one_phase import OnePhase
from services.coordinator.core.transaction import Transaction

MISSING_SHOWN_MAX = 8
"""Participants in one warning; how many more there are is said."""


@dataclass(slots=True)
class _Doubt:
    """One transaction that is not over."""

    since_ms: int
    logged: LoggedTransaction | None = None
    held: Transaction | OnePhase | None = None


class Doubts:
    """Lives as long as the core; looks whenever a listing of the log has ended, well or not: recovery's pace."""

    def __init__(self, context: Context) -> None:
        self._context = context
        limits = context.limits
        self._watch: DoubtWatch[GlobalId] = DoubtWatch(limits.in_doubt_ms, limits.in_doubt_warnings_max)
        self._logged: dict[GlobalId, LoggedTransaction] = {}
        """As of the last listing."""
        self._held_since_ms: dict[GlobalId, int] = {}

    def listed(self, transactions: Sequence[LoggedTransaction]) -> Iterator[int]:
        """All that the log has, in steps that say what they cost (`Pieces`)."""
        before, self._logged = self._logged, {}
        for begin in range(0, len(transactions), LOOKED_AT_IN_ONE):
            some = transactions[begin : begin + LOOKED_AT_IN_ONE]
            self._logged.update((one.global_id, one) for one in some)
            yield len(some)
        # Each is several objects.
        for cost in emptied(before):
            yield 4 * cost

    def figures(self, wall_ms: int) -> DoubtFigures:
        return self._watch.figures(wall_ms)

    def look(self, held: Mapping[GlobalId, Transaction | OnePhase], now: Now) -> Iterator[int]:
        """Warns of those that are due, in steps that say what they cost (`Pieces`). `held`: all in hand."""
        logged, held_since_ms = self._logged, self._held_since_ms
        self._held_since_ms = {}
        since_ms: dict[GlobalId, int] = {}
        for ids in (tuple(logged), tuple(held)):
            for begin in range(0, len(ids), LOOKED_AT_IN_ONE):
                some = ids[begin : begin + LOOKED_AT_IN_ONE]
                for global_id in some:
                    if global_id in held:
                        self._held_since_ms[global_id] = held_since_ms.get(global_id, now.wall_ms)
                    if global_id in logged:
                        since_ms[global_id] = logged[global_id].entry.written_ms
                    elif global_id in held:
                        since_ms[global_id] = self._held_since_ms[global_id]
                yield len(some)
        yield from self._watch.look(since_ms)
        for global_id in self._watch.late(now.wall_ms):
            doubt = _Doubt(since_ms[global_id], logged.get(global_id), held.get(global_id))
            if doubt.logged is None and doubt.held is None:
                continue  # It has ended since.
            details = _details(global_id, doubt, now)
            self._context.say(Note("in_doubt", global_id, details, is_warning=True))


def _details(global_id: GlobalId, doubt: _Doubt, now: Now) -> str:
    phase, decision = "nobody's", doubt.logged.decision if doubt.logged is not None else None
    if isinstance(doubt.held, Transaction):
        phase, decision = doubt.held.phase.value, doubt.held.verdict or decision
    elif doubt.held is not None:
        phase = "one phase"
    missing = _missing(global_id, doubt)
    shown = " ".join(missing[:MISSING_SHOWN_MAX])
    if len(missing) > MISSING_SHOWN_MAX:
        shown += f" and {len(missing) - MISSING_SHOWN_MAX} more"
    return (
        f"age_seconds={(now.wall_ms - doubt.since_ms) // 1000} phase={phase!r} "
        f"decision={decision.value if decision is not None else 'none'} missing=[{shown}]"
    )


def _missing(global_id: GlobalId, doubt: _Doubt) -> list[str]:
    """Participants that have not acknowledged, as far as this coordinator knows, each with the name of its branch."""
    if doubt.held is not None:
        return [_text(branch) for branch in doubt.held.branches.all if branch.has_to_be_told]
    assert doubt.logged is not None, "in the log, or in hand"
    entry = doubt.logged.entry
    return [
        _text(Branch(name, branch_xid(global_id, number, entry.generation)))
        for number, name in enumerate(entry.participants)
        if name and number not in (*entry.finished, *entry.committed)
    ]


def _text(branch: Branch) -> str:
    return f"{branch.participant} xid={branch.xid}"
