"""What AMQP clients hear of errors."""

from lockstep.core.errors import ErrorCode, Rejected
from services.proxy.core.conditions import Condition, condition_of, condition_of_code


def test_every_code_has_a_condition() -> None:
    for code in ErrorCode:
        assert condition_of_code(code, "why").name.startswith("amqp:")


def test_a_condition_keeps_the_words() -> None:
    assert condition_of(Rejected(ErrorCode.QUEUE_FULL, "queue 'q' is full")) == Condition(
        "amqp:resource-limit-exceeded", "queue 'q' is full"
    )
