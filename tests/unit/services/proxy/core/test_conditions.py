"""What AMQP clients hear of errors."""

from lockstep.core.errors import ErrorCode, Rejected
from services.proxy.core.conditions import Condition, condition_of, condition_of_code, ends_connection


def test_every_code_has_a_condition() -> None:
    for code in ErrorCode:
        assert condition_of_code(code, "why").name.startswith("amqp:")


def test_a_condition_keeps_the_words() -> None:
    assert condition_of(Rejected(ErrorCode.QUEUE_FULL, "queue 'q' is full")) == Condition(
        "amqp:resource-limit-exceeded", "queue 'q' is full"
    )


def test_a_command_that_primaries_die_over_is_rejected_for_good_and_its_connection_goes_on() -> None:
    refused = Rejected(ErrorCode.POISON, "3 primaries in a row ended when they had this command")
    assert condition_of(refused) == Condition("amqp:internal-error", refused.message)
    assert not ends_connection(refused)
