"""Scenarios: scripts of timed steps with an expectation, one file for each case that DESIGN or the issue names."""


def run_named(name: str) -> int:
    """Run one scenario, or with `all` every one; 0 when all is well."""
    raise SystemExit(f"no scenario {name!r}")
