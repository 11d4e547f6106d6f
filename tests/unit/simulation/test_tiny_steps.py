"""The table of tiny steps names all constants that cut works, and a run that has them leaves nothing of them behind."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.simulation.options import draw
from tests.simulation.run import run
from tests.simulation.tiny_steps import (
    ANY_STEP_ENDS_A_PIECE,
    EXCEPTIONS,
    SHARE,
    SMALLEST,
    draw_tiny_steps,
    step_sizes,
)

ROOT = Path(__file__).parents[3]
CORES = re.compile(r"(lockstep|services\.\w+)\.core\.")
CUTS = re.compile(
    r"(^|_)(CHUNKS?|COMPARED|ENTRIES|FEW|LOOKED|MANY|ONCE|ONE|PARTS?|PIECES?|SKIPPED|STEP|WATCHED|WHOLE)(_|$)"
)
"""Names that say how much something does at a time."""
NAMES = [(module, name) for module, constants in SMALLEST.items() for name in constants]


@cache
def sources() -> dict[str, ast.Module]:
    """What is in each module of ours, by its name."""
    paths = sorted(path for top in ("lockstep", "services") for path in (ROOT / top).rglob("*.py"))
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text())
        for path in paths
        if "v1" not in path.parts
    }


def assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that these statements define, with their values."""
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.value
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                yield from ((name.id, statement.value) for name in names if isinstance(name, ast.Name))


def constants_of_steps() -> list[str]:
    """Integers at the top of modules of cores whose names say that they cut works; what a step costs is none."""
    found = []
    for module, tree in sources().items():
        for name, _ in assigned(tree.body) if CORES.match(module) else ():
            is_cost = name.endswith("_COST") and name != "PIECE_COST"
            if CUTS.search(name) and not is_cost and type(vars(importlib.import_module(module))[name]) is int:
                found.append(f"{module}.{name}")
    return found


@cache
def imports() -> dict[tuple[str, str], list[str]]:
    """Modules that import a constant, by its module and its name."""
    found: dict[tuple[str, str], list[str]] = {}
    for importer, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found.setdefault((node.module or "", alias.name), []).append(importer)
    return found


def test_every_constant_that_cuts_a_work_is_in_the_table_or_an_exception_with_its_reason() -> None:
    known = {
        f"{module}.{name}" for table in (SMALLEST, EXCEPTIONS) for module in table for name in table[module]
    }
    assert not sorted(set(constants_of_steps()) - known - ANY_STEP_ENDS_A_PIECE.keys())


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[".".join(pair) for pair in NAMES])
def test_a_constant_of_the_table_is_there_and_bigger(module: str, name: str) -> None:
    value = vars(importlib.import_module(module))[name]
    assert type(value) is int and 0 <= SMALLEST[module][name] < value


def test_exceptions_are_there_and_have_reasons() -> None:
    assert not [
        (module, name)
        for module, reasons in EXCEPTIONS.items()
        for name, reason in reasons.items()
        if name not in vars(importlib.import_module(module)) or len(reason) < 20
    ]
    assert not [
        name for module in EXCEPTIONS for name in EXCEPTIONS[module] if name in SMALLEST.get(module, {})
    ]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[".".join(pair) for pair in NAMES])
def test_a_constant_is_tiny_wherever_it_was_imported_and_set_back_behind_that(module: str, name: str) -> None:
    holding = [importlib.import_module(one) for one in (module, *imports().get((module, name), ()))]
    others = [importlib.import_module(other) for other, known in NAMES if known == name and other != module]
    real, of_others = vars(holding[0])[name], [vars(other)[name] for other in others]
    with step_sizes({f"{module}.{name}": -7}):
        assert [vars(one)[name] for one in holding] == [-7] * len(holding)
        assert [vars(other)[name] for other in others] == of_others
    assert [vars(one)[name] for one in holding] == [real] * len(holding)


def test_no_constant_of_the_table_is_kept_where_a_run_cannot_change_it() -> None:
    """In the default of a parameter or a field, in another constant, or under another name."""
    names = {name for _, name in NAMES}
    kept = []
    for module, tree in sources().items():
        values: list[ast.expr | None] = [value for _, value in assigned(tree.body)]
        for node in ast.walk(tree):
            if isinstance(node, ast.arguments):
                values += [*node.defaults, *node.kw_defaults]
            elif isinstance(node, ast.ClassDef):
                values += [value for _, value in assigned(node.body)]
            elif isinstance(node, ast.ImportFrom):
                kept += [
                    (module, alias.name)
                    for alias in node.names
                    if alias.asname and (node.module, alias.name) in NAMES
                ]
        for value in values:
            used = {found.id for found in ast.walk(value) if isinstance(found, ast.Name)} if value else set()
            kept += [(module, name) for name in sorted(used & names)]
    assert not kept


def test_a_share_of_the_seeds_has_tiny_steps_and_a_seed_draws_the_same_again() -> None:
    drawn = {seed: draw_tiny_steps(seed) for seed in range(400)}
    share = sum(map(bool, drawn.values())) / len(drawn)
    assert SHARE - 0.07 < share < SHARE + 0.07
    assert all(draw(seed).tiny_steps == drawn[seed] for seed in range(20))
    known = {".".join(pair) for pair in NAMES}
    assert all(sizes.keys() - ANY_STEP_ENDS_A_PIECE.keys() <= known for sizes in drawn.values())


def test_a_run_with_tiny_steps_repeats_and_leaves_no_trace_in_the_next_run() -> None:
    tiny, ordinary = (
        next(seed for seed in range(100) if bool(draw_tiny_steps(seed)) is is_tiny)
        for is_tiny in (True, False)
    )

    def digest(seed: int) -> str:
        options = draw(seed)
        options.safety_us, options.settle_us, options.transactions = 5_000_000, 1_000_000, 0
        report = run(options)
        assert not report.broken
        return report.digest

    before = digest(ordinary)
    first = digest(tiny)
    assert digest(ordinary) == before and digest(tiny) == first
