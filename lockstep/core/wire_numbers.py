"""Numbers on the wire as members of their enums: those of a later version, too.

Law: numbers are added, never reused, so during an upgrade each side may be told one that it does not know. It takes that for a
member which says so, and goes on: an exception would end a stream, or leave whoever is answered without a word.
"""

from enum import Enum
from typing import TypeVar

from lockstep.core.errors import ErrorCode

_Kind = TypeVar("_Kind", bound=Enum)
_Other = TypeVar("_Other")
_CODES = {int(code): code for code in ErrorCode}


def error_code(number: int) -> ErrorCode:
    """Of that number; one that is not known here is ILLEGAL_STATE: an error, whichever."""
    return _CODES.get(number, ErrorCode.ILLEGAL_STATE)


def known(kind: type[_Kind], number: int, unknown: _Other) -> _Kind | _Other:
    """The member of that number; `unknown` where there is none."""
    try:
        return kind(number)
    except ValueError:
        return unknown
