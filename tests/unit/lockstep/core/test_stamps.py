"""Stamps: which of them etcd lacks, and who has answered for its disk."""

import pytest

from lockstep.core.ids import BrokerId
from lockstep.core.stamps import NO_STAMPS, WRITERS_MAX, Stamp, Stamps, StampWriter

A, B = BrokerId("a"), BrokerId("b")


def of(*stamps: tuple[str, int, int]) -> Stamps:
    found = NO_STAMPS
    for stamp in stamps:
        found = found.stamped(Stamp(*stamp))
    return found


def test_an_etcd_that_was_set_back_lacks_a_stamp_whatever_was_written_there_since() -> None:
    remembered = Stamp("p", 3, 30)
    assert not of(("p", 3, 30)).lacks(remembered) and not of(("p", 4, 40), ("q", 1, 41)).lacks(remembered)
    set_back = of(("p", 2, 20))
    assert set_back.lacks(remembered) and NO_STAMPS.lacks(remembered)
    for number in range(1, WRITERS_MAX - 1):
        set_back = set_back.stamped(Stamp("q", number, 900 + number))
    assert set_back.lacks(remembered)


def test_of_a_writer_that_is_forgotten_nothing_can_be_told() -> None:
    stamps = of(("old", 7, 70), ("older", 1, 80))
    for number in range(WRITERS_MAX - 1):
        stamps = stamps.stamped(Stamp(f"w{number}", 1, 100 + number))
    assert len(stamps.stamps) == WRITERS_MAX and stamps.forgotten == 70
    assert not stamps.lacks(Stamp("old", 7, 70)) and not stamps.lacks(Stamp("older", 1, 80))
    assert stamps.lacks(Stamp("of another etcd", 1, 71)), "it would still be among them"


def test_nothing_is_lacking_to_who_remembers_none() -> None:
    assert not NO_STAMPS.lacks(None) and not of(("p", 1, 1)).lacks(None)
    assert NO_STAMPS.newest is None and of(("p", 1, 1), ("q", 1, 2)).newest == Stamp("q", 1, 2)


def test_who_is_called_is_silent_until_it_answers() -> None:
    stamps = NO_STAMPS.answered(B, "b1").answered(A, "a1")
    assert stamps.silent == () and stamps.called().silent == (A, B)
    called = stamps.called().answered(A, "a2")
    assert called.silent == (B,) and called.without(frozenset({"b1", "a1"})).silent == ()
    assert (
        (found := called.witness(A)) is not None
        and found.token == "a2"
        and called.witness(BrokerId("c")) is None
    )


def test_what_is_written_is_read() -> None:
    stamps = of(("p", 1, 5)).answered(A, "a1").called()
    assert Stamps.decode(stamps.encode()) == stamps and Stamps.decode(b"") == NO_STAMPS
    for bad in (b"{", b"[]", b'{"stamps": [[1]], "forgotten": 0, "witnesses": []}'):
        with pytest.raises(ValueError):
            Stamps.decode(bad)


def test_a_disk_keeps_a_stamp_as_text() -> None:
    stamp = Stamp("1a2b-3c", 12, 345)
    assert Stamp.decode(stamp.encode()) == stamp
    assert [Stamp.decode(text) for text in ("", "p", "p/1", "p/x/1", "p/1/")] == [None] * 5


def test_no_later_stamp_of_its_writer_hides_one_that_was_in_doubt() -> None:
    """Others may have seen it, in an etcd that was set back since; the writer has not."""
    writer = StampWriter("p")
    backup = NO_STAMPS.stamped(writer.next(NO_STAMPS, 10))
    lost = writer.next(backup, 20)
    writer.in_doubt()
    set_back = backup.stamped(writer.next(backup, 20))
    assert set_back.lacks(lost) and not set_back.lacks(backup.newest)
    assert set_back.stamped(writer.next(set_back, 30)).lacks(lost)


def test_a_writer_goes_on_behind_one_that_was_in_doubt_and_is_there() -> None:
    writer = StampWriter("p")
    first = writer.next(NO_STAMPS, 10)
    writer.in_doubt()
    second = writer.next(NO_STAMPS.stamped(first), 20)
    third = writer.next(NO_STAMPS, 30)
    assert [(one.writer, one.number) for one in (first, second, third)] == [("p", 1), ("p", 2), ("p", 3)]


@pytest.mark.parametrize(
    "text", ["", "p", "p/1", "p/x/1", "p/-1/1", f"p/{'9' * 5_000}/1", f"p/1/{'9' * 5_000}"]
)
def test_what_is_no_stamp_is_none(text: str) -> None:
    assert Stamp.decode(text) is None
