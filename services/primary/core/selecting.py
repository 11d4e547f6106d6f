"""Selectors of consumers and of bindings: which messages they are for.

Law: a message that cannot be asked (it was not sent by AMQP, or is malformed where the selector looks) is selected by none.
"""

from lockstep.core.amqp.selector import Selector, compile_selector
from lockstep.core.errors import Rejected

COMPILED_MAX = 4096
"""Selectors of bindings that are kept compiled: some megabytes."""
COST_BYTES = 64
"""Asking about a message costs as much as delivering one for each so many bytes of its properties: some microseconds. So a turn
of the default length (`delivery_turn_max`) with a selector takes well below a heartbeat, whatever the messages."""


def compiled(text: str) -> Selector | None:
    """The selector that `text` is, None if it is empty; raises `Rejected` INVALID_ARGUMENT."""
    return compile_selector(text) if text else None


def is_selected(selector: Selector, properties: bytes, delivery_count: int, is_durable: bool) -> bool:
    """Whether the selector matches a message. `delivery_count`: of deliveries that failed."""
    try:
        return selector.matches(properties, delivery_count, is_durable)
    except Rejected:
        return False


def cost_of(properties: bytes) -> int:
    """What asking about a message costs, in deliveries."""
    return 1 + len(properties) // COST_BYTES


class BindingSelectors:
    """Selectors of bindings, each compiled once. Lives as long as the epoch."""

    def __init__(self) -> None:
        self._compiled: dict[str, Selector | None] = {}

    def of(self, text: str) -> Selector | None:
        """The selector that `text` is; None if it is none: another version of this program took it for one."""
        if text not in self._compiled:
            if len(self._compiled) >= COMPILED_MAX:
                self._compiled.clear()
            try:
                self._compiled[text] = compile_selector(text)
            except Rejected:
                self._compiled[text] = None
        return self._compiled[text]
