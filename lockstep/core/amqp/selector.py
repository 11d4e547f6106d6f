"""Selector: which messages a consumer wants, as JMS writes it (JMS 2.0, 3.8.1).

Law: a text that compiles can be asked about any message; what it says of it is true, or the message is not selected.
"""

from lockstep.core.amqp.selector_fields import SelectorFields
from lockstep.core.amqp.selector_lexer import bad_selector
from lockstep.core.amqp.selector_parser import SelectorParser
from lockstep.core.amqp.selector_terms import Condition

SELECTOR_CHARS_MAX = 8192
"""People write a line. Programs list some hundred ids; this has room for two hundred of 36 characters."""


class Selector:
    """Lives as long as its consumer; keeps nothing of the messages that it is asked about."""

    __slots__ = ("_condition", "_fields", "text")

    def __init__(self, text: str, condition: Condition, fields: SelectorFields) -> None:
        self.text = text
        self._condition = condition
        self._fields = fields

    def matches(self, properties: bytes, delivery_count: int = 0, is_durable: bool | None = None) -> bool:
        """Whether a kept message is selected.

        `delivery_count` is of deliveries that failed; `is_durable` None: as the kept header says. Raises `Rejected` for
        properties that are malformed where the selector has to look.
        """
        return self._condition(self._fields.values(properties, delivery_count, is_durable)) is True

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def compile_selector(text: str) -> Selector:
    """Raises `Rejected` (INVALID_ARGUMENT), with the place as `at`, for a text that is no selector or is too long."""
    if len(text) > SELECTOR_CHARS_MAX:
        raise bad_selector(f"longer than {SELECTOR_CHARS_MAX} characters", SELECTOR_CHARS_MAX)
    parser = SelectorParser(text)
    condition = parser.parse()
    return Selector(text, condition, SelectorFields(parser.slots))
