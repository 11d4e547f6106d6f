"""Numbers on the wire as members of their enums: those of a later version, too.

Law: numbers are added, never reused, so during an upgrade each side may be told one that it does not know. It takes that for a
member which says so, and goes on: an exception would end a stream, or leave whoever is answered without a word.
"""

from enum import IntEnum
from typing import TypeVar

_Kind = TypeVar("_Kind", bound=IntEnum)


def known(kind: type[_Kind], number: int, unknown: _Kind) -> _Kind:
    """The member of that number; `unknown` where there is none."""
    try:
        return kind(number)
    except ValueError:
        return unknown
