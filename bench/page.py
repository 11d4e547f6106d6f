"""Makes docs/performance.md and its plots from files of runs: `python -m bench.page bench/out/full.json bench/out/peers.json`.

Law: every figure on the page is from a run, with its conditions beside it, and no run is chosen by its result (`register.py`).
The first lines say what holds where (`scope.py`). What only a person can say (where the time goes, what would have to change)
stands in docs/performance-notes.md, and is put behind the figures as it is. The files of the runs are kept beside the plots, so
that the page can be made again with some of them newer.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.cpu import RECORD, changes, read_record
from bench.environment import Refused
from bench.register import REGISTER, Entry, check, read, register_table
from bench.results import BESIDE_OTHERS, Run, read_run
from bench.scope import scope
from bench.sections import LEGEND, goals_table, run_sections

PAGE, NOTES = Path("docs/performance.md"), Path("docs/performance-notes.md")
PLOTS = Path("docs/performance")
_MADE = """\
Made by `python -m bench.page` from the results of `make bench`, `make bench-full`, `make bench-peers`, `make bench-musts`
and `make bench-sustained`; not written by hand."""


def page(
    runs: Sequence[Run], plots: Sequence[Path], record: str, notes: str, entries: Sequence[Entry] = ()
) -> str:
    """The text of it. `plots`: files beside it; `record`: a table of the last entry; `notes`: Markdown, or nothing; `entries`: of
    the register.
    """
    parts = ["# Performance", scope(runs), _MADE, LEGEND]
    for run in sorted(runs, key=_place):
        parts += run_sections(run, plots, PAGE.parent)
    if entries:
        parts += ["## Every run beside others", register_table(entries)]
    parts += ["## Goals", goals_table(runs)]
    if record:
        parts += ["## Processor time of a message at each hop", f"The last entry of `{RECORD}`.", record]
    return (
        "\n\n".join([*(part.strip() for part in parts if part), *([notes.strip()] if notes else [])]) + "\n"
    )


def _place(run: Run) -> tuple[int, int, int]:
    """By kind and machine, and by nothing that was measured."""
    kinds = list(BESIDE_OTHERS)
    place = kinds.index(run.kind) if run.kind in kinds else len(kinds)
    return place, run.machine.cores, -round(run.started.timestamp())


def main(files: Sequence[Path]) -> None:
    from bench.plots import draw  # Only this needs matplotlib.

    runs, entries = [read_run(path) for path in files], read(REGISTER)
    check(runs, entries)
    plots = [path for run in runs for path in draw(run, PLOTS)]
    hops = read_record(RECORD)
    record = changes(hops[-1], hops[-2] if len(hops) > 1 else None) if hops else ""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(runs, plots, record, NOTES.read_text() if NOTES.exists() else "", entries))
    for path in files:
        kept = PLOTS / path.name
        if path.resolve() != kept.resolve():
            shutil.copyfile(path, kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="of runs, as the harness wrote them")
    try:
        main(parser.parse_args().files)
    except Refused as refused:
        sys.exit(f"bench: refused: {refused}")
