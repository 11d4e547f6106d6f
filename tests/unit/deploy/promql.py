"""What a PromQL expression names: metrics with the labels they are asked for; and which labels its result has. Enough of the
language for our own expressions.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_WORDS = {
    *(
        "abs",
        "absent",
        "and",
        "avg",
        "bool",
        "by",
        "changes",
        "clamp_min",
        "count",
        "group_left",
        "group_right",
    ),
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
        "present_over_time",
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


_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|\{[^}]*\}|[=!<>]=|\d[\d.]*(?:e[+-]?\d+)?|[a-zA-Z_:][\w:]*|[^\s]')
_PRECEDENCE = (
    {"or"},
    {"and", "unless"},
    {"==", "!=", "<=", "<", ">=", ">"},
    {"+", "-"},
    {"*", "/", "%"},
)
"""The weakest first."""
_AGGREGATIONS = {"avg", "count", "max", "min", "sum"}

Labels = frozenset[str]


class Mismatch(Exception):
    """Two operands whose series never have the same labels."""


def labels_of_result(expression: str, labels_of: Callable[[str], Iterable[str]]) -> Labels | None:
    """Labels that the series of an expression have; None of a number. `labels_of`: of a metric.

    Raises `Mismatch` where operands have different ones and neither `on` nor `ignoring` says which count.
    """
    return _Reading(_PIECE.findall(_without_durations(expression)), labels_of).everything()


class _Reading:
    """Of one expression, from its first piece to its last."""

    def __init__(self, pieces: list[str], labels_of: Callable[[str], Iterable[str]]) -> None:
        self._pieces = pieces
        self._labels_of = labels_of
        self._place = 0

    def everything(self) -> Labels | None:
        found = self._operation(0)
        assert self._next() == "", f"not understood: {self._pieces[self._place :]}"
        return found

    def _next(self) -> str:
        return self._pieces[self._place] if self._place < len(self._pieces) else ""

    def _take(self) -> str:
        self._place += 1
        return self._pieces[self._place - 1]

    def _operation(self, level: int) -> Labels | None:
        if level == len(_PRECEDENCE):
            return self._operand()
        left = self._operation(level + 1)
        while self._next() in _PRECEDENCE[level]:
            operator, matched = self._take(), None
            if self._next() in {"on", "ignoring"}:
                matched = self._take(), self._names()
            right = self._operation(level + 1)
            left = self._joined(operator, matched, left, right)
        return left

    @staticmethod
    def _joined(
        operator: str, matched: tuple[str, Labels] | None, left: Labels | None, right: Labels | None
    ) -> Labels | None:
        if left is None or right is None:
            return left if right is None else right
        word, names = matched or ("ignoring", Labels())
        keys = [side & names if word == "on" else side - names for side in (left, right)]
        if keys[0] != keys[1] or (word == "on" and keys[0] != names):
            raise Mismatch(f"{sorted(left)} {operator} {sorted(right)}")
        return left if operator in {"and", "or", "unless"} else keys[0]

    def _operand(self) -> Labels | None:
        piece = self._take()
        if piece == "(":
            found = self._operation(0)
            assert self._take() == ")"
            return found
        if not _WORD.fullmatch(piece):
            return None
        if self._next() in {"by", "without", "("}:
            return self._call(piece)
        if self._next().startswith("{"):
            self._take()
        return Labels(self._labels_of(piece))

    def _call(self, name: str) -> Labels:
        grouped = (self._take(), self._names()) if self._next() != "(" else None
        assert self._take() == "("
        arguments = [self._operation(0)]
        while self._next() == ",":
            self._take()
            arguments.append(self._operation(0))
        assert self._take() == ")"
        labels = next(one for one in reversed(arguments) if one is not None)
        match name, grouped:
            case _, ("by", names):
                return names
            case _, ("without", names):
                return labels - names
            case ("absent", _):
                return Labels()
            case ("histogram_quantile", _):
                return labels - {"le"}
        return Labels() if name in _AGGREGATIONS else labels

    def _names(self) -> Labels:
        assert self._take() == "("
        names = set[str]()
        while (piece := self._take()) != ")":
            names |= {piece} - {","}
        return Labels(names)
