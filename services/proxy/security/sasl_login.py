"""What every SASL mechanism is to the layer that runs it: one login.

Law: a step never raises, whatever the client sent; and why it refused is for the log, without any secret, while the client
hears only that it was refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from services.proxy.security.identity import Identity


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to answer this."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is who it says."""

    identity: Identity
    additional_data: bytes = field(default=b"", repr=False)
    """For the outcome (AMQP 1.0, 5.3.3.6)."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The client is not let in."""

    reason: str


Step = Challenge | Accepted | Refused

WRONG_CREDENTIALS = Refused("wrong name or password")
"""The same for both: it does not say which names there are."""


class SaslLogin(Protocol):
    """One login by one mechanism; ends with the first step that is no challenge."""

    def step(self, response: bytes | None) -> Step:
        """`response`: the client's, at first the initial response, which may be left out (None)."""


SaslMechanism = Callable[[], SaslLogin]
"""Begins a login."""
