"""What a run leaves: its JSON, from which everything else can be made again, its tables as Markdown, and its plots."""

from pathlib import Path

from bench.plots import draw
from bench.results import Run, write_run
from bench.sections import LEGEND, goals_table, run_sections


def write_report(run: Run, path: Path) -> None:
    """Writes `path`, a Markdown file of that name beside it, and PNGs in its folder. Raises `Refused` as `write_run` does."""
    write_run(run, path)
    plots = draw(run, path.parent)
    parts = [f"# Run '{run.kind}'", LEGEND, *run_sections(run, plots, path.parent)]
    parts += ["## Goals", goals_table([run])]
    path.with_suffix(".md").write_text("\n\n".join(part.strip() for part in parts if part) + "\n")
