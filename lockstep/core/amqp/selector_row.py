"""Row: what the identifiers of one selector are in one message, and what asking about it may still cost.

Law: whoever does work that grows with a value's length or with how much a message carries pays for it here, before or right after
each piece that is short by itself. So no evaluation lasts for longer than its steps, whatever selector and message are.
"""

from lockstep.core.amqp.encodings import Simple
from lockstep.core.errors import ErrorCode, LimitReached

EVALUATION_STEPS_MAX = 50_000
"""What asking one selector about one message may cost: some milliseconds. A usual one takes some ten steps."""


class TooCostly(LimitReached):
    """Asking a selector about a message would take more than it may."""

    def __init__(self) -> None:
        text = f"a selector takes more than {EVALUATION_STEPS_MAX} steps to be compared with a message"
        super().__init__("evaluation_steps_max", ErrorCode.TOO_LARGE, text, steps_max=EVALUATION_STEPS_MAX)


class Row(list[Simple]):
    """Values by their identifiers' slots, None for what the message has not; lives for one evaluation.

    A step is what the simplest term takes, about 0.1 us.
    """

    __slots__ = ("left",)

    def __init__(self, count: int, steps: int = EVALUATION_STEPS_MAX) -> None:
        super().__init__((None,) * count)
        self.left = steps

    def spend(self, steps: int) -> None:
        """So many steps are taken; raises `TooCostly` when there are no more."""
        self.left -= steps
        if self.left < 0:
            raise TooCostly
