"""Outcomes that carry words: said through the public API, because they are rare."""

from typing import Any

from proton import Condition as ProtonCondition
from proton import Delivery, Described, Link, symbol, ulong

from services.proxy.core.conditions import Condition
from services.proxy.engine_path import path
from services.proxy.engine_words import Handle, StateCode

_ERROR = 0x1D
"""Descriptor of an error (2.8.14)."""
_TEXT_MAX = 400
"""Characters: a frame of 512 bytes is all that a peer has to take before the open."""


def reject(delivery: Handle, condition: Condition, transaction: bytes | None = None) -> None:
    """Rejected, with the reason, and settled. `transaction`: the one that it was posted in, of which the state tells (4.4.1)."""
    wrapped = path.wrapped(delivery)
    if transaction is None:
        wrapped.local.condition = proton_condition(condition)
        wrapped.update(Delivery.REJECTED)
    else:
        text = condition.description[:_TEXT_MAX]
        error = Described(ulong(_ERROR), [symbol(condition.name), text])
        fields: list[Any] = [transaction, Described(ulong(StateCode.REJECTED), [error])]
        wrapped.local.data = fields
        wrapped.update(StateCode.TRANSACTIONAL)
    wrapped.settle()


def proton_condition(condition: Condition, info: Any = None) -> ProtonCondition:
    """As Proton wants it."""
    return ProtonCondition(condition.name, condition.description[:_TEXT_MAX], info)


def end_link(link: Link, condition: Condition | None) -> None:
    """Closes a link, with the reason if there is one."""
    if condition is not None:
        link.condition = proton_condition(condition)
    link.close()
