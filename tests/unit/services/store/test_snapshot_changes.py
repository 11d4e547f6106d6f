"""What the consolidator writes is the durable state, however it is kept and whenever it is written (DESIGN 5, R11)."""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.apply_transactions import ENDED_IN_ONE
from lockstep.core.block_cutting import BLOCK_BYTES_MAX, BLOCK_ITEMS_MAX
from lockstep.core.deaths import Death, DeathReason
from lockstep.core.ids import MessageId, QueuePosition, index_of
from lockstep.core.item_blocks import entries_block_key, is_block, left_key, messages_block_key
from lockstep.core.items import ENTRY, MESSAGE, entry_key, message_key
from lockstep.core.queues import Queue
from lockstep.core.records import Annotate, Commit, DeleteQueue, DequeueReason, Move, Requeue
from lockstep.core.store_protocol import StateItem
from services.store.core.snapshot_changes import THINNED_MAX
from tests.unit.lockstep.core.history import Log, Writer, message
from tests.unit.services.store.crowd import Crowd
from tests.unit.services.store.snapshot_rig import Consolidation, Snapshot


def assert_written(consolidation: Consolidation, log: Log) -> None:
    """The snapshot has the log's durable state, and nothing else."""
    expected = list(log.state.items(transient=False))
    assert consolidation.snapshot.scan() == expected
    contents = [item for item in expected if item.key[:1] == MESSAGE]
    assert consolidation.snapshot.messages(*dict(log.state.contents.items())) == {
        MessageId(int.from_bytes(item.key[1:], "big")): item.value for item in contents
    }
    assert consolidation.state.contents.resident_bytes == 0


def consolidate(consolidation: Consolidation, log: Log) -> None:
    """All of the log, at once."""
    log.flush()
    consolidation.apply(log.frames)
    consolidation.write()
    assert_written(consolidation, log)


def run(writer: Crowd | Writer, steps: int, random: Random, consolidation: Consolidation) -> None:
    """Let a history go on, consolidated at random moments, with crashes."""
    log = writer.log
    for _ in range(steps):
        writer.step()
        fate = random.random()
        if fate < 0.5:
            consolidation.apply(log.frames)
        if fate < 0.3:
            consolidation.write(thinned_max=random.choice((0, 1, 1000)))
        if fate > 0.9:
            consolidation.reload()
    consolidate(consolidation, log)
    consolidation.reload()
    consolidation.write()
    assert_written(consolidation, log)


RANDOMS = st.randoms(use_true_random=True)


@pytest.mark.fuzz
@given(RANDOMS, st.integers(1, 80))
def test_a_snapshot_of_many_messages_is_the_durable_state(random: Random, steps: int) -> None:
    run(Crowd(random), steps, random, Consolidation())


@pytest.mark.fuzz
@given(RANDOMS, st.integers(1, 200))
def test_a_snapshot_of_any_history_is_the_durable_state(random: Random, steps: int) -> None:
    run(Writer(random), steps, random, Consolidation())


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_open_transactions_did_is_not_kept_when_an_epoch_has_aborted_them(is_restarted: bool) -> None:
    """Nothing could be restored from what is left of them, as their messages are gone."""
    log, consolidation = Log(), Consolidation()
    queue = log.queue("q")
    log.publish(message((queue,)))
    key = log.begin()
    log.publish(message((queue,), b"not committed"), transaction=key)
    log.dequeue(queue, *queue.positions(), transaction=key)
    consolidate(consolidation, log)
    log.begin_epoch(is_restarted=is_restarted)
    consolidate(consolidation, log)
    consolidation.reload()
    assert_written(consolidation, log)


def test_what_a_transaction_of_very_many_operations_did_is_not_kept_when_it_has_committed() -> None:
    """What is left of them would be an open transaction of a state that is restored from it, and its messages may be gone."""
    log, consolidation = Log(), Consolidation()
    queue = log.queue("q")
    key = log.begin()
    for _ in range(ENDED_IN_ONE + 1):
        log.publish(message((queue,)), transaction=key)
    deeds: tuple[Callable[[], object], ...] = (
        lambda: None,
        partial(log.commit, key),
        lambda: log.dequeue(queue, *queue.positions()),
    )
    for do in deeds:
        do()
        consolidate(consolidation, log)
        consolidation.reload()
        assert_written(consolidation, log)


