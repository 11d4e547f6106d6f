"""SASLprep: one form for user names and passwords that look the same (RFC 4013, over Unicode 3.2 as RFC 3454 has it).

Law: what is prepared stays as it is when it is prepared again, and a text that may not be a name or password has no form.
"""

import stringprep
from unicodedata import ucd_3_2_0

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str, *, is_stored: bool = False) -> str:
    """The prepared form of a name or password.

    `is_stored`: it is about to be kept, so characters that Unicode 3.2 did not know are refused too (RFC 3454, 7): their form
    might change. Raises `ValueError`, without the text in its message: it may be a password.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = ucd_3_2_0.normalize("NFKC", mapped)
    for character in prepared:
        if any(is_in(character) for is_in in _PROHIBITED):
            raise ValueError("a character that names and passwords may not have")
        if is_stored and stringprep.in_table_a1(character):
            raise ValueError("a character that is too new for names and passwords")
    _check_direction(prepared)
    return prepared


def _check_direction(prepared: str) -> None:
    """RFC 3454, 6: text that runs from right to left begins and ends so, and has nothing of the other direction."""
    if not any(map(stringprep.in_table_d1, prepared)):
        return
    if any(map(stringprep.in_table_d2, prepared)):
        raise ValueError("characters of both directions")
    if not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])):
        raise ValueError("text from right to left begins and ends with a letter of that direction")
