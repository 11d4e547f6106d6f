"""What a selector's operators say of values: SQL's logic of true, false and unknown (JMS 2.0, 3.8.1.2).

Law: evaluating raises nothing but `TooCostly`, and its work is bounded by what the row may spend. NULL, and unknown, is None.
Values of different kinds are not equal and not unequal: comparing them is false. An arithmetic result that is no number, or no
long where both operands are exact, is NULL.
"""

import operator
from collections.abc import Callable, Sequence
from typing import TypeGuard

from lockstep.core.amqp.encodings import Simple
from lockstep.core.amqp.like_pattern import LikePattern
from lockstep.core.amqp.selector_row import Row

Term = Callable[[Row], Simple]
Condition = Callable[[Row], bool | None]

_LONG_STRING = 4096
"""Comparing strings up to here costs as much as any other comparison."""
_CHARS_PER_STEP = 1000
"""Of longer ones that are compared."""
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

    def evaluate(values: Row) -> bool | None:
        value = term(values)
        return value if isinstance(value, bool) else None

    return evaluate


def negation(condition: Condition) -> Condition:
    def evaluate(values: Row) -> bool | None:
        value = condition(values)
        return None if value is None else not value

    return evaluate


def conjunction(conditions: Sequence[Condition]) -> Condition:
    return _all_but(conditions, False)


def disjunction(conditions: Sequence[Condition]) -> Condition:
    return _all_but(conditions, True)


def _all_but(conditions: Sequence[Condition], decisive: bool) -> Condition:
    """One that is `decisive` decides; else one that is unknown does."""

    def evaluate(values: Row) -> bool | None:
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

        def equate(values: Row) -> bool | None:
            first, second = left(values), right(values)
            if first is None or second is None:
                return None
            if isinstance(first, str) and len(first) > _LONG_STRING:
                values.spend(len(first) // _CHARS_PER_STEP)
            return _are_alike(first, second) and (first == second) is is_wanted

        return equate

    compare = _ORDERINGS[sign]

    def order(values: Row) -> bool | None:
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
    def evaluate(values: Row) -> bool | None:
        value = term(values)
        return None if value is None else isinstance(value, str) and value in strings

    return evaluate


def is_null(term: Term) -> Condition:
    return lambda values: term(values) is None


def likeness(term: Term, pattern: str, escape: str) -> Condition:
    """Whether a value is like a pattern of LIKE; raises `ValueError` for what is none (`LikePattern`)."""
    like = LikePattern(pattern, escape)

    def evaluate(values: Row) -> bool | None:
        value = term(values)
        if value is None:
            return None
        if not isinstance(value, str):
            return False
        if len(value) > LIKE_CHARS_MAX:
            return None
        return like.matches(value, values)

    return evaluate


def arithmetic(first: Term, others: Sequence[tuple[str, Term]]) -> Term:
    """From left to right: each sign, one of + - * /, with the term behind it."""

    def evaluate(values: Row) -> Simple:
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
