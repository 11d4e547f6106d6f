"""Creation of a resource set: what is refused by name."""

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import BrokerId, Incarnation
from services.broker.core.set_creation import first_entry

REGISTERED = [BrokerId("B1"), BrokerId("B2"), BrokerId("B3")]
BY = Incarnation("process")


def test_a_new_set_has_never_been_served() -> None:
    entry = first_entry("orders", ["B2", "B1", "B3"], 0, REGISTERED, BY)
    assert (entry.epoch, entry.primary, entry.in_sync, entry.brokers) == (0, "", (), ("B2", "B1", "B3"))
    assert (entry.min_in_sync, entry.change, entry.changed_by) == (2, 1, BY)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 1), (3, 2)])
def test_the_default_minimum_is_one_up_to_two_brokers_and_two_beyond(count: int, expected: int) -> None:
    assert first_entry("orders", REGISTERED[:count], 0, REGISTERED, BY).min_in_sync == expected


@pytest.mark.parametrize("name", ["", "a/b", "-a", ".", "..", "a b", "ü", "x" * 65, "a\n"])
def test_names_that_are_no_key_or_directory_are_refused(name: str) -> None:
    with pytest.raises(Rejected) as caught:
        first_entry(name, ["B1"], 0, REGISTERED, BY)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("brokers", "minimum", "code"),
    [
        ([], 0, ErrorCode.INVALID_ARGUMENT),
        (["B1", "B1"], 0, ErrorCode.INVALID_ARGUMENT),
        (["B9"], 0, ErrorCode.NOT_FOUND),
        (["B1", "B2"], 3, ErrorCode.INVALID_ARGUMENT),
    ],
)
def test_impossible_brokers_and_minimums_are_refused(
    brokers: list[str], minimum: int, code: ErrorCode
) -> None:
    with pytest.raises(Rejected) as caught:
        first_entry("orders", brokers, minimum, REGISTERED, BY)
    assert caught.value.code is code
