"""The versions that images are made of: what pyproject.toml asks for, and nothing that it does not allow."""

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[3]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PROGRAMS = (*PROJECT["dependencies"], *EXTRAS["tracing"])
"""What every image has: where traces go to is known only where it runs."""


def pinned(file: str) -> dict[str, str]:
    lines = (REPOSITORY / "deploy" / file).read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def needed(asked: Iterable[str]) -> dict[str, list[Requirement]]:
    """Everything that is asked for, and what that asks for, as the packages that are installed here say."""
    found: dict[str, list[Requirement]] = {}
    waiting = [Requirement(one) for one in asked]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name == "lockstep" or str(one) in map(str, found.get(name, ())):
            continue
        found.setdefault(name, []).append(one)
        for text in importlib.metadata.requires(name) or ():
            other = Requirement(text)
            extras = ("", *one.extras)
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(other)
    return found


def check(asked: Iterable[str], versions: dict[str, str]) -> None:
    for name, requirements in needed(asked).items():
        assert name in versions, f"{name} is needed and has no version"
        for requirement in requirements:
            assert requirement.specifier.contains(versions[name], prereleases=True), (
                f"{name} {versions[name]} is not {requirement}"
            )


def test_programs_get_all_that_they_ask_for() -> None:
    check(PROGRAMS, pinned("requirements.txt"))


def test_the_pipeline_gets_all_that_it_asks_for() -> None:
    versions = pinned("requirements.txt") | pinned("requirements-pipeline.txt")
    check((*PROGRAMS, *EXTRAS["pipeline"]), versions)


def test_nothing_is_installed_that_nobody_asks_for() -> None:
    assert pinned("requirements.txt").keys() == needed(PROGRAMS).keys()
    both = needed((*PROGRAMS, *EXTRAS["pipeline"])).keys()
    assert pinned("requirements-pipeline.txt").keys() == both - pinned("requirements.txt").keys()


def test_versions_are_exact() -> None:
    for file in ("requirements.txt", "requirements-pipeline.txt"):
        for name, version in pinned(file).items():
            assert re.fullmatch(r"[0-9][0-9a-z.]*", version), (name, version)
