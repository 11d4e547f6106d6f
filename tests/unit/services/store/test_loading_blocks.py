"""Blocks of a snapshot, loaded as they are, are the state that single items are (DESIGN 5, R9, R12)."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.ids import Epoch, LogIndex, MessageId, QueueId, QueuePosition, TimeMs, place
from lockstep.core.invariants import check_invariants
from lockstep.core.item_blocks import Block, EntryRunValue, entries_block, is_block, left_item
from lockstep.core.item_values import MetaValue, encode
from lockstep.core.items import META_KEY, epoch_key, queue_key
from lockstep.core.records import DeclareQueue
from lockstep.core.restoration import UNLIMITED_BYTES, Restoration
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from lockstep.core.store_protocol import StateItem
from services.store.core.messages import Tick
from tests.unit.lockstep.core.history import Log, Writer, message
from tests.unit.lockstep.core.test_state_laws import assert_equal
from tests.unit.services.store.crowd import Crowd
from tests.unit.services.store.snapshot_rig import Consolidation, Snapshot
from tests.unit.services.store.store_rig import SET, StoreRig
from tests.unit.services.store.test_blocks import (
    QUEUE,
    block_of,
    entries_of,
    entry_item,
    message_item,
    old_block_of,
    old_entries_of,
)


def loaded(
    snapshot: Snapshot, resident_bytes_max: int = UNLIMITED_BYTES, blocks: list[Block] | None = None
) -> SetState:
    """As a broker has it."""
    state = SetState(SET)
    restoration = Restoration(state, resident_bytes_max, blocks)
    for item in snapshot.blocks():
        restoration.take((item,))
    restoration.settle()
    check_invariants(state)
    return state


RANDOMS = st.randoms(use_true_random=True)
LIMITS = st.sampled_from((0, 100, UNLIMITED_BYTES))
WRITERS = st.sampled_from((Crowd, Writer))


@pytest.mark.fuzz
@given(RANDOMS, WRITERS, st.integers(1, 60), st.integers(1, 40), LIMITS)
def test_a_state_of_blocks_is_the_durable_one_and_goes_on_like_it(
    random: Random, kind: type[Crowd | Writer], before: int, after: int, resident_bytes_max: int
) -> None:
    writer, consolidation = kind(random), Consolidation()
    for _ in range(before):
        writer.step()
        if random.random() < 0.3:
            consolidation.apply(writer.log.frames)
            consolidation.write(thinned_max=random.choice((0, 1, 1000)))
    writer.log.flush()
    consolidation.apply(writer.log.frames)
    consolidation.write()
    known = len(writer.log.frames)
    items = consolidation.snapshot.scan()
    single = SetState.from_items(SET, items)
    state = loaded(consolidation.snapshot, resident_bytes_max)
    if resident_bytes_max == UNLIMITED_BYTES:
        assert_equal(state, single)
    else:
        assert state.contents.resident_bytes <= resident_bytes_max
    for _ in range(after):
        writer.step()
    writer.log.flush()
    for frame in writer.log.frames[known:]:
        state.apply_frame(frame._replace(transient=b""))
        single.apply_frame(frame._replace(transient=b""))
        check_invariants(state)
        assert state_hash(state) == state_hash(single)


@pytest.mark.fuzz
@given(RANDOMS, st.integers(1, 80), st.integers(1, 40))
def test_transient_items_are_laid_over_a_state_of_blocks(random: Random, before: int, after: int) -> None:
    writer, consolidation = Writer(random), Consolidation()
    log = writer.write(before)
    consolidation.apply(log.frames)
    consolidation.write()
    known = len(log.frames)
    state = loaded(consolidation.snapshot)
    state.overlay(log.state.items(durable=False))
    check_invariants(state)
    assert_equal(state, log.state)
    writer.write(after)
    for frame in log.frames[known:]:
        state.apply_frame(frame)
        check_invariants(state)
    assert_equal(state, log.state)


@pytest.mark.fuzz
@given(RANDOMS, st.integers(1, 40), st.integers(1, 30))
def test_a_newcomer_of_blocks_is_like_the_state_that_it_joined(
    random: Random, before: int, after: int
) -> None:
    """Whatever bodies are away; and what it is sent is what its state was then, however long that takes."""
    crowd = Crowd(random)
    log = crowd.log
    for _ in range(before):
        crowd.step()
    log.flush()
    known = len(log.frames)
    for message_id, _ in list(log.state.contents.items()):
        if random.random() < 0.02:
            log.state.drop_content(message_id)
    expected = SetState.from_items(SET, list(log.state.items()))
    items = log.state.items(in_blocks=True)
    for _ in range(after):
        crowd.step()
    log.flush()
    joined = SetState.from_items(SET, items)
    check_invariants(joined)
    assert_equal(joined, expected)
    for frame in log.frames[known:]:
        joined.apply_frame(frame)
        expected.apply_frame(frame)
        check_invariants(joined)
        assert state_hash(joined) == state_hash(expected)


@pytest.mark.fuzz
@given(RANDOMS, WRITERS, st.integers(1, 80))
def test_the_store_of_a_newcomer_has_the_durable_items(
    random: Random, kind: type[Crowd | Writer], steps: int
) -> None:
    writer, snapshot = kind(random), Snapshot()
    for _ in range(steps):
        writer.step()
    writer.log.flush()
    items = list(writer.log.state.items(in_blocks=True))
    snapshot.write(item for item in items if item.is_durable)
    assert snapshot.scan() == list(writer.log.state.items(transient=False))
    assert [item for item in items if not item.is_durable] == list(writer.log.state.items(durable=False))


# --- examples ------------------------------------------------------------------------------------------------------------


def story(*kept: StateItem) -> Snapshot:
    """A set with the queue and these."""
    snapshot = Snapshot()
    meta = MetaValue(LogIndex(9), TimeMs(1), LogIndex(0))
    snapshot.write(
        (
            StateItem(META_KEY, encode(meta), True),
            StateItem(epoch_key(Epoch(1)), encode(1), True),
            StateItem(queue_key(QUEUE), encode(DeclareQueue(None, "q", True)), True),
            *kept,
        )
    )
    return snapshot


Writing = tuple[Callable[..., StateItem], Callable[..., StateItem]]


@pytest.mark.parametrize("writing", [(block_of, entries_of), (old_block_of, old_entries_of)])
def test_messages_of_one_record_in_several_blocks_are_kept_alike(writing: Writing) -> None:
    """All in a run, or all by themselves."""
    messages, entries = writing
    ids = [place(3, each) for each in range(20)]
    for begin in (1, 3, 4, 19):
        snapshot = story(entries(QUEUE, ids[-1], *ids), messages(*ids[:begin]), messages(*ids[begin:]))
        state = loaded(snapshot)
        assert_equal(state, SetState.from_items(SET, snapshot.scan()))
        assert len(state.contents.of(range(ids[0], ids[-1] + 1))) == 20  # type: ignore[arg-type]


def test_of_a_block_some_may_be_left() -> None:
    ids = [place(3, each) for each in range(9)]
    left = [ids[each] for each in (0, 3, 4, 5, 8)]
    kept = entries_of(QUEUE, ids[-1], *left), block_of(*ids), left_item(MessageId(ids[-1]), (0, 3, 4, 5, 8))
    blocks: list[Block] = []
    state = loaded(story(*kept), blocks=blocks)
    assert [message_id for message_id, _ in sorted(state.contents.items())] == left
    assert blocks == [
        Block(QUEUE, ids[-1], tuple(range(each, each + 1) for each in left), None),
        Block(QueueId(0), ids[-1], (range(ids[0], ids[-1] + 1),), bytes((0, 3, 4, 5, 8))),
    ]


@pytest.mark.parametrize("place_of_single", [0, 1, 8])
def test_items_of_their_own_beside_blocks_of_their_record_are_kept_alike(place_of_single: int) -> None:
    ids = [place(3, each) for each in range(9)]
    before, alone, behind = ids[:place_of_single], ids[place_of_single], ids[place_of_single + 1 :]
    snapshot = story(
        *(entries_of(QUEUE, each[-1], *each) for each in (before, behind) if each),
        entry_item(QUEUE, alone),
        *(block_of(*each) for each in (before, behind) if each),
        message_item(alone),
    )
    state = loaded(snapshot)
    assert_equal(state, SetState.from_items(SET, snapshot.scan()))
    assert len(state.contents.of(range(ids[0], ids[-1] + 1))) == 9  # type: ignore[arg-type]


def test_the_first_bodies_stay() -> None:
    ids = [place(index, each) for index in (3, 4) for each in range(10)]
    snapshot = story(entries_of(QUEUE, ids[-1], *ids), block_of(*ids[:10]), block_of(*ids[10:]))
    size = loaded(snapshot).contents.resident_bytes
    state = loaded(snapshot, size // 2 + 10)
    resident = [state.contents.get(MessageId(number)) is not None for number in ids]
    assert resident == [True] * 10 + [False] * 10
    assert state_hash(state) == state_hash(SetState.from_items(SET, snapshot.scan()))


def test_what_came_together_is_packed_again() -> None:
    ids = [place(3, each) for each in range(10)]
    state = SetState(SET)
    restoration = Restoration(state)
    run = EntryRunValue(QueuePosition(ids[0]), MessageId(ids[0]), len(ids))
    restoration.take(story(entries_block(QUEUE, QueuePosition(ids[-1]), [run]), block_of(*ids)).blocks())
    restoration.settle()
    packed = state.contents.packed(range(ids[0], ids[-1] + 1))  # type: ignore[arg-type]
    assert packed is not None and packed.alike.queues == (QUEUE,) and len(packed) == 10


def test_a_store_sends_blocks_to_whoever_takes_them() -> None:
    """Older brokers know single items alone."""
    rig, log = StoreRig(), Log()
    log.begin_epoch()
    queue = log.queue("q")
    log.publish(*(message((queue,), bytes(100)) for _ in range(30)))
    log.flush()
    rig.open()
    for frame in log.frames:
        rig.append_ok(frame.durable, commit=frame.header.last)
    rig.feed(Tick())
    rig.run()
    single, frames, _ = rig.load()
    assert not frames and not any(map(is_block, single))
    kept, frames, _ = rig.load(takes_blocks=True)
    assert not frames and sum(map(is_block, kept)) == 2
    assert len(single) == len(kept) + 2 * 29
