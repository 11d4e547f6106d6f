"""Counts of things, as sentences say them."""


def counted(count: int, noun: str) -> str:
    """`1 message`, `1,200 messages`. `noun`: in the singular, with a plural in s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
