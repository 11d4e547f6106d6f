"""A memory whose transients are forgotten, for those of a primary: what durable records built is left, in pieces (R12)."""

from itertools import islice

import pytest

from lockstep.core.invariants import check_invariants
from lockstep.core.log_copy import LogCopy
from lockstep.core.pieces import PIECE_COST
from lockstep.core.records import OpenSession
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from tests.unit.lockstep.core.history import SET, Log, message

MANY = 4 * PIECE_COST


def long_copy(is_durable: bool) -> LogCopy:
    """With as many messages as that takes pieces, and a session, which is never durable."""
    log = Log(SetState(SET))
    log.begin_epoch()
    queue, other = log.queue("q"), log.queue("other", is_durable=False)
    log.append(OpenSession(None, "s", 1000), False)
    for number in range(MANY):
        log.publish(message((queue,), b"%d" % number, is_durable), is_durable=is_durable)
        if number % 10 == 0:
            log.publish(message((queue, other), b"x"))
            log.publish(message((queue,), b"y", False), is_durable=False)
    log.flush()
    return LogCopy(log.state, log.state.applied, 0)


@pytest.mark.parametrize("is_durable", [True, False])
def test_transients_are_forgotten_in_as_many_pieces_as_the_state_is_long(is_durable: bool) -> None:
    copy = long_copy(is_durable)
    before, expected = copy.state, SetState.from_items(SET, copy.state.items(transient=False))
    costs = list(copy.forget_transients())
    assert max(costs) <= PIECE_COST * 3
    assert len(costs) >= MANY // PIECE_COST
    assert state_hash(copy.state) == state_hash(expected)
    check_invariants(copy.state)
    assert copy.is_durable_only and before.is_taken_apart and not copy.state.is_taken_apart
    assert list(copy.forget_transients()) == []


@pytest.mark.parametrize("steps", [1, 20, 200, 400])
def test_who_is_dropped_while_it_forgets_leaves_nothing(steps: int) -> None:
    copy = long_copy(True)
    before, work = copy.state, copy.forget_transients()
    assert len(list(islice(work, steps))) == steps
    aside = copy._aside
    assert aside is not None
    work.close()  # type: ignore[attr-defined]
    for _ in copy.take_apart():
        pass
    for state in (before, copy.state, aside[1]):
        assert state.is_taken_apart and not state.contents.shelves and not state.queues.by_id
