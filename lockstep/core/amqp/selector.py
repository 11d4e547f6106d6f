"""Selector: which messages a consumer wants, as JMS writes it (JMS 2.0, 3.8.1).

Law: a text that compiles can be asked about any message; what it says of it is true, or the message is not selected. Asking costs
what it costs, and never more than `EVALUATION_STEPS_MAX`.
"""

from typing import NamedTuple

from lockstep.core.amqp.selector_fields import SelectorFields
from lockstep.core.amqp.selector_lexer import bad_selector
from lockstep.core.amqp.selector_parser import SelectorParser
from lockstep.core.amqp.selector_row import EVALUATION_STEPS_MAX
from lockstep.core.amqp.selector_terms import Condition

SELECTOR_CHARS_MAX = 8192
"""People write a line. Programs list some hundred ids; this has room for two hundred of 36 characters."""


class Asked(NamedTuple):
    """What a selector says of a message."""

    is_selected: bool
    steps: int
    """What it cost; a step is about 0.1 us."""


class Selector:
    """Lives as long as its consumer; keeps nothing of the messages that it is asked about."""

    __slots__ = ("_condition", "_fields", "_terms", "text")

    def __init__(self, text: str, condition: Condition, fields: SelectorFields, terms: int) -> None:
        """`terms`: how many there are in it, about."""
        self.text = text
        self._condition = condition
        self._fields = fields
        self._terms = terms

    def ask(
        self,
        properties: bytes,
        delivery_count: int = 0,
        is_durable: bool | None = None,
        steps_max: int = EVALUATION_STEPS_MAX,
    ) -> Asked:
        """Whether a kept message is selected.

        `delivery_count` is of deliveries that failed; `is_durable` None: as the kept header says. Raises `Rejected` for
        properties that are malformed where the selector has to look, and `TooCostly` beyond `steps_max`.
        """
        values = self._fields.values(properties, delivery_count, is_durable, steps_max)
        values.spend(self._terms)
        is_selected = self._condition(values) is True
        return Asked(is_selected, steps_max - values.left)

    def matches(self, properties: bytes, delivery_count: int = 0, is_durable: bool | None = None) -> bool:
        """As `ask`, whatever it costs."""
        return self.ask(properties, delivery_count, is_durable).is_selected

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def compile_selector(text: str) -> Selector:
    """Raises `Rejected` (INVALID_ARGUMENT), with the place as `at`, for a text that is no selector or is too long."""
    if len(text) > SELECTOR_CHARS_MAX:
        raise bad_selector(f"longer than {SELECTOR_CHARS_MAX} characters", SELECTOR_CHARS_MAX)
    parser = SelectorParser(text)
    condition = parser.parse()
    return Selector(text, condition, SelectorFields(parser.slots), parser.length)