def perhaps_apart(random: Random, item: StateItem) -> list[StateItem]:
    """As a sender has it that lacks some bodies."""
    if not is_block(item.key) or random.random() < 0.7:
        return [item]
    alone = Snapshot()
    alone.write([item])
    return alone.scan()


@pytest.mark.fuzz
@given(RANDOMS, st.integers(1, 30), st.integers(1, 40))
def test_a_snapshot_that_was_installed_is_gone_on_with(random: Random, before: int, after: int) -> None:
    """In blocks, or of single items, as older versions leave it."""
    crowd, snapshot = Crowd(random), Snapshot()
    for _ in range(before):
        crowd.step()
    crowd.log.flush()
    items = crowd.log.state.items(transient=False, in_blocks=random.random() < 0.7)
    snapshot.write(single for item in items for single in perhaps_apart(random, item))
    run(crowd, after, random, Consolidation(snapshot))


# --- examples ------------------------------------------------------------------------------------------------------------


class Story:
    """A queue `q` with messages, of which all is written; and another, `r`."""

    def __init__(self, count: int, is_single: bool = False) -> None:
        self.log = Log()
        self.q, self.r = self.log.queue("q"), self.log.queue("r")
        self.publish(count, self.q)
        self.ids = [MessageId(number) for number in sorted(dict(self.log.state.contents.items()))]
        self.log.flush()
        snapshot = Snapshot()
        if is_single:
            snapshot.write(self.log.state.items(transient=False))
        self.kept = Consolidation(snapshot)
        self.write()

    def publish(self, count: int, *queues: Queue) -> list[QueuePosition]:
        self.log.publish(*(message(queues, b"%d" % number) for number in range(count)))
        return self.q.positions()[-count:]

    def accept(self, begin: int, end: int | None = None) -> None:
        """Messages by their places among those that are there."""
        self.log.dequeue(self.q, *self.q.positions()[begin:end])

    def write(self) -> list[bytes]:
        """Write and check all; answers the keys of messages and entries that were put."""
        self.log.flush()
        self.kept.apply(self.log.frames)
        batch = self.kept.write()
        assert_written(self.kept, self.log)
        return [item.key for item in batch.puts if item.key[:1] in (ENTRY, MESSAGE)]

    def idle(self) -> list[bytes]:
        """Write with nothing new but a frame."""
        self.log.queue(f"other {self.log.state.applied}")
        return self.write()

    @property
    def keys(self) -> list[bytes]:
        """Of messages and entries, of all that is kept."""
        return [key for key in self.kept.snapshot.keys if key[:1] in (ENTRY, MESSAGE)]

    def value(self, key: bytes) -> bytes:
        value = self.kept.snapshot.value(key)
        assert value is not None
        return value


def test_what_is_new_is_one_item_for_each_run() -> None:
    story = Story(BLOCK_ITEMS_MAX + 1)
    names = [story.ids[BLOCK_ITEMS_MAX - 1], story.ids[-1]]
    entries = [entries_block_key(story.q.id, QueuePosition(name)) for name in names]
    assert story.keys == [*entries, *map(messages_block_key, names)]


