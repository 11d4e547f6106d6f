"""Outcomes that carry words: said through the public API, because they are rare."""

from typing import Any

from proton import Condition as ProtonCondition
from proton import Delivery, Link

from services.proxy.core.conditions import Condition
from services.proxy.engine_path import path
from services.proxy.engine_words import Handle

_TEXT_MAX = 400
"""Characters: a frame of 512 bytes is all that a peer has to take before the open."""


def reject(delivery: Handle, condition: Condition) -> None:
    """Rejected, with the reason, and settled."""
    wrapped = path.wrapped(delivery)
    wrapped.local.condition = proton_condition(condition)
    wrapped.update(Delivery.REJECTED)
    wrapped.settle()


def proton_condition(condition: Condition, info: Any = None) -> ProtonCondition:
    """As Proton wants it."""
    return ProtonCondition(condition.name, condition.description[:_TEXT_MAX], info)


def end_link(link: Link, condition: Condition | None) -> None:
    """Closes a link, with the reason if there is one."""
    if condition is not None:
        link.condition = proton_condition(condition)
    link.close()
