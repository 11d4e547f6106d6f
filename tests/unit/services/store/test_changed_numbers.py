"""What changed between two writes, against sets; and in which blocks numbers are, against a dict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.ids import LogIndex, MessageId, message_ids_from, place
from services.store.core.block_places import BlockPlaces, KeptBlock
from services.store.core.changed_numbers import ChangedNumbers

WRITTEN = LogIndex(10)


def ids(*numbers: int) -> tuple[MessageId, ...]:
    return tuple(map(MessageId, numbers))


@pytest.mark.fuzz
@given(st.data())
def test_what_changed_is_new_or_was_there(data: st.DataObject) -> None:
    """As a state tells it: what comes and goes together as a range, all else alone."""
    changed = ChangedNumbers[MessageId]()
    new: set[int] = set()
    gone: set[int] = set()
    others: set[int] = set()
    for index in range(5, 17):
        is_new = index > WRITTEN
        run = message_ids_from(LogIndex(index), data.draw(st.integers(0, 3)), data.draw(st.integers(4, 9)))
        if is_new:
            changed.add(run)
            new.update(run)
        if data.draw(st.booleans()):
            begin, length = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 9))
            changed.add(run[begin : begin + length])
            if not is_new:
                gone.update(run[begin : begin + length])
        for number in data.draw(st.lists(st.sampled_from([*run, MessageId(place(index, 50))]), max_size=3)):
            changed.add((number,))
            (new if is_new else others).add(number)
    told = new | gone | others
    assert (len(changed) == 0) == (not told) and len(changed) >= len(told)
    taken = changed.take(WRITTEN)
    assert [number for numbers in taken.new for number in numbers] == sorted(new)
    assert {number for numbers in taken.gone for number in numbers} == gone
    assert taken.others == sorted(others)
    assert len(changed) == 0 and changed.take(WRITTEN) == ([], [], [])


def test_what_went_again_before_it_was_written_is_not_named_twice() -> None:
    changed = ChangedNumbers[MessageId]()
    run = message_ids_from(LogIndex(11), 0, 10)
    for numbers in (run, run[:4], run[4:], (run[2],)):
        changed.add(numbers)
    assert changed.take(WRITTEN) == ([run], [], [])


@pytest.mark.fuzz
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=9), st.data())
def test_numbers_are_found_in_their_blocks(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    """Behind a block may be numbers that are in none; a block may be named by what lies behind its last."""
    places, where, number = BlockPlaces[MessageId](), dict[int, int](), 0
    for size, gap in sizes:
        number += gap
        inside = [*range(number, number + size)]
        name = MessageId(inside[-1] + data.draw(st.integers(0, gap)))
        places.add(name, KeptBlock([ids(*inside)]))
        where |= dict.fromkeys(range(number, name + 1), int(name))
        number = name + 1
    for name in data.draw(st.lists(st.sampled_from(sorted(places.blocks) or [MessageId(0)]), unique=True)):
        if name in places.blocks:
            places.remove(name)
            where = {each: its for each, its in where.items() if its != name}
    wanted = sorted(data.draw(st.sets(st.integers(0, number + 3))))
    pieces = list(places.pieces(ids(*wanted)))
    assert [(each, name) for name, piece in pieces for each in piece] == [
        (each, where.get(each)) for each in wanted
    ]
    assert all(piece for _, piece in pieces)


def test_a_block_knows_what_is_left_of_it() -> None:
    block = KeptBlock[MessageId]([ids(3, 4, 5), ids(9)])
    block.gone.update(ids(4))
    assert (block.count, block.left) == (4, 3)
    assert (block.numbers(), block.numbers_left(), block.places_left()) == (
        [3, 4, 5, 9],
        [3, 5, 9],
        [0, 2, 3],
    )


def test_a_block_is_never_put_among_others() -> None:
    places = BlockPlaces[MessageId]()
    places.add(MessageId(5), KeptBlock([ids(3, 5)]))
    with pytest.raises(AssertionError, match="not behind"):
        places.add(MessageId(6), KeptBlock([ids(5, 6)]))
