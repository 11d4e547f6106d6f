"""Groups that read committed events, and the names of queues that are gone, in a set's state."""

import pytest

from lockstep.core.ids import LogIndex
from lockstep.core.records import (
    AdvanceSubscription,
    CloseSubscription,
    DeleteExchange,
    DeleteQueue,
    OpenSubscription,
)
from lockstep.core.set_state import SetState
from lockstep.core.subscriptions import DELETED_KEPT, Group
from tests.unit.lockstep.core.history import SET, Log, durable_replay


def open_group(log: Log, name: str = "spark", floor: int = 0) -> LogIndex:
    return log.append(OpenSubscription(None, name, LogIndex(floor)))


def advance(log: Log, group: LogIndex, floor: int) -> None:
    log.append(AdvanceSubscription(None, group, LogIndex(floor)))


def test_a_group_is_named_by_the_index_of_its_opening_and_begins_at_its_first_advance() -> None:
    log = Log()
    group = open_group(log, floor=3)
    assert log.state.subscriptions.by_name == {"spark": Group(group, "spark", LogIndex(3), False)}
    advance(log, group, 5)
    assert log.state.subscriptions.by_id == {group: Group(group, "spark", LogIndex(5), True)}


def test_a_floor_never_falls() -> None:
    log = Log()
    group = open_group(log, floor=3)
    for floor in (7, 5, 0):
        advance(log, group, floor)
        assert log.state.subscriptions.floor == 7


def test_nobody_is_owed_what_all_groups_are_done_with() -> None:
    assert Log().state.subscriptions.floor is None
    log = Log()
    one, other = open_group(log, "one", 3), open_group(log, "other", 9)
    assert log.state.subscriptions.floor == 3
    advance(log, one, 20)
    assert log.state.subscriptions.floor == 9
    log.append(CloseSubscription(None, other))
    assert log.state.subscriptions.floor == 20
    log.append(CloseSubscription(None, one))
    assert log.state.subscriptions.floor is None


def test_records_of_a_group_that_is_closed_change_nothing() -> None:
    log = Log()
    group = open_group(log)
    log.append(CloseSubscription(None, group))
    again = open_group(log, floor=4)
    advance(log, group, 9)
    log.append(CloseSubscription(None, group))
    assert log.state.subscriptions.by_name == {"spark": Group(again, "spark", LogIndex(4))}


def test_a_name_is_of_one_group() -> None:
    log = Log()
    open_group(log)
    with pytest.raises(AssertionError, match="group spark is open"):
        open_group(log)


def test_groups_survive_a_restart() -> None:
    log = Log()
    group = open_group(log)
    advance(log, group, 2)
    log.begin_epoch(is_restarted=True)
    log.flush()
    expected = {group: Group(group, "spark", LogIndex(2), True)}
    assert log.state.subscriptions.by_id == expected
    assert durable_replay(log.frames).subscriptions.by_id == expected
    restored = SetState.from_items(SET, log.state.items(transient=False))
    assert restored.subscriptions.by_id == expected
    assert restored.subscriptions.by_name["spark"].id == group


# --- names of queues that are gone --------------------------------------------------------------------------------------


def delete_queues(log: Log, number: int) -> list[LogIndex]:
    """Of queues that lived for a moment: their ids."""
    found = []
    for _ in range(number):
        queue = log.queue(f"q{log.state.applied}")
        log.append(DeleteQueue(None, queue.id))
        found.append(LogIndex(queue.id))
    return found


def kept(state: SetState) -> list[int]:
    return [queue for queue, _ in state.subscriptions.all_deleted()]


def test_the_name_of_a_durable_queue_is_kept_when_it_is_deleted() -> None:
    log = Log()
    queue, transient = log.queue("q"), log.queue("transient", is_durable=False)
    index = log.append(DeleteQueue(None, queue.id))
    log.append(DeleteQueue(None, transient.id), is_durable=False)
    ((found, deleted),) = log.state.subscriptions.all_deleted()
    assert (found, deleted.name, deleted.index) == (queue.id, "q", index)


def test_the_name_of_a_durable_exchange_is_kept_when_it_is_deleted() -> None:
    log = Log()
    exchange = log.exchange("x")
    index = log.append(DeleteExchange(None, exchange))
    ((found, deleted),) = log.state.subscriptions.all_deleted()
    assert (found, deleted.name, deleted.index) == (exchange, "x", index)
    restored = SetState.from_items(SET, log.state.items())
    assert restored.subscriptions.all_deleted() == log.state.subscriptions.all_deleted()


def test_without_a_group_only_the_last_names_are_kept() -> None:
    log = Log()
    queues = delete_queues(log, DELETED_KEPT + 5)
    assert kept(log.state) == queues[5:]


def test_names_that_may_be_owed_are_kept_until_they_are_not() -> None:
    log = Log()
    group = open_group(log)
    queues = delete_queues(log, DELETED_KEPT + 5)
    assert kept(log.state) == queues
    advance(log, group, queues[2])
    assert kept(log.state) == queues[2:], "the deletion itself is behind the third queue's declaration"
    log.append(CloseSubscription(None, group))
    assert kept(log.state) == queues[5:]


def test_a_restored_state_lets_go_of_the_same_names() -> None:
    log = Log()
    group = open_group(log)
    queues = delete_queues(log, DELETED_KEPT + 5)
    restored = SetState.from_items(SET, log.state.items())
    assert kept(restored) == queues
    record = CloseSubscription(None, group)
    restored.apply(LogIndex(log.state.applied + 1), log.epoch, record, True)
    assert kept(restored) == queues[5:]