def test_big_contents_fill_a_block_by_their_bytes() -> None:
    story = Story(1)
    story.log.publish(*(message((story.q,), bytes(BLOCK_BYTES_MAX // 3)) for _ in range(3)))
    story.log.publish(message((story.q,), bytes(2 * BLOCK_BYTES_MAX)), message((story.q,)))
    assert len([key for key in story.write() if key[:1] == MESSAGE]) == 3


def test_what_came_and_went_between_two_writes_leaves_nothing() -> None:
    story = Story(1)
    before = story.keys
    story.publish(300, story.q, story.r)
    story.log.dequeue(story.r, *story.r.positions())
    story.accept(1)
    gone = story.log.queue("gone")
    story.publish(5, gone)
    story.log.append(DeleteQueue(None, gone.id))
    assert story.write() == []
    assert story.keys == before


def test_a_transaction_that_came_and_went_between_two_writes_is_not_even_deleted() -> None:
    story = Story(1)
    key = story.log.begin()
    story.log.publish(*(message((story.q,)) for _ in range(5)), transaction=key)
    story.log.commit(key)
    story.log.flush()
    story.kept.apply(story.log.frames)
    assert story.kept.write().deletes == ()
    assert_written(story.kept, story.log)


def test_a_transaction_that_was_written_is_deleted_when_it_ends() -> None:
    story = Story(1)
    key = story.log.begin()
    story.log.publish(*(message((story.q,)) for _ in range(5)), transaction=key)
    story.write()
    story.log.commit(key)
    story.log.flush()
    story.kept.apply(story.log.frames)
    assert len(story.kept.write().deletes) == 2
    assert_written(story.kept, story.log)


def test_a_block_whose_messages_are_all_accepted_leaves_nothing() -> None:
    story = Story(BLOCK_ITEMS_MAX)
    story.accept(0, 100)
    story.write()
    story.accept(0)
    story.write()
    assert story.keys == []


def test_what_leaves_a_block_of_messages_is_said_beside_it() -> None:
    story = Story(BLOCK_ITEMS_MAX)
    block = story.value(messages_block_key(story.ids[-1]))
    story.accept(0, 90)
    entries = entries_block_key(story.q.id, QueuePosition(story.ids[-1]))
    assert story.write() == [left_key(story.ids[-1]), entries]
    assert story.value(messages_block_key(story.ids[-1])) == block


@pytest.mark.parametrize("is_last_gone", [False, True])
def test_a_block_of_which_little_is_left_is_written_anew_when_it_is_left_alone(is_last_gone: bool) -> None:
    story = Story(BLOCK_ITEMS_MAX)
    name = story.ids[-1]
    size = len(story.value(messages_block_key(name)))
    story.accept(0, 100)
    if is_last_gone:
        story.accept(-1)
    story.write()
    assert len(story.value(messages_block_key(name))) == size, "soon all of it may be gone"
    story.idle()
    assert len(story.value(messages_block_key(name))) < size / 4
    assert left_key(name) not in story.keys
    story.kept.reload()
    story.accept(0, 5)
    assert left_key(name) in story.write(), "named as before"
    story.accept(0)
    story.write()
    assert story.keys == []


@pytest.mark.parametrize(("left", "is_written_anew"), [(32, True), (33, False)])
def test_little_is_a_quarter(left: int, is_written_anew: bool) -> None:
    story = Story(BLOCK_ITEMS_MAX)
    story.accept(0, -left)
    story.write()
    story.idle()
    assert (left_key(story.ids[-1]) not in story.keys) == is_written_anew


def test_one_stuck_message_does_not_keep_its_block() -> None:
    story = Story(BLOCK_ITEMS_MAX)
    positions = story.q.positions()
    story.log.dequeue(story.q, *positions[:50], *positions[51:])
    story.write()
    story.idle()
    story.publish(3, story.q)
    story.write()
    assert len(story.value(messages_block_key(story.ids[-1]))) < 100
    assert list(story.kept.snapshot.messages(*story.ids)) == [story.ids[50]]


def test_a_block_that_was_sparse_before_a_crash_is_written_anew_behind_it() -> None:
    story = Story(BLOCK_ITEMS_MAX)
    story.accept(0, -1)
    story.write()
    story.kept.reload()
    story.idle()
    story.idle()
    assert left_key(story.ids[-1]) not in story.keys
    assert len(story.value(messages_block_key(story.ids[-1]))) < 100


def test_few_blocks_are_written_anew_at_once() -> None:
    """Whoever waits for the snapshot does not wait for thousands."""
    story = Story(1)
    count = THINNED_MAX + 10
    for _ in range(count):
        story.publish(4, story.q)
        story.write()
    story.log.dequeue(story.q, *(each for number, each in enumerate(story.q.positions()[1:]) if number % 4))
    story.write()
    left = [key for key in story.keys if key.endswith(b"A")]
    assert len(left) == count
    story.idle()
    assert [key for key in story.keys if key.endswith(b"A")] == left[THINNED_MAX:]
    story.idle()
    assert not [key for key in story.keys if key.endswith(b"A")]


def test_a_message_in_two_queues_stays_until_both_are_done_with_it() -> None:
    story = Story(1)
    story.publish(10, story.q, story.r)
    story.write()
    story.accept(1)
    assert not [key for key in story.write() if key[:1] == MESSAGE]
    story.log.append(DeleteQueue(None, story.r.id))
    story.write()
    assert list(story.kept.snapshot.messages(*dict(story.log.state.contents.items()))) == story.ids


def test_delivery_counts_expiries_and_deaths_change_in_their_block() -> None:
    story = Story(BLOCK_ITEMS_MAX)
    positions = story.q.positions()
    block = entries_block_key(story.q.id, positions[-1])
    story.log.append(Requeue(None, story.q.id, (positions[3], positions[-1])))
    assert story.write() == [block]
    story.log.append(
        Move(None, 0, story.q.id, (positions[-1],), (story.r.id,), DequeueReason.REJECTED, (99,), 5)
    )
    (moved,) = story.r.positions()
    assert story.write() == [block, entries_block_key(story.r.id, moved)]
    assert story.kept.snapshot.messages(story.ids[-1]), "moved with its content, which stays in its block"
    story.kept.reload()
    assert story.r.deaths[moved] == (Death("q", DeathReason.REJECTED, 1, 5, 5),)
    story.log.append(Requeue(None, story.r.id, (moved,)))
    assert story.write() == [entries_block_key(story.r.id, moved)]


def test_what_is_said_of_entries_changes_in_their_block() -> None:
    story = Story(BLOCK_ITEMS_MAX)
    positions = story.q.positions()
    story.log.append(Annotate(None, story.q.id, (positions[3],), b"\xa3\x01a\x41"))
    assert story.write() == [entries_block_key(story.q.id, positions[-1])]
    story.kept.reload()
    assert story.q.annotations == {positions[3]: b"\xa3\x01a\x41"}


def test_contents_of_a_transaction_are_kept_before_anybody_sees_them() -> None:
    story = Story(1)
    key = story.log.begin(b"xid")
    story.log.publish(*(message((story.q,)) for _ in range(5)), transaction=key)
    (name,) = story.write()
    assert name[:1] == MESSAGE
    story.log.prepare(key, b"xid")
    assert story.write() == []
    story.kept.reload()
    story.log.append(Commit(None, key))
    (entries,) = story.write()
    assert entries[:1] == ENTRY


def test_contents_of_a_transaction_that_is_rolled_back_go() -> None:
    story = Story(1)
    before = story.keys
    key = story.log.begin(b"xid")
    story.log.publish(*(message((story.q,)) for _ in range(5)), transaction=key)
    story.write()
    story.log.rollback(key)
    story.write()
    assert story.keys == before


def test_single_items_are_changed_where_they_lie() -> None:
    story = Story(10, is_single=True)
    positions = story.q.positions()
    story.publish(2, story.q)
    story.write()
    story.log.append(Requeue(None, story.q.id, (positions[9],)))
    story.accept(0, 3)
    assert story.write() == [entry_key(story.q.id, positions[9])]
    assert [key for key in story.keys if key[:1] == MESSAGE][:-1] == list(map(message_key, story.ids[3:]))
    story.kept.reload()
    story.accept(2)
    story.write()
    assert len(story.keys) == 4


def test_a_deleted_queue_takes_its_blocks_and_items_with_it() -> None:
    story = Story(200, is_single=True)
    story.publish(200, story.q)
    story.write()
    story.log.append(DeleteQueue(None, story.q.id))
    story.write()
    assert story.keys == []


def test_a_body_leaves_the_state_when_it_is_written_and_not_before() -> None:
    story = Story(1)
    story.publish(2, story.q)
    story.log.flush()
    story.kept.apply(story.log.frames)
    contents = story.kept.state.contents
    assert [index_of(number) for number, _ in contents.items() if contents.get(number)] == [4, 4]
    story.write()
    assert not [number for number, _ in contents.items() if contents.get(number)]


def test_a_block_that_is_gone_is_not_written_anew() -> None:
    story = Story(BLOCK_ITEMS_MAX)
    story.accept(0, 100)
    story.log.flush()
    story.kept.apply(story.log.frames)
    story.kept.write()
    story.accept(0)
    story.write()
    assert story.kept.changes.thinned(story.ids[-1], b"what it was") == ((), (), ())
