"""Laws of the state machine over histories that a primary might write."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.core.apply_epochs import begin_epoch
from lockstep.core.frames import Frame, decode_records, encode_frame
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.invariants import check_invariants
from lockstep.core.items import Item
from lockstep.core.records import AnyRecord, EpochBegins, Publish
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from lockstep.core.state_listener import StateListener
from tests.unit.lockstep.core.history import SET, Log, Writer, durable_replay, replay

HISTORIES = st.builds(
    lambda random, steps: Writer(random).write(steps),
    st.randoms(use_true_random=True),
    st.integers(min_value=0, max_value=120),
)


class Mirror(StateListener):
    """A consolidator in small: keeps the durable items by the keys that it hears have changed."""

    def __init__(self) -> None:
        self.dirty: set[bytes] = set()
        self.kept: dict[bytes, Item] = {}

    def items_changed(self, keys: Iterable[bytes]) -> None:
        self.dirty.update(keys)

    def write(self, state: SetState) -> None:
        for key in sorted(self.dirty):
            item = state.item(key)
            if item is None or not item.is_durable:
                self.kept.pop(key, None)
            else:
                self.kept[key] = item
        self.dirty.clear()


def assert_equal(one: SetState, other: SetState) -> None:
    """Equal in items, and in what is kept beside them."""
    assert items_of(one) == items_of(other)
    assert state_hash(one) == state_hash(other)
    assert one.transactions.live == other.transactions.live
    assert one.outcomes.all() == other.outcomes.all()
    assert one.epochs == other.epochs
    assert one.open_from == other.open_from
    assert one.subscriptions.by_id == other.subscriptions.by_id
    assert one.subscriptions.by_name == other.subscriptions.by_name
    assert one.subscriptions.all_deleted() == other.subscriptions.all_deleted()
    for queue_id, queue in one.queues.by_id.items():
        twin = other.queues.by_id[queue_id]
        assert list(queue.items()) == list(twin.items()), f"entries of {queue}"
        for name in (
            "length",
            "locks",
            "delivery_counts",
            "expiries",
            "deaths",
            "annotations",
            "transient_positions",
            "bytes",
        ):
            assert getattr(queue, name) == getattr(twin, name), f"{name} of {queue}"
        assert (queue.reserved_length, queue.reserved_bytes) == (twin.reserved_length, twin.reserved_bytes)
    for message_id, _ in one.contents.items():
        assert one.contents.references(message_id) == other.contents.references(message_id)


def items_of(state: SetState, durable: bool = True, transient: bool = True) -> list[Item]:
    return list(state.items(durable, transient))


@pytest.mark.fuzz
@given(st.randoms(use_true_random=True), st.integers(min_value=0, max_value=120))
def test_invariants_hold_after_every_record(random: Random, steps: int) -> None:
    writer = Writer(random)
    for _ in range(steps):
        writer.step()
        check_invariants(writer.log.state)


@pytest.mark.fuzz
@given(HISTORIES)
def test_durable_state_is_a_function_of_the_durable_records_alone(log: Log) -> None:
    whole, durable = log.state, durable_replay(log.frames)
    assert items_of(whole, transient=False) == items_of(durable, transient=False)
    assert state_hash(whole, durable_only=True) == state_hash(durable, durable_only=True)
    check_invariants(durable)


@pytest.mark.fuzz
@given(HISTORIES, st.randoms(use_true_random=True))
def test_durable_state_does_not_depend_on_which_transient_records_are_missing(
    log: Log, random: Random
) -> None:
    state = SetState(SET)
    for frame in log.frames:
        state.apply_frame(frame if random.random() < 0.5 else frame._replace(transient=b""))
    assert items_of(state, transient=False) == items_of(log.state, transient=False)


@pytest.mark.fuzz
@given(HISTORIES)
def test_replicas_that_applied_the_same_frames_are_equal(log: Log) -> None:
    backup = replay(log.frames)
    assert_equal(backup, log.state)


@pytest.mark.fuzz
@given(HISTORIES)
def test_messages_are_applied_the_same_whether_or_not_they_are_said_to_be_alike(log: Log) -> None:
    one, other = SetState(SET), SetState(SET)
    for frame in log.frames:
        one.apply_frame(frame)
        other.apply_frame(without_alike(frame))
        check_invariants(one)
        assert state_hash(one) == state_hash(other)
    assert_equal(one, other)


def without_alike(frame: Frame) -> Frame:
    """The same frame as a primary of an older version would write it."""
    records: list[tuple[AnyRecord, bool]] = []
    for indexed in decode_records(frame):
        record = indexed.record
        is_publish = isinstance(record, Publish)
        records.append((replace(record, alike=None) if is_publish else record, indexed.is_durable))
    header = frame.header
    return encode_frame(header.epoch, header.first, header.commit_index, header.time_ms, records)


@pytest.mark.fuzz
@given(HISTORIES, st.booleans())
def test_a_snapshot_gives_back_the_state(log: Log, in_blocks: bool) -> None:
    restored = SetState.from_items(SET, log.state.items(in_blocks=in_blocks))
    check_invariants(restored)
    assert_equal(restored, log.state)


@pytest.mark.fuzz
@given(HISTORIES, st.randoms(use_true_random=True))
def test_items_may_come_in_any_order(log: Log, random: Random) -> None:
    items = items_of(log.state)
    random.shuffle(items)
    assert_equal(SetState.from_items(SET, items), log.state)


@pytest.mark.fuzz
@given(st.randoms(use_true_random=True), st.integers(0, 80), st.integers(0, 40), st.booleans())
def test_a_restored_state_goes_on_like_the_one_it_was_taken_from(
    random: Random, before: int, after: int, in_blocks: bool
) -> None:
    writer = Writer(random)
    log = writer.write(before)
    known = len(log.frames)
    restored = SetState.from_items(SET, log.state.items(in_blocks=in_blocks))
    writer.write(after)
    for frame in log.frames[known:]:
        restored.apply_frame(frame)
        check_invariants(restored)
    assert_equal(restored, log.state)


@pytest.mark.fuzz
@given(HISTORIES)
def test_transient_items_laid_over_the_durable_state_give_the_whole(log: Log) -> None:
    rebuilt = durable_replay(log.frames)
    rebuilt = SetState.from_items(SET, rebuilt.items(transient=False))
    rebuilt.overlay(log.state.items(durable=False))
    check_invariants(rebuilt)
    assert_equal(rebuilt, log.state)


@pytest.mark.fuzz
@given(st.randoms(use_true_random=True), st.integers(0, 80), st.integers(0, 40))
def test_an_overlaid_replay_goes_on_like_the_state_that_it_joined(
    random: Random, before: int, after: int
) -> None:
    writer = Writer(random)
    log = writer.write(before)
    known = len(log.frames)
    returned = durable_replay(log.frames)
    returned.overlay(log.state.items(durable=False))
    writer.write(after)
    for frame in log.frames[known:]:
        returned.apply_frame(frame)
    check_invariants(returned)
    assert_equal(returned, log.state)


@pytest.mark.fuzz
@given(HISTORIES)
def test_a_restart_leaves_what_the_durable_items_hold(log: Log) -> None:
    journal = SetState.from_items(SET, log.state.items(transient=False))
    restart = EpochBegins(None, Epoch(log.epoch + 1), "broker", True)
    for state in (log.state, journal):
        state.apply(LogIndex(state.applied + 1), restart.epoch, restart, True)
        check_invariants(state)
    assert_equal(journal, log.state)
    assert not items_of(log.state, durable=False)


@pytest.mark.fuzz
@given(HISTORIES)
def test_changed_items_are_enough_to_keep_a_store(log: Log) -> None:
    mirror = Mirror()
    state = SetState(SET, mirror)
    for frame in log.frames:
        state.apply_frame(frame._replace(transient=b""))
        mirror.write(state)
        assert [item for _, item in sorted(mirror.kept.items())] == items_of(state, transient=False)


@pytest.mark.fuzz
@given(HISTORIES)
def test_a_consolidator_without_bodies_keeps_the_same_items(log: Log) -> None:
    mirror = Mirror()
    state = SetState(SET, mirror)
    for frame in log.frames:
        state.apply_frame(frame._replace(transient=b""))
        mirror.write(state)
        for message_id in sorted(dict(state.contents.items())):
            state.drop_content(message_id)
    check_invariants(state)
    whole = durable_replay(log.frames)
    assert [item for _, item in sorted(mirror.kept.items())] == items_of(whole, transient=False)
    assert state_hash(state) == state_hash(whole)


@pytest.mark.fuzz
@given(HISTORIES)
def test_every_item_can_be_asked_for_by_its_key(log: Log) -> None:
    for item in log.state.items():
        assert log.state.item(item.key) == item


@pytest.mark.fuzz
@given(HISTORIES)
def test_items_come_in_key_order(log: Log) -> None:
    keys = [item.key for item in log.state.items()]
    assert keys == sorted(set(keys))


@given(HISTORIES)
def test_durable_items_are_not_laid_over_durable_state(log: Log) -> None:
    rebuilt = durable_replay(log.frames)
    with pytest.raises(AssertionError, match="laid over durable state"):
        rebuilt.overlay(log.state.items())


@pytest.mark.fuzz
@given(st.randoms(use_true_random=True), st.integers(0, 120), st.booleans(), st.booleans())
def test_what_an_epoch_ends_may_end_in_steps_before_its_record(
    random: Random, steps: int, is_restarted: bool, is_handed_over: bool
) -> None:
    log = Writer(random).write(steps)
    one, other = replay(log.frames), replay(log.frames)
    index, epoch = LogIndex(log.state.applied + 1), Epoch(log.epoch + 1)
    record = EpochBegins(None, epoch, "broker", is_restarted, is_handed_over and not is_restarted)
    for _ in begin_epoch(other, index, record):
        pass
    for state in (one, other):
        state.apply(index, epoch, record, True)
        check_invariants(state)
    assert_equal(one, other)
    assert one.transactions.undone == other.transactions.undone


@pytest.mark.fuzz
@given(st.randoms(use_true_random=True), st.integers(0, 120), st.booleans())
def test_what_an_epoch_ends_is_the_same_whether_or_not_somebody_listens(
    random: Random, steps: int, is_restarted: bool
) -> None:
    log = Writer(random).write(steps)
    known = len(log.frames)
    log.begin_epoch(is_restarted)
    log.flush()
    heard, unheard = replay(log.frames[:known], StateListener()), replay(log.frames[:known])
    for state in (heard, unheard):
        for frame in log.frames[known:]:
            state.apply_frame(frame)
    assert_equal(heard, unheard)
