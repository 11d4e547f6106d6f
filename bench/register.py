"""Every run beside others in a form of the page, as it came out: one line each, appended by the run itself.

Law: no run is chosen by its result. The page is made of the newest whole run of every kind on as many cores, and of no other; and
it lists all that there were, also those that were cut short.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from bench.environment import Refused
from bench.forms import FORMS
from bench.musts import PEER, standings
from bench.results import BESIDE_OTHERS, Run
from bench.tables import table

REGISTER = Path("docs/performance/runs.jsonl")


class Entry(msgspec.Struct, frozen=True):
    """Of one run."""

    kind: str
    started: datetime
    commit: str
    processor: str
    cores: int
    rounds: int
    """That it came to in any case."""
    noisy: int
    """Of its measurements that count."""
    measurements: int
    set_aside: int
    """Measured, and again, and not counted."""
    is_whole: bool
    """Nothing is missing that was to be measured."""
    ratios: dict[str, float]
    """To the peer of the musts, by case; 0: not measured."""
    missed: int
    """Musts."""

    @property
    def place(self) -> tuple[str, int]:
        """What it is the newest one of, or is not."""
        return self.kind, self.cores


def entry_of(run: Run) -> Entry:
    """What the register says of it."""
    found = standings(run.measurements)
    times = Counter((one.system, one.path, one.key) for one in run.measurements)
    return Entry(
        kind=run.kind,
        started=run.started,
        commit=run.commit,
        processor=run.machine.processor,
        cores=run.machine.cores,
        rounds=max([*times.values(), *(one.round for one in run.measurements)], default=0),
        noisy=sum(one.is_noisy for one in run.measurements),
        measurements=len(run.measurements),
        set_aside=len(run.set_aside),
        is_whole=not run.missing,
        ratios={f"{one.must.case.workload}: {one.must.case.title}": round(one.ratio, 3) for one in found},
        missed=sum(not one.is_reached for one in found),
    )


def has_form(kind: str, seconds: float, rounds: int, peers: Sequence[str]) -> bool:
    """Whether a run so asked for is in the form of its kind."""
    form = FORMS[kind]
    return (seconds, rounds, sorted(peers)) == (form.seconds, form.rounds, sorted(form.peers))


def append(run: Run, path: Path = REGISTER) -> None:
    """Behind all others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(entry_of(run)) + b"\n")


def read(path: Path = REGISTER) -> list[Entry]:
    """All of them, in the order in which they ended; none where there is no file."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Entry) for line in lines]


def check(runs: Sequence[Run], entries: Sequence[Entry]) -> None:
    """Raises `Refused` unless the runs beside others are the newest whole ones of all kinds, on as many cores, that the register
    has. One that is not whole may stand for a kind of which there is no other.
    """
    given = {(run.kind, run.started) for run in runs if run.kind in BESIDE_OTHERS}
    newest: dict[tuple[str, int], Entry] = {}
    for one in entries:
        known = newest.get(one.place)
        if known is None or (one.is_whole, one.started) > (known.is_whole, known.started):
            newest[one.place] = one
    wanted = {(one.kind, one.started): one for one in newest.values()}
    for kind, started in sorted(given - wanted.keys()):
        why = (
            "is not in"
            if (kind, started) not in {(one.kind, one.started) for one in entries}
            else "has a newer one in"
        )
        raise Refused(f"the run '{kind}' of {started:%Y-%m-%d %H:%M} {why} {REGISTER}")
    for kind, started in sorted(wanted.keys() - given):
        raise Refused(
            f"the page lacks the run '{kind}' of {started:%Y-%m-%d %H:%M}, which is the newest of its kind"
        )


def register_table(entries: Sequence[Entry]) -> str:
    """All of them."""
    cases = list(dict.fromkeys(case for one in entries for case in one.ratios))
    rows = [
        [
            f"{one.started:%Y-%m-%d %H:%M}, {one.kind}, {one.commit or '-'}{'' if one.is_whole else ', not whole'}",
            f"{one.processor}, {one.cores}",
            str(one.rounds),
            f"{one.noisy} of {one.measurements}",
            str(one.set_aside),
            *(f"{one.ratios[case]:.2f}" if one.ratios.get(case) else "-" for case in cases),
            str(one.missed),
        ]
        for one in entries
    ]
    headings = ("run", "processor, cores", "rounds", "noisy", "set aside", *cases, "musts missed")
    words = f"Ratios to {PEER}, medians. Each run adds its own line; those from before this list are in the notes."
    return f"{words}\n\n{table(headings, rows)}" if rows else ""
