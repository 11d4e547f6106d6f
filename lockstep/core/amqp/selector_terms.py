"""What a selector's operators say of values: SQL's logic of true, false and unknown (JMS 2.0, 3.8.1.2).

Law: evaluating never raises, and its work is bounded by the lengths of selector and values. NULL, and unknown, is None. Values of
different kinds are not equal and not unequal: comparing them is false. An arithmetic result that is no number, or no long where
both operands are exact, is NULL.
"""

import operator
import re
from collections.abc import Callable, Sequence
from typing import TypeGuard

from lockstep.core.amqp.encodings import Simple

Values = Sequence[Simple]
"""Of the identifiers of one selector in one message, by their slots."""
Term = Callable[[Values], Simple]
Condition = Callable[[Values], bool | None]

PATTERN_CHARS_MAX = 256
"""Of LIKE: what is looked for costs its length times the value's at worst. People write some ten characters."""
LIKE_CHARS_MAX = 65_535
"""Of a value that is compared by LIKE; for a longer one it is unknown."""

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_ORDERINGS: dict[str, Callable[[int | float, int | float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def literal(value: Simple) -> Term:
    return lambda _: value


def identifier(slot: int) -> Term:
    return operator.itemgetter(slot)


def truth(term: Term) -> Condition:
    """An identifier or boolean literal as a condition: what is not boolean is unknown."""

    def evaluate(values: Values) -> bool | None:
        value = term(values)
        return value if isinstance(value, bool) else None

    return evaluate


def negation(condition: Condition) -> Condition:
    def evaluate(values: Values) -> bool | None:
        value = condition(values)
        return None if value is None else not value

    return evaluate


def conjunction(conditions: Sequence[Condition]) -> Condition:
    return _all_but(conditions, False)


def disjunction(conditions: Sequence[Condition]) -> Condition:
    return _all_but(conditions, True)


def _all_but(conditions: Sequence[Condition], decisive: bool) -> Condition:
    """One that is `decisive` decides; else one that is unknown does."""

    def evaluate(values: Values) -> bool | None:
        result: bool | None = not decisive
        for condition in conditions:
            value = condition(values)
            if value is decisive:
                return value
            if value is None:
                result = None
        return result

    return evaluate


def comparison(sign: str, left: Term, right: Term) -> Condition:
    """`sign` is one of = <> < <= > >=; the last four are for numbers only."""
    if sign in ("=", "<>"):
        is_wanted = sign == "="

        def equate(values: Values) -> bool | None:
            first, second = left(values), right(values)
            if first is None or second is None:
                return None
            return _are_alike(first, second) and (first == second) is is_wanted

        return equate

    compare = _ORDERINGS[sign]

    def order(values: Values) -> bool | None:
        first, second = left(values), right(values)
        if first is None or second is None:
            return None
        return _is_number(first) and _is_number(second) and compare(first, second)

    return order


def _are_alike(first: Simple, second: Simple) -> bool:
    if isinstance(first, str):
        return isinstance(second, str)
    if isinstance(first, bool):
        return isinstance(second, bool)
    return _is_number(first) and _is_number(second)


def membership(term: Term, strings: frozenset[str]) -> Condition:
    def evaluate(values: Values) -> bool | None:
        value = term(values)
        return None if value is None else isinstance(value, str) and value in strings

    return evaluate


def is_null(term: Term) -> Condition:
    return lambda values: term(values) is None


def likeness(term: Term, pattern: str, escape: str) -> Condition:
    """`_` is any character and `%` any number of them, unless `escape` is before it.

    Raises `ValueError` for an `escape` at the end, and for a pattern that is too long.
    What is between two `%` has a fixed length and is looked for from left to right: never exponential, whatever the pattern.
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ValueError(f"a pattern of more than {PATTERN_CHARS_MAX} characters")
    pieces = [(re.compile("".join(piece), re.DOTALL), len(piece)) for piece in _pieces(pattern, escape)]
    head, tail = pieces[0], pieces[-1]

    def evaluate(values: Values) -> bool | None:
        value = term(values)
        if value is None:
            return None
        if not isinstance(value, str):
            return False
        if len(value) > LIKE_CHARS_MAX:
            return None
        if len(pieces) == 1:
            return head[0].fullmatch(value) is not None
        at, end = head[1], len(value) - tail[1]
        if at > end or not head[0].match(value) or not tail[0].match(value, end):
            return False
        for piece, _ in pieces[1:-1]:
            found = piece.search(value, at, end)
            if found is None:
                return False
            at = found.end()
        return True

    return evaluate


def _pieces(pattern: str, escape: str) -> list[list[str]]:
    """What is between the `%` of a pattern: for each character a regular expression of one character."""
    pieces: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise ValueError("nothing behind the escape character")
            pieces[-1].append(re.escape(escaped))
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if character == "_" else re.escape(character))
    return pieces


def arithmetic(first: Term, others: Sequence[tuple[str, Term]]) -> Term:
    """From left to right: each sign, one of + - * /, with the term behind it."""

    def evaluate(values: Values) -> Simple:
        result = first(values)
        for sign, term in others:
            result = _calculate(result, sign, term(values))
        return result

    return evaluate


def negative(term: Term) -> Term:
    return lambda values: _calculate(0, "-", term(values))


def positive(term: Term) -> Term:
    return lambda values: _calculate(0, "+", term(values))


def _calculate(first: Simple, sign: str, second: Simple) -> Simple:
    if not _is_number(first) or not _is_number(second):
        return None
    try:
        match sign:
            case "+":
                result = first + second
            case "-":
                result = first - second
            case "*":
                result = first * second
            case _:
                result = _quotient(first, second)
    except ZeroDivisionError:
        return None
    return None if isinstance(result, int) and not _LONG_MIN <= result <= _LONG_MAX else result


def _quotient(first: int | float, second: int | float) -> int | float:
    """Exact numbers give an exact one, cut towards zero."""
    if isinstance(first, int) and isinstance(second, int):
        result = abs(first) // abs(second)
        return result if (first < 0) == (second < 0) else -result
    return first / second


def _is_number(value: Simple) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
