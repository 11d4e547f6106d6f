"""The epoch table against the list of all indexes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.epoch_table import REIGN_MAX, EpochTable, reign_of
from lockstep.core.ids import Epoch, Incarnation, LogIndex

LOGS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), max_size=8)
"""Steps of the epoch, and how many records each has."""


def epochs_of(log: list[tuple[int, int]]) -> list[Epoch]:
    """The epoch of every index from 1."""
    epochs, epoch = [], 0
    for step, count in log:
        epoch += step
        epochs += [Epoch(epoch)] * count
    return epochs


def table_of(epochs: list[Epoch]) -> EpochTable:
    table = EpochTable()
    for place, epoch in enumerate(epochs):
        table.observe(epoch, LogIndex(place + 1))
    return table


@given(LOGS)
def test_every_index_has_its_epoch(log: list[tuple[int, int]]) -> None:
    epochs = epochs_of(log)
    table = table_of(epochs)
    assert [table.epoch_at(LogIndex(index)) for index in range(len(epochs) + 1)] == [0, *epochs]
    assert table.last == (epochs[-1] if epochs else 0)
    assert EpochTable(table.entries) == table
    assert all(table.first_of(epoch) == epochs.index(epoch) + 1 for epoch in epochs)
    assert table.first_of(Epoch(99)) is None


@given(LOGS, st.integers(0, 40))
def test_a_cut_log_has_the_table_of_what_is_left(log: list[tuple[int, int]], last: int) -> None:
    epochs = epochs_of(log)
    table = table_of(epochs)
    table.cut(LogIndex(last))
    assert table == table_of(epochs[:last])


def test_an_epoch_begins_once() -> None:
    table = EpochTable()
    assert [table.observe(Epoch(3), LogIndex(index)) for index in (1, 2, 3)] == [True, False, False]


def test_a_lower_epoch_is_our_own_bug() -> None:
    table = EpochTable([(Epoch(3), LogIndex(1))])
    with pytest.raises(AssertionError, match="epoch 2 at 5 behind epoch 3"):
        table.observe(Epoch(2), LogIndex(5))


@given(st.text())
def test_every_incarnation_has_a_reign(incarnation: str) -> None:
    assert 1 <= reign_of(Incarnation(incarnation)) <= REIGN_MAX


def test_a_reign_is_known_from_the_first_frame_that_tells_it_until_its_epoch_is_cut() -> None:
    table = EpochTable()
    for epoch, index, reign in ((1, 1, 0), (1, 2, 7), (1, 3, 7), (2, 4, 8), (3, 6, 0)):
        table.observe(Epoch(epoch), LogIndex(index), reign)
    assert (table.reigns, table.last_reign) == (((1, 7), (2, 8)), 0)
    table.cut(LogIndex(5))
    assert (table.reigns, table.last_reign) == (((1, 7), (2, 8)), 8)
    table.cut(LogIndex(3))
    assert (table.reigns, table.last_reign) == (((1, 7),), 7)


def test_reigns_are_learnt_of_epochs_that_are_there_and_change_nothing_else() -> None:
    table = EpochTable([(Epoch(1), LogIndex(1)), (Epoch(3), LogIndex(4))])
    table.learn(((Epoch(1), 7), (Epoch(2), 8), (Epoch(3), 9)))
    assert (table.reigns, table.last_reign) == (((1, 7), (3, 9)), 9)
    assert table == EpochTable(table.entries)
