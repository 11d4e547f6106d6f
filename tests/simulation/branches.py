"""Which branches of the rules a run has reached, and how often (issue 2, item 3).

Law: a name in `MUST_BE_REACHED` that a run of many seeds never reached fails that run: where the simulator never comes, it
finds nothing. Names come from `Note` effects and from what passes the simulated driver.
"""

from collections import Counter

from lockstep.core.effects import Note


class Branches:
    """Counts of one run; runs are added up."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def reach(self, name: str, times: int = 1) -> None:
        self.counts[name] += times

    def note(self, note: Note) -> None:
        self.counts[f"note: {note.event}"] += 1


MUST_BE_REACHED: dict[str, str] = {
    "etcd transaction failed": "R1: a swap lost the race",
    "etcd transaction in doubt": "R3: a swap whose answer was lost",
}
"""Name -> the rule whose branch it is."""


def missing(counts: Counter[str]) -> list[str]:
    """Names that were never reached, with their rules."""
    return [f"{name} ({rule})" for name, rule in sorted(MUST_BE_REACHED.items()) if not counts[name]]
