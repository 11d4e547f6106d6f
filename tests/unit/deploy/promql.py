"""What a PromQL expression names: metrics with the labels they are asked for. Enough of the language for our own expressions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_WORDS = {
    *("abs", "and", "avg", "bool", "by", "changes", "clamp_min", "count", "group_left", "group_right"),
    *(
        "histogram_quantile",
        "ignoring",
        "increase",
        "label_values",
        "max",
        "min",
        "offset",
        "on",
        "or",
        "rate",
    ),
    *("sum", "time", "topk", "unless", "without"),
}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\$\w+|[a-zA-Z_:][\w:]*|\d[\w.]*|[^\s]')
_WORD = re.compile(r"[a-zA-Z_:][\w:]*")


@dataclass(frozen=True)
class Asked:
    """A metric in an expression."""

    metric: str
    labels: frozenset[str]
    """Of its selector."""


def metrics_in(expression: str) -> Iterator[Asked]:
    """All metrics of an expression, each as often as it stands there."""
    tokens = _TOKEN.findall(_without_durations(expression))
    place = 0
    while place < len(tokens):
        token = tokens[place]
        place += 1
        if token in {"by", "on", "ignoring", "without"} and place < len(tokens) and tokens[place] == "(":
            place = tokens.index(")", place) + 1
            continue
        if not _WORD.fullmatch(token) or token in _WORDS:
            continue
        labels: list[str] = []
        if place < len(tokens) and tokens[place] == "{":
            end = tokens.index("}", place)
            inside = tokens[place + 1 : end]
            labels = [one for one, follows in pairwise(inside) if _is_label(one, follows)]
            place = end + 1
        yield Asked(token, frozenset(labels))


def labels_grouped_by(expression: str) -> set[str]:
    """Labels of all `by`, `on`, `ignoring` and `without`."""
    lists = re.findall(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)", expression)
    return {label.strip() for found in lists for label in found.split(",") if label.strip()}


def _is_label(token: str, follows: str) -> bool:
    return bool(_WORD.fullmatch(token)) and follows in {"=", "!"}


def _without_durations(expression: str) -> str:
    return re.sub(r"\[[^\]]*\]", "", expression)
