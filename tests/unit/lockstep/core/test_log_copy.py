"""A replica's copy of the log: where two logs agree, what is applied, what is cut, what is kept (DESIGN 3, R5, R8, R11)."""

from collections import deque
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.epoch_table import EpochStarts, LogOutline, Reigns, agreement
from lockstep.core.frames import BadFrame, Frame
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.log_copy import CannotApply, LogCopy
from lockstep.core.records import DeclareQueue
from lockstep.core.set_state import SetState
from tests.unit.services.replicas import SET, copy_of, frame, frames, session_record

Log = tuple[int, ...]
"""The epoch of the record at each index from 1 on: that is its content, for (index, epoch) names one (DESIGN 3)."""


def table(log: Log) -> EpochStarts:
    return tuple(
        (Epoch(epoch), LogIndex(place + 1))
        for place, epoch in enumerate(log)
        if place == 0 or log[place - 1] != epoch
    )


def outline(log: Log) -> LogOutline:
    return LogOutline(table(log), LogIndex(len(log)))


def in_common(one: Log, other: Log) -> int:
    """Record by record."""
    common = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        common += 1
    return common


@st.composite
def logs(draw: st.DrawFn) -> list[Log]:
    """All logs that a history leaves behind: every epoch begins from a prefix of one that is there and writes what it writes."""
    found: list[Log] = [()]
    for epoch in range(1, draw(st.integers(1, 6)) + 1):
        base = draw(st.sampled_from(found))
        kept = draw(st.integers(0, len(base)))
        written = base[:kept] + (epoch,) * draw(st.integers(0, 4))
        # Replicas may have got any part of it.
        found += [written, written[: draw(st.integers(kept, len(written)))]]
    return found


@given(logs(), st.data())
def test_logs_agree_as_far_as_a_comparison_of_all_records_says(found: list[Log], data: st.DataObject) -> None:
    one, other = data.draw(st.sampled_from(found)), data.draw(st.sampled_from(found))
    agreed = agreement(outline(one), outline(other))
    assert agreed == in_common(one, other)


@given(logs(), st.data())
def test_a_table_that_begins_late_says_no_more_and_the_same_where_it_has_begun(
    found: list[Log], data: st.DataObject
) -> None:
    one, other = data.draw(st.sampled_from(found)), data.draw(st.sampled_from(found))
    late = table(one)[data.draw(st.integers(0, len(table(one)))) :]
    agreed = agreement(LogOutline(late, LogIndex(len(one))), outline(other))
    common = in_common(one, other)
    assert agreed <= common
    if late and common >= late[0][1]:
        assert agreed == common


EPOCH_TWICE: EpochStarts = ((Epoch(1), LogIndex(1)), (Epoch(2), LogIndex(4)))


@pytest.mark.parametrize(
    ("other", "agreed"),
    [
        (((1, 1), (2, 7)), 3),
        (((1, 1), (2, 7), (3, 20)), 3),
        (((1, 1), (2, 3)), 2),
        (((2, 7),), 9),
        (((2, 3),), 0),
    ],
)
def test_an_epoch_that_has_begun_twice_is_no_agreement(
    other: tuple[tuple[int, int], ...], agreed: int
) -> None:
    """An etcd that was set back does not know that it was begun before. A table that begins amid an epoch says no more."""
    theirs = tuple((Epoch(epoch), LogIndex(first)) for epoch, first in other)
    for one, another in ((EPOCH_TWICE, theirs), (theirs, EPOCH_TWICE)):
        assert agreement(LogOutline(one, LogIndex(9)), LogOutline(another, LogIndex(9))) == agreed


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        ({1: 5, 2: 6}, {1: 5, 2: 6}, 9),
        ({1: 5, 2: 6}, {1: 5, 2: 7}, 3),
        ({1: 5, 2: 6}, {1: 4, 2: 6}, 0),
        ({1: 5, 2: 6}, {}, 9),
        ({1: 5}, {2: 7}, 9),
    ],
)
def test_an_epoch_that_has_begun_twice_at_one_index_is_told_by_its_reigns(
    ours: dict[int, int], theirs: dict[int, int], agreed: int
) -> None:
    """Where both are known: logs of earlier versions have none."""
    one, other = (LogOutline(EPOCH_TWICE, LogIndex(9), reigns(known)) for known in (ours, theirs))
    assert agreement(one, other) == agreement(other, one) == agreed


def reigns(known: dict[int, int]) -> Reigns:
    return tuple((Epoch(epoch), reign) for epoch, reign in known.items())


def test_a_copy_knows_the_epochs_of_its_suffix_too() -> None:
    copy = copy_of(*frames(1, 1, 2), *frames(3, 3, 4), *frames(4, 5, 5), commit=3)
    assert copy.outline() == (((1, 1), (3, 3), (4, 5)), 5, ())
    copy.cut(LogIndex(4))
    assert copy.outline() == (((1, 1), (3, 3)), 4, ())


