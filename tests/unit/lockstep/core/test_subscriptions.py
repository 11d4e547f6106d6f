"""Groups that read committed events, and the names of queues that are gone, in a set's state."""

import msgspec
import pytest

from lockstep.core import item_values
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.items import META_KEY, subscription_key
from lockstep.core.records import (
    AdvanceSubscription,
    CloseSubscription,
    DeleteExchange,
    DeleteQueue,
    OpenSubscription,
)
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
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


def leave_behind(log: Log, group: LogIndex) -> None:
    log.append(CloseSubscription(None, group, is_left_behind=True))


def test_a_group_that_was_left_behind_is_owed_nothing_and_keeps_its_name_until_it_is_closed() -> None:
    log = Log()
    behind, other = open_group(log, "behind", 3), open_group(log, "other", 9)
    advance(log, behind, 4)
    leave_behind(log, behind)
    expected = Group(behind, "behind", LogIndex(4), True, True)
    assert log.state.subscriptions.floor == 9
    for _ in range(2):
        assert log.state.subscriptions.by_name["behind"] == expected
        advance(log, behind, 20)
        leave_behind(log, behind)
    log.append(CloseSubscription(None, other))
    assert log.state.subscriptions.owed() == []
    assert log.state.owed_after() == log.state.applied
    for end in (CloseSubscription(None, behind), CloseSubscription(None, behind, is_left_behind=True)):
        log.append(end)
        assert (log.state.subscriptions.by_name, log.state.subscriptions.by_id) == ({}, {})


def test_a_group_that_opens_has_the_name_of_one_that_was_left_behind() -> None:
    """As a primary of an older version writes it, which takes that for closed."""
    log = Log()
    leave_behind(log, open_group(log))
    again = open_group(log, floor=4)
    assert log.state.subscriptions.by_id == {again: Group(again, "spark", LogIndex(4))}
    assert log.state.subscriptions.by_name == {"spark": Group(again, "spark", LogIndex(4))}


def test_groups_and_their_ends_are_read_as_older_versions_wrote_them() -> None:
    record = CloseSubscription(None, LogIndex(2))
    whole = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(whole[:-1]), type=CloseSubscription) == record
    group = Group(LogIndex(2), "spark", LogIndex(5), True)
    fields = msgspec.msgpack.decode(item_values.encode(group))
    assert item_values.decode_group(msgspec.msgpack.encode(fields[:-1])) == group


def test_a_name_is_of_one_group() -> None:
    log = Log()
    open_group(log)
    with pytest.raises(AssertionError, match="group spark is open"):
        open_group(log)


def test_groups_survive_a_restart() -> None:
    log = Log()
    group, behind = open_group(log), open_group(log, "behind")
    advance(log, group, 2)
    leave_behind(log, behind)
    log.begin_epoch(is_restarted=True)
    log.flush()
    expected = {
        group: Group(group, "spark", LogIndex(2), True),
        behind: Group(behind, "behind", LogIndex(0), False, True),
    }
    assert log.state.subscriptions.by_id == expected
    assert durable_replay(log.frames).subscriptions.by_id == expected
    restored = SetState.from_items(SET, log.state.items(transient=False))
    assert restored.subscriptions.by_id == expected
    assert restored.subscriptions.by_name["spark"].id == group
    assert restored.subscriptions.floor == 2


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


def test_a_state_says_from_where_on_all_names_are_known() -> None:
    log = Log()
    group = open_group(log)
    queues = delete_queues(log, DELETED_KEPT + 5)
    assert log.state.subscriptions.names_from == 0
    advance(log, group, queues[3])
    assert log.state.subscriptions.names_from == queues[2] + 1, "the deletion right before"
    log.append(CloseSubscription(None, group))
    names_from = log.state.subscriptions.names_from
    assert names_from == queues[4] + 1 < queues[5]
    log.flush()
    durable = durable_replay(log.frames)
    restored = SetState.from_items(SET, log.state.items(transient=False))
    restored.overlay(log.state.items(durable=False))
    for other in (durable, restored):
        assert other.subscriptions.names_from == names_from
        assert state_hash(other) == state_hash(log.state)


def test_a_snapshot_that_does_not_say_it_can_be_loaded() -> None:
    log = Log()
    delete_queues(log, DELETED_KEPT + 1)
    items = list(log.state.items())
    (meta,) = [item for item in items if item.key == META_KEY]
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(meta.value)[:4])
    others = [item for item in items if item is not meta]
    restored = SetState.from_items(SET, [meta._replace(value=older), *others])
    assert restored.subscriptions.names_from == 0
    assert restored.subscriptions.all_deleted() == log.state.subscriptions.all_deleted()
    assert restored.applied == log.state.applied


def test_where_a_group_begins_in_all_sets_is_kept_and_older_values_lack_it() -> None:
    log = Log()
    group = open_group(log, floor=3)
    begins = (("east", LogIndex(3), Epoch(1)), ("west", LogIndex(9), Epoch(2)))
    log.append(AdvanceSubscription(None, group, LogIndex(3), begins))
    advance(log, group, 5)
    items = list(log.state.items())
    assert SetState.from_items(SET, items).subscriptions.by_id[group].begins == begins
    (kept,) = [item for item in items if item.key == subscription_key(group)]
    older = kept._replace(value=msgspec.msgpack.encode(msgspec.msgpack.decode(kept.value)[:5]))
    others = [item for item in items if item is not kept]
    assert SetState.from_items(SET, [older, *others]).subscriptions.by_id[group].begins == ()
