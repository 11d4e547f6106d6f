"""The account of attempts: what it finds wrong."""

import pytest

from tests.chaos.account import Account, Attempt, Shown


def account(is_committed: bool | None) -> Account:
    """Of one attempt, which published two numbers."""
    found = Account()
    bodies = frozenset((b"1", b"2"))
    found.attempts[found.next_mark()] = Attempt(bodies, False, transaction=None, is_committed=is_committed)
    return found


BOTH: list[Shown] = [(b"1", [b"1"]), (b"2", [b"1"])]


@pytest.mark.parametrize("is_committed", [True, None])
def test_an_attempt_that_is_in_all_outputs_is_there(is_committed: bool | None) -> None:
    assert [is_there for _, is_there in account(is_committed).compare((BOTH, BOTH))] == [True]


@pytest.mark.parametrize("is_committed", [False, None])
def test_an_attempt_that_is_nowhere_is_not_there(is_committed: bool | None) -> None:
    assert [is_there for _, is_there in account(is_committed).compare(([], []))] == [False]


@pytest.mark.parametrize(
    ("is_committed", "outputs", "words"),
    [
        (False, (BOTH, BOTH), "heard otherwise"),
        (True, ([], []), "heard otherwise"),
        (None, (BOTH, BOTH[:1]), "torn"),
        (None, (BOTH[:1], BOTH[:1]), "torn"),
        (None, (BOTH, []), "torn"),
        (None, ([(b"1", [b"7"])], []), "marks of nobody"),
    ],
)
def test_what_is_wrong_is_found(
    is_committed: bool | None, outputs: tuple[list[Shown], list[Shown]], words: str
) -> None:
    with pytest.raises(AssertionError, match=words):
        list(account(is_committed).compare(outputs))


def test_marks_of_two_workloads_differ() -> None:
    """Their messages may lie in one log, and have the same numbers: what one client heard is not said of the other's."""
    one, two = Account("one"), Account("two")
    assert {one.next_mark(), one.next_mark()}.isdisjoint({two.next_mark(), two.next_mark()})
