"""Roll calls: when nobody remembers more of etcd than it has."""

from lockstep.core.ids import BrokerId
from lockstep.core.roll_call import VALID_MS, RollCall
from lockstep.core.stamps import NO_STAMPS, Stamps

A, B = BrokerId("a"), BrokerId("b")
TWO = NO_STAMPS.answered(A, "a1").answered(B, "b1")


def called(roll_call: RollCall, stamps: Stamps, now_ms: int = 0) -> Stamps:
    asked = roll_call.call(stamps, 50, now_ms)
    assert asked is not None
    roll_call.called(asked[0], now_ms)
    return asked[1]


def test_what_was_read_before_a_call_of_its_own_is_no_answer() -> None:
    """An etcd that was restored has the answers of its former life."""
    roll_call = RollCall("p")
    assert not roll_call.is_answered(TWO, 0)
    stamps = called(roll_call, TWO)
    assert stamps.silent == (A, B) and not roll_call.is_answered(stamps, 0)
    stamps = stamps.answered(A, "a1")
    assert not roll_call.is_answered(stamps, 0)
    assert roll_call.is_answered(stamps.answered(B, "b2"), 0)


def test_a_call_is_believed_for_a_while_and_only_where_it_stands() -> None:
    roll_call = RollCall("p")
    stamps = called(roll_call, TWO).answered(A, "a1").answered(B, "b1")
    assert roll_call.is_answered(stamps, VALID_MS) and not roll_call.is_answered(stamps, VALID_MS + 1)
    assert not roll_call.is_answered(TWO, 1), "etcd was set back behind the call"
    assert not RollCall("q").is_answered(stamps, 1), "another's call is no call of its own"


def test_nobody_is_called_twice_before_he_has_answered() -> None:
    roll_call = RollCall("p")
    stamps = called(roll_call, TWO)
    assert roll_call.call(stamps, 60, VALID_MS + 1) is None
    answered = stamps.answered(A, "a1").answered(B, "b1")
    assert roll_call.call(answered, 60, 0) is None
    again = roll_call.call(answered, 60, VALID_MS + 1)
    assert again is not None and again[0].number == 2


def test_without_any_witness_nobody_remembers_anything() -> None:
    assert RollCall("p").is_answered(NO_STAMPS, 0) and RollCall("p").call(NO_STAMPS, 1, 0) is None


def test_a_second_call_does_not_hide_a_first_one_in_doubt() -> None:
    roll_call = RollCall("p")
    asked = roll_call.call(TWO, 50, 0)
    roll_call.in_doubt()
    again = roll_call.call(TWO, 50, 0)
    assert asked is not None and again is not None
    assert again[1].lacks(asked[0]), "it may stand in an etcd that was set back behind it"
