"""Members of enums are made of numbers in one place: it raises for those of a later version, of which nobody thinks elsewhere."""

import ast
from collections.abc import Iterator
from pathlib import Path

import lockstep

ROOT = Path(lockstep.__file__).parent.parent

ALLOWED = {
    ("lockstep/core/decision_log.py", "Verdict"): "a word; an unknown one leaves its transaction in doubt",
    ("lockstep/runtime/decision_log.py", "Verdict"): "the same",
    ("services/coordinator/log_changes.py", "Verdict"): "the same",
    ("lockstep/core/amqp/section_table.py", "Section"): "a place in AMQP's own table",
    ("services/proxy/engine_words.py", "StateCode"): "its caller takes the error for an outcome that is none",
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Of all that runs, by path."""
    for path in sorted([*ROOT.glob("lockstep/**/*.py"), *ROOT.glob("services/**/*.py")]):
        where = str(path.relative_to(ROOT))
        if "/wire/" not in where:
            yield where, ast.parse(path.read_text())


def is_enum(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Enum") for base in node.bases)


def defined(module: ast.Module) -> set[str]:
    return {node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef) and is_enum(node)}


def imported(module: ast.Module, enums: set[tuple[str, str]]) -> set[str]:
    return {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (node.module or "", alias.name) in enums
    }


def test_members_are_made_of_numbers_in_one_place() -> None:
    modules = dict(sources())
    enums = {
        (where.removesuffix(".py").replace("/", "."), name)
        for where, module in modules.items()
        for name in defined(module)
    }
    assert ("lockstep.core.xa", "BranchState") in enums
    found = set()
    for where, module in modules.items():
        names = defined(module) | imported(module, enums)
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and node.args:
                made = ast.unparse(node.func)
                if made in names or (made.startswith("pb.") and made.endswith(".Name")):
                    found.add((where, made))
    assert found == set(ALLOWED), "`known` of `lockstep/core/wire_numbers.py` says what an unknown number is"
