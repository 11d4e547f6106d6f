"""Patterns of LIKE (JMS 2.0, 3.8.1.2): `_` is any character and `%` any number of them.

Law: what is between two `%` has a fixed length, and the first place where it fits is as good as any other. So pieces are looked
for from left to right, each by its literal runs: a run that is found further on moves the whole piece there, and what `_` stands
for is never looked at. Every search is paid for by the characters that it passed.
"""

from typing import NamedTuple

from lockstep.core.amqp.selector_row import Row

PATTERN_CHARS_MAX = 256
"""People write some ten characters."""
_CHARS_PER_STEP = 512
"""Of a value that are passed in a search, by those of the run (and two) that is looked for: the worst that a search does."""
_SEARCH_STEPS = 3
"""Of a search that ends at once."""


class Piece(NamedTuple):
    """What is between two `%`."""

    length: int
    runs: tuple[tuple[int, str], ...]
    """Literal runs with their offsets, the longest first; between them are `_`."""

    def fits(self, value: str, at: int) -> bool:
        """Whether the piece is there, in a value that is long enough."""
        return all(value.startswith(run, at + offset) for offset, run in self.runs)

    def find(self, value: str, at: int, end: int, row: Row) -> int:
        """The first place from `at` on where the piece is there and ends by `end`; -1: there is none."""
        while at + self.length <= end:
            for offset, run in self.runs:
                place = at + offset
                found = value.find(run, place, end - self.length + offset + len(run))
                passed = (end if found < 0 else found) - place
                row.spend(_SEARCH_STEPS + passed * (2 + len(run)) // _CHARS_PER_STEP)
                if found < 0:
                    return -1
                if found > place:
                    at = found - offset
                    break
            else:
                return at
        return -1


class LikePattern:
    """One pattern, made once; asked for each message."""

    def __init__(self, pattern: str, escape: str) -> None:
        """`escape` takes the meaning of the character behind it, "": there is none.

        Raises `ValueError` for one at the end, and for a pattern that is too long.
        """
        if len(pattern) > PATTERN_CHARS_MAX:
            raise ValueError(f"a pattern of more than {PATTERN_CHARS_MAX} characters")
        self._pieces = tuple(_piece(characters) for characters in _split(pattern, escape))

    def matches(self, value: str, row: Row) -> bool:
        """Whether the whole value is like the pattern; raises `TooCostly` when the row has paid all that it may."""
        pieces = self._pieces
        head, tail = pieces[0], pieces[-1]
        row.spend(len(head.runs) + len(tail.runs))
        if len(pieces) == 1:
            return len(value) == head.length and head.fits(value, 0)
        at, end = head.length, len(value) - tail.length
        if at > end or not head.fits(value, 0) or not tail.fits(value, end):
            return False
        for piece in pieces[1:-1]:
            found = piece.find(value, at, end, row)
            if found < 0:
                return False
            at = found + piece.length
        return True


def _split(pattern: str, escape: str) -> list[list[str | None]]:
    """What is between the `%` of a pattern: characters, None for any."""
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise ValueError("nothing behind the escape character")
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return pieces


def _piece(characters: list[str | None]) -> Piece:
    runs: list[tuple[int, str]] = []
    is_open = False
    for offset, character in enumerate(characters):
        if character is None:
            is_open = False
        elif is_open:
            start, run = runs[-1]
            runs[-1] = start, run + character
        else:
            runs.append((offset, character))
            is_open = True
    return Piece(len(characters), tuple(sorted(runs, key=lambda run: (-len(run[1]), run[0]))))
