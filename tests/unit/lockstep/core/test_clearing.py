"""Deleted queues: gone with their record, and let go of in pieces that nobody sees."""

import weakref
from collections.abc import Iterable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.clearing import CLEARED_IN_ONE
from lockstep.core.invariants import check_invariants
from lockstep.core.items import message_key
from lockstep.core.records import DeleteQueue
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from lockstep.core.state_listener import StateListener
from tests.unit.lockstep.core.history import SET, Log, Writer, message, replay

MANY = 3 * CLEARED_IN_ONE + 7


def cleared_in_pieces() -> Log:
    log = Log()
    log.state.clearing.is_in_pieces = True
    return log


def filled(log: Log) -> None:
    queue = log.queue("q")
    for number in range(MANY):
        log.publish(message((queue,), b"%d" % number))
    log.append(DeleteQueue(None, queue.id))
    log.flush()


def test_a_long_queue_is_gone_with_its_record_and_cleared_a_few_messages_at_a_time() -> None:
    log = cleared_in_pieces()
    filled(log)
    assert log.state.queues.get("q") is None and len(log.state.contents) == MANY
    turns = log.state.clearing.turns()
    assert turns is not None and log.state.clearing.turns() is None
    left = [MANY]
    for _ in turns:
        left.append(len(log.state.contents))
    assert max(before - behind for before, behind in pairwise(left)) == CLEARED_IN_ONE
    assert left[-1] == 0 and not log.state.clearing.queues
    assert log.state.clearing.turns() is None


def test_who_drives_a_state_next_goes_on_with_what_is_left() -> None:
    log = cleared_in_pieces()
    filled(log)
    turns = log.state.clearing.turns()
    assert turns is not None
    next(turns)
    del turns
    assert sum(log.state.clearing.until_cleared()) > 0
    assert len(log.state.contents) == 0


def test_whoever_looks_at_all_of_a_state_or_at_an_item_sees_nothing_of_what_is_to_be_cleared() -> None:
    log = cleared_in_pieces()
    filled(log)
    assert state_hash(log.state) == state_hash(replay(log.frames))
    again = cleared_in_pieces()
    filled(again)
    (shelf, *_) = again.state.contents.shelves.values()
    (first, *_) = shelf.single
    assert again.state.item(message_key(first)) is None


def test_a_state_whose_items_are_listened_to_is_cleared_at_once() -> None:
    class Consolidating(StateListener):
        def __init__(self) -> None:
            self.keys: set[bytes] = set()

        def items_changed(self, keys: Iterable[bytes]) -> None:
            self.keys.update(keys)

    log = cleared_in_pieces()
    log.state.set_listener(Consolidating())
    filled(log)
    assert not log.state.clearing.queues and len(log.state.contents) == 0


@pytest.mark.fuzz
@given(st.randoms(use_true_random=True), st.integers(0, 150))
def test_a_state_that_is_cleared_in_pieces_becomes_the_same(random: Random, steps: int) -> None:
    writer = Writer(random)
    state = SetState(SET)
    state.clearing.is_in_pieces = True
    turns = None
    writer.write(steps)
    for frame in writer.log.frames:
        state.apply_frame(frame)
        turns = turns or state.clearing.turns()
        if turns is not None and random.random() < 0.2 and next(turns, None) is None:
            turns = None
        check_invariants(state)
    assert state_hash(state) == state_hash(writer.log.state)
    check_invariants(state)


def test_a_state_that_nobody_has_any_more_is_gone_at_once() -> None:
    """No circle of references keeps it until garbage is collected, which millions of messages would wait for."""
    log = cleared_in_pieces()
    filled(log)
    state = weakref.ref(log.state)
    assert state() is not None
    del log
    assert state() is None
