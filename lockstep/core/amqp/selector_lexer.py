"""The words of a JMS selector (JMS 2.0, 3.8.1.1): what each is, and where.

Law: every character of the text belongs to one token or to white space, else the text is rejected with the place.
"""

import math
import re
from enum import Enum
from typing import NamedTuple

from lockstep.core.errors import ErrorCode, Rejected

LONG_MAX = 2**63 - 1
_INTEGER_CHARS_MAX = 24
"""Of an integer that may be a long, in any base; conversion of longer ones is not even tried."""

KEYWORDS = frozenset(["AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"])
"""In any case, and never identifiers."""

_TOKEN = re.compile(
    r"""
      (?P<string> '(?:[^']|'')*+' )
    | (?P<real>   (?: [0-9]++\.[0-9]*+ (?:[eE][+-]?[0-9]++)? | \.[0-9]++ (?:[eE][+-]?[0-9]++)? | [0-9]++[eE][+-]?[0-9]++ )
                  [fFdD]? (?![\w$]) | [0-9]++[fFdD] (?![\w$]) )
    | (?P<integer> (?: 0[xX][0-9a-fA-F]++ | [0-9]++ ) [lL]? (?![\w$]) )
    | (?P<name>   (?: [^\W\d] | \$ ) [\w$]*+ )
    | (?P<sign>   <> | <= | >= | [=<>+\-*/(),] )
    """,
    re.VERBOSE,
)
_WHITE_SPACE = re.compile(r"[ \t\f\r\n]*")


class Kind(Enum):
    """What a token is."""

    STRING = "string"
    NUMBER = "number"
    NAME = "name"
    KEYWORD = "keyword"
    """Or an operator, or punctuation."""
    END = "end"


class Token(NamedTuple):
    kind: Kind
    value: str | int | float
    """A literal's value, an identifier as it is written, a keyword in capital letters."""
    at: int
    """Characters before it."""


def bad_selector(why: str, at: int) -> Rejected:
    """What is raised for a text that is no selector; `at` counts characters."""
    return Rejected(ErrorCode.INVALID_ARGUMENT, f"bad selector: {why} at character {at}", at=at)


def tokens_of(text: str) -> list[Token]:
    """All tokens, and an END behind them. Raises `Rejected` for what is none."""
    tokens = []
    at = _skip_white_space(text, 0)
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise bad_selector("a string without end" if text[at] == "'" else "no word or sign", at)
        tokens.append(_token(found.lastgroup or "", found[0], at))
        at = _skip_white_space(text, found.end())
    tokens.append(Token(Kind.END, "the end", at))
    return tokens


def _skip_white_space(text: str, at: int) -> int:
    found = _WHITE_SPACE.match(text, at)
    assert found is not None
    return found.end()


def _token(group: str, word: str, at: int) -> Token:
    match group:
        case "string":
            return Token(Kind.STRING, word[1:-1].replace("''", "'"), at)
        case "real":
            return Token(Kind.NUMBER, _real(word, at), at)
        case "integer":
            return Token(Kind.NUMBER, _integer(word, at), at)
        case "name" if word.upper() not in KEYWORDS:
            return Token(Kind.NAME, word, at)
        case _:
            return Token(Kind.KEYWORD, word.upper(), at)


def _real(word: str, at: int) -> float:
    value = float(word.rstrip("fFdD"))
    if math.isinf(value):
        raise bad_selector("a number beyond the range of double", at)
    return value


def _integer(word: str, at: int) -> int:
    """Decimal, hexadecimal or octal, as in Java. One more than the largest long is let through: it may be negated."""
    digits = word.rstrip("lL").lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    digits = digits.removeprefix("0x").lstrip("0") or "0"
    try:
        value = int(digits, base) if len(digits) <= _INTEGER_CHARS_MAX else LONG_MAX + 2
    except ValueError:
        raise bad_selector("an octal number with other digits", at) from None
    if value > LONG_MAX + 1:
        raise bad_selector("a number beyond the range of long", at)
    return value
