"""Selectors: which messages of a queue a consumer wants."""

from typing import Protocol

from lockstep.core.errors import ErrorCode, Rejected
from services.primary.core.settings import PrimarySettings


class Selector(Protocol):
    """A compiled selector."""

    def matches(self, properties: bytes, delivery_count: int = 0, is_durable: bool | None = None) -> bool: ...


def compile_for(text: str, settings: PrimarySettings) -> Selector | None:
    """The selector that a consumer asks for, None if it wants all; raises `Rejected`."""
    if not text:
        return None
    raise Rejected(ErrorCode.NOT_IMPLEMENTED, "no selectors yet")
