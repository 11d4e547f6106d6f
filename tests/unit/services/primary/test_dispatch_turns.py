"""What a commit index that moves far lets go out is looked through in several steps."""

import pytest

from lockstep.core.ids import LogIndex, QueueId
from services.primary.core.dispatch import RETURNED_IN_ONE, Dispatch
from services.primary.core.settings import PrimarySettings
from tests.counted_work import CountedCalls

MANY = 10 * RETURNED_IN_ONE


@pytest.mark.parametrize("are_in_one", [True, False])
def test_what_came_to_very_many_queues_is_seen_to_be_committed_in_short_steps(are_in_one: bool) -> None:
    dispatch = Dispatch({}, PrimarySettings())
    for number in range(1, MANY + 1):
        dispatch.appended(LogIndex(1 if are_in_one else number), QueueId(number))
    with CountedCalls() as first:
        dispatch.committed(LogIndex(MANY))
    turns = 1
    while dispatch.is_returning:
        dispatch.return_committed()
        turns += 1
    assert turns > 2
    with CountedCalls() as nothing_left:
        dispatch.return_committed()
    assert nothing_left.total < 10 and first.total < 3 * MANY
