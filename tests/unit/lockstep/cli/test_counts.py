"""Counts in what commands print."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from lockstep.core.counted import counted

ROOT = Path(__file__).parents[4]
THINGS = re.compile(
    r" (durable )?(branch|broker|event|message|name|queue|row|session|set|transaction|violation)(e?s)\b"
)


def test_one_thing_is_no_plural() -> None:
    said = [counted(count, "message") for count in (0, 1, 2, 1200)]
    assert said == ["0 messages", "1 message", "2 messages", "1,200 messages"]


def test_no_sentence_has_a_plural_of_its_own_behind_a_count() -> None:
    files = [
        path for folder in ("lockstep/cli", "services/pipeline") for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 40
    assert [found for path in sorted(files) for found in _plurals(path)] == []


def _plurals(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            for value, text in pairwise(node.values):
                said = str(text.value) if isinstance(text, ast.Constant) else ""
                if isinstance(value, ast.FormattedValue) and (found := THINGS.match(said)):
                    yield f"{path.name}:{text.lineno}:{found.group()}"
