"""Columns of a batch on the wire: n values, or one for all, or none for all zero (`session.proto`).

Law: expanding what was packed gives the same values again; a column of any other length is refused.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TypeVar

from lockstep.core.errors import ErrorCode, Rejected

Value = TypeVar("Value")


def pack(values: Sequence[Value], zero: Value) -> Sequence[Value]:
    """The shortest column that says `values`."""
    if not values:
        return ()
    first = values[0]
    if values.count(first) == len(values):
        return () if first == zero else (first,)
    return values


def expand(column: Sequence[Value], count: int, zero: Value, name: str) -> Iterable[Value]:
    """The `count` values of a column; raises `Rejected` (INVALID_ARGUMENT) when its length is not 0, 1 or `count`."""
    match len(column):
        case 0:
            return repeat(zero, count)
        case 1:
            return repeat(column[0], count)
        case length if length == count:
            return column
        case length:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT,
                f"column {name} has {length} values for {count} messages",
                column=name,
                length=length,
                count=count,
            )
