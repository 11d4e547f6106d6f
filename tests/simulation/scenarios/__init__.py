"""Scenarios: one script in each file, played on a stage (`tests.simulation.staging`) where nothing goes wrong by chance.

A file's docstring tells its history in sentences and names its rules. Its `play(stage)` is the script; with `CASES` it is played
once for each of them, as `play(stage, case)`. `options()` makes the world's options where the calm ones do not do.
"""

from tests.simulation.staging.scenario import run_named

__all__ = ["run_named"]
