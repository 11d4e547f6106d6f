"""Asides: what is said of a message beside what was sent and how often it was delivered. Few have one."""

import msgspec

from lockstep.core.deaths import Deaths
from lockstep.core.priority_levels import PRIORITY_DEFAULT


class Aside(msgspec.Struct, frozen=True, gc=False):
    """Of one message. One that says nothing is left out."""

    deaths: Deaths = ()
    """Of a dead letter: why it is one."""
    annotations: bytes = b""
    """What was said of it by those who gave it back: AMQP's keys and values in turn, encoded."""
    priority: int = PRIORITY_DEFAULT


PLAIN = Aside()
"""Of a message without one."""