class Looked(deque[Frame]):
    """Counts the frames that somebody looks at."""

    looks = 0

    def __getitem__(self, place: int) -> Frame:  # type: ignore[override]
        self.looks += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Frame]:
        for found in super().__iter__():
            self.looks += 1
            yield found


def test_the_epochs_of_a_long_suffix_are_found_without_a_look_at_each_frame() -> None:
    copy = copy_of(*frames(1, 1, 300), *frames(2, 301, 301), *frames(7, 302, 1_000), commit=3)
    copy.suffix = looked = Looked(copy.suffix)
    assert copy.outline() == (((1, 1), (2, 301), (7, 302)), 1_000, ())
    assert looked.looks < 60


def test_a_copy_knows_the_reigns_of_its_suffix_and_of_what_is_applied() -> None:
    copy = copy_of(frame(1, 1, reign=7), frame(3, 2, reign=8), frame(4, 3), commit=2)
    assert copy.outline().reigns == ((1, 7), (3, 8))
    assert list(copy.forget_transients())
    assert copy.outline().reigns == ((1, 7), (3, 8))
    copy.cut(LogIndex(2))
    copy.append(frame(5, 3, reign=9))
    assert copy.outline().reigns == ((1, 7), (3, 8), (5, 9))


def test_only_what_is_committed_is_applied() -> None:
    """R11."""
    copy = copy_of(*frames(1, 1, 5), commit=2)
    assert (copy.state.applied, copy.log_end) == (2, 5)
    copy.commit(LogIndex(9))
    assert copy.state.applied == 5
    copy.append(frame(1, 6))
    copy.commit(LogIndex(1))
    assert (copy.commit_index, copy.state.applied) == (9, 6)


def test_who_applies_may_do_something_else_before_each_transaction() -> None:
    copy, places = copy_of(*frames(1, 1, 5), commit=2), list[int]()
    copy.commit(LogIndex(5), lambda: places.append(copy.state.applied))
    assert places == [2, 3, 4]
    assert copy.state.applied == 5


def test_what_is_applied_is_never_cut() -> None:
    copy = copy_of(*frames(1, 1, 5), commit=3)
    copy.cut(LogIndex(3))
    assert copy.log_end == 3
    with pytest.raises(AssertionError):
        copy.cut(LogIndex(2))


def test_a_frame_that_leaves_a_gap_is_none_and_changes_nothing() -> None:
    copy = copy_of(*frames(1, 1, 2))
    with pytest.raises(BadFrame, match="does not follow 2"):
        copy.append(frame(1, 4))
    assert copy.log_end == 2


@pytest.mark.parametrize("is_all_at_once", [True, False])
@pytest.mark.parametrize("is_memory_short", [True, False])
def test_what_cannot_be_applied_is_named_unless_memory_lacked_which_says_nothing_of_it(
    is_memory_short: bool, is_all_at_once: bool
) -> None:
    copy, error = copy_of(*frames(1, 1, 3)), MemoryError() if is_memory_short else KeyError(7)

    def fail() -> None:
        raise error

    apply = partial(copy.apply_at_once, cost_max=1000) if is_all_at_once else copy.apply_to
    with pytest.raises(MemoryError if is_memory_short else CannotApply) as raised:
        apply(LogIndex(3), between=fail)
    if isinstance(raised.value, CannotApply):
        assert raised.value.first == 1 and str(raised.value) == "frame 1..1 cannot be applied: KeyError(7)"


def test_frames_are_kept_up_to_a_limit_but_never_less_than_the_uncommitted_ones() -> None:
    copy = LogCopy(SetState(SET), LogIndex(0), 1)
    for each in frames(1, 1, 6):
        copy.append(each)
    copy.commit(LogIndex(3))
    assert [each.header.last for each in copy.frames_after(LogIndex(0))] == [4, 5, 6]
    copy.apply_to(LogIndex(6))
    assert [each.header.last for each in copy.frames_after(LogIndex(0))] == [4, 5, 6]


def test_durable_parts_alone_leave_the_rest_to_a_memory_snapshot() -> None:
    copy = copy_of(*frames(1, 1, 2), frame(1, 3, session_record()))
    copy.apply_to(LogIndex(3), is_durable_only=True)
    assert copy.state.applied == 3
    assert copy.state.sessions.by_key == {}


def test_a_cut_leaves_a_frame_of_which_a_part_is_applied_as_it_is_and_knows_its_epoch() -> None:
    many = [(DeclareQueue(None, f"q{number}", True), True) for number in range(300)]
    copy = copy_of(frame(1, 1, *many, reign=7), *frames(1, 301, 302))
    copy.learn(LogIndex(300))
    next(copy.apply_in_steps(LogIndex(300)))
    assert copy.is_amid_frame and copy.state.applied < 300
    copy.cut(LogIndex(300))
    assert copy.is_amid_frame and copy.outline() == (((1, 1),), 300, ((1, 7),))
    copy.apply_to(LogIndex(300))
    assert copy.state.applied == copy.log_end == 300
