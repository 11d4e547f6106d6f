"""Counting who refers to restored contents, in whatever order those who do are read."""

from itertools import permutations

import pytest

from lockstep.core.contents import Contents
from lockstep.core.ids import LogIndex, MessageId, place
from lockstep.core.item_values import encode
from lockstep.core.items import Changes
from lockstep.core.packed_messages import PackedMessages
from lockstep.core.records import Alike
from lockstep.core.restored_references import RestoredReferences
from tests.unit.lockstep.core.history import message

FIRST = MessageId(place(LogIndex(7), 0))
COUNT = 12


def ids(begin: int, end: int) -> range:
    return range(FIRST + begin, FIRST + end)


def restored(*, is_packed: bool) -> tuple[Contents, RestoredReferences]:
    """Of one record, none of them counted yet."""
    contents = Contents(Changes())
    references = RestoredReferences(contents)
    alike = Alike((), True, (1,) * COUNT)
    packed = PackedMessages(alike, encode([message((), b"x")] * COUNT))
    contents.load_run(FIRST, packed if is_packed else packed.unpack())
    references.loaded(ids(0, COUNT))  # type: ignore[arg-type]
    return contents, references


@pytest.mark.parametrize("order", list(permutations([(0, 4), (4, 9), (9, 12)])))
@pytest.mark.parametrize("is_packed", [True, False])
def test_parts_of_a_run_are_counted_once_in_any_order(
    order: tuple[tuple[int, int], ...], is_packed: bool
) -> None:
    contents, references = restored(is_packed=is_packed)
    for part in order:
        references.count(ids(*part), is_durable=True)  # type: ignore[arg-type]
    references.end()
    assert {contents.references(MessageId(number)) for number in ids(0, COUNT)} == {(1, 0)}


@pytest.mark.parametrize("is_packed", [True, False])
def test_parts_that_overlap_are_counted_as_often_as_they_are_referred_to(is_packed: bool) -> None:
    contents, references = restored(is_packed=is_packed)
    for part in [(6, 12), (0, 8), (0, 12)]:
        references.count(ids(*part), is_durable=True)  # type: ignore[arg-type]
    references.end()
    counted = [contents.references(MessageId(number)) for number in ids(0, COUNT)]
    assert counted == [(2, 0)] * 6 + [(3, 0)] * 2 + [(2, 0)] * 4


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_part_to_which_nobody_refers_is_found(is_packed: bool) -> None:
    _, references = restored(is_packed=is_packed)
    references.count(ids(0, 4), is_durable=True)  # type: ignore[arg-type]
    references.count(ids(5, 12), is_durable=True)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="1 contents without a reference"):
        references.end()
