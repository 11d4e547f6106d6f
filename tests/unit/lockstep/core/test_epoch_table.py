"""The epoch table against the list of all indexes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.epoch_table import EpochTable
from lockstep.core.ids import Epoch, LogIndex

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
