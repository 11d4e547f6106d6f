"""Blocks of a snapshot: whoever reads gets every item in its order, and cannot tell how it was kept."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.block_cutting import (
    BLOCK_BYTES_MAX,
    BLOCK_ITEMS_MAX,
    MessageRun,
    cut_entries,
    cut_messages,
    messages_block,
)
from lockstep.core.ids import Epoch, LogIndex, MessageId, QueueId, QueuePosition, neighbours, place
from lockstep.core.item_blocks import (
    EntryRunValue,
    entries_block,
    entries_block_key,
    left_item,
    left_key,
    messages_block_key,
)
from lockstep.core.item_values import EntryValue, WholeMessage, encode, encode_content
from lockstep.core.items import MESSAGE, META_KEY, entry_key, message_key, outcome_key, queue_key
from lockstep.core.records import Message
from lockstep.core.store_protocol import StateItem
from services.store.core.blocks import PIECE_BLOCKS_MAX, PIECE_ITEMS_MAX, Scan, without
from services.store.core.disk import DiskError, DiskProblem
from tests.unit.services.store.snapshot_rig import Snapshot

QUEUE = QueueId(1)


def content(number: int) -> Message:
    return Message((QUEUE,), b"", b"body-%d" % number, is_durable=True)


def message_item(number: int) -> StateItem:
    return StateItem(message_key(MessageId(number)), encode_content(content(number)), True)


def block_of(*numbers: int) -> StateItem:
    runs = [MessageRun.of(run[0], [content(number) for number in run]) for run in neighbours(numbers)]
    return messages_block(MessageId(numbers[-1]), runs)


def old_block_of(*numbers: int) -> StateItem:
    """As versions before 0.5 wrote it."""
    pairs = [(number, WholeMessage(content(number))) for number in numbers]
    return block_of(*numbers)._replace(value=encode(pairs))


def entry_item(queue: int, number: int) -> StateItem:
    key = entry_key(QueueId(queue), QueuePosition(number))
    return StateItem(key, encode(EntryValue(MessageId(number), number % 2)), True)


def entries_of(queue: int, last: int, *numbers: int) -> StateItem:
    runs = [EntryRunValue(QueuePosition(number), MessageId(number), 1, number % 2) for number in numbers]
    return entries_block(QueueId(queue), QueuePosition(last), runs)


def old_entries_of(queue: int, last: int, *numbers: int) -> StateItem:
    pairs = [(number, EntryValue(MessageId(number), number % 2)) for number in numbers]
    return entries_of(queue, last, *numbers)._replace(value=encode(pairs))


def snapshot(*puts: StateItem) -> Snapshot:
    made = Snapshot()
    made.write(puts)
    return made


def blocks_of(count: int) -> list[StateItem]:
    """Full ones, but for the last."""
    numbers = range(count)
    return [block_of(*numbers[begin : begin + BLOCK_ITEMS_MAX]) for begin in range(0, count, BLOCK_ITEMS_MAX)]


def other(key: bytes) -> StateItem:
    return StateItem(key, b"other", True)


def messages(*numbers: int) -> list[StateItem]:
    return [message_item(number) for number in numbers]


META, AFTER = other(META_KEY), other(outcome_key((LogIndex(7), Epoch(1))))


class Kept:
    """A random snapshot: items, and how they are kept. Singles come before blocks, as nothing else ever makes them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.items = [META, other(queue_key(QueueId(1)))]
        self.puts = list(self.items)
        for queue in range(1, random.randint(1, 4)):
            numbers = self._numbers()
            self.items += [entry_item(queue, number) for number in numbers]
            for run, is_block in self._runs(numbers):
                last = run[-1] + random.choice((0, 0, 1))
                write_entries = random.choice((entries_of, old_entries_of))
                self.puts += (
                    [write_entries(queue, last, *run)]
                    if is_block
                    else [entry_item(queue, number) for number in run]
                )
        self.left: list[int] = []
        for run, is_block in self._runs(self._numbers()):
            if not is_block:
                self.puts += messages(*run)
                self.left += run
                continue
            left = [number for number in run if random.random() < 0.7] or run[:1]
            self.left += left
            write = random.choice((block_of, old_block_of))
            if len(left) == len(run):
                self.puts.append(write(*run))
            elif random.random() < 0.3:  # Written anew, and still named as before.
                self.puts.append(write(*left)._replace(key=messages_block_key(MessageId(run[-1]))))
            else:
                places = [run.index(number) for number in left]
                self.puts += [write(*run), left_item(MessageId(run[-1]), places)]
        self.items += messages(*self.left)
        if random.random() < 0.7:
            self.items.append(AFTER)
            self.puts.append(AFTER)
        self.snapshot = snapshot(*self.puts)

    def _numbers(self) -> list[int]:
        """Two apart at least, so that a block may be named by what is gone behind its last."""
        count = self.random.randint(0, 40)
        return [2 * number for number in sorted(self.random.sample(range(1, 200), count))]

    def _runs(self, numbers: list[int]) -> Iterable[tuple[list[int], bool]]:
        singles = self.random.choice((0, 0, len(numbers) // 2, len(numbers)))
        if singles:
            yield numbers[:singles], False
        while singles < len(numbers):
            size = self.random.randint(1, 15)
            yield numbers[singles : singles + size], True
            singles += size


RANDOMS = st.randoms(use_true_random=True)
SIZES = st.sampled_from((1, 10, 50, 400, 1 << 20))


@pytest.mark.fuzz
@given(RANDOMS, SIZES)
def test_a_scan_gives_every_item_in_key_order(random: Random, bytes_max: int) -> None:
    kept = Kept(random)
    assert kept.snapshot.scan(bytes_max=bytes_max) == kept.items
    assert kept.items == sorted(kept.items)


@pytest.mark.fuzz
@given(RANDOMS, SIZES)
def test_a_scan_begins_anywhere(random: Random, bytes_max: int) -> None:
    """At the key of an item, behind it, or at one that is gone."""
    kept = Kept(random)
    keys = [item.key for item in kept.items]
    for _ in range(5):
        key = random.choice([*keys, message_key(MessageId(random.randint(0, 500)))]) + random.choice(
            (b"", b"\0")
        )
        assert kept.snapshot.scan(key, bytes_max) == kept.items[bisect_left(keys, key) :]


@pytest.mark.fuzz
@given(RANDOMS)
def test_kept_messages_are_those_that_are_there(random: Random) -> None:
    kept = Kept(random)
    wanted = [MessageId(random.randint(0, 420)) for _ in range(random.randint(0, 30))]
    found = kept.snapshot.messages(*wanted)
    assert found == {number: message_item(number).value for number in wanted if number in kept.left}


def test_a_block_is_named_by_its_last() -> None:
    """Keys and values are for ever."""
    first, last = place(3, 0), place(3, 1)
    block = block_of(first, last)
    assert block.key == b"m" + bytes.fromhex("0000000003000001") + b"B"
    values = encode(content(first)) + encode(content(last))
    assert block.value == b"\x92\x01\x91\x92\xce\x03\x00\x00\x00\x92" + values
    left = left_item(MessageId(last), [1])
    assert left == (b"m" + bytes.fromhex("0000000003000001") + b"A", b"\x01", True)
    entries = entries_of(2, 9, 5, 8)
    assert entries.key == b"e" + bytes(7) + b"\x02" + bytes(7) + b"\x09" + b"B"
    assert entries.value == b"\x92\x01\x92\x95\x05\x05\x01\x01\xc0\x95\x08\x08\x01\x00\xc0"


def test_a_block_of_an_older_version_holds_pairs() -> None:
    block = old_block_of(place(3, 0), place(3, 1))
    assert block.value[:1] == b"\x92"
    assert block.value.endswith(b"\x92\xce\x03\x00\x00\x01" + encode_content(content(place(3, 1))))
    entries = old_entries_of(2, 9, 5, 7)
    assert entries.value == b"\x92\x92\x05" + entry_item(2, 5).value + b"\x92\x07" + entry_item(2, 7).value
    made = snapshot(entries, block)
    assert made.scan() == [entry_item(2, 5), entry_item(2, 7), *messages(place(3, 0), place(3, 1))]


def test_entries_that_came_together_are_one_run() -> None:
    run = EntryRunValue(QueuePosition(place(4, 1)), MessageId(place(3, 0)), 100)
    block = entries_block(QUEUE, QueuePosition(place(4, 100)), [run])
    assert len(block.value) < 20
    assert snapshot(block).scan() == [
        StateItem(
            entry_key(QUEUE, QueuePosition(place(4, 1) + each)),
            encode(EntryValue(MessageId(place(3, each)))),
            True,
        )
        for each in range(100)
    ]


@pytest.mark.fuzz
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 3)), max_size=8), st.sampled_from((1, 400, 50_000))
)
def test_runs_are_cut_into_blocks(sizes: list[tuple[int, int]], body_bytes: int) -> None:
    """Each in its order, none too big, unless a single message is."""
    first, messages, entries = 0, list[MessageRun](), list[EntryRunValue]()
    for count, gap in sizes:
        first += gap
        bodies = [Message((QUEUE,), b"", bytes(body_bytes))] * min(count, 500_000 // body_bytes)
        messages.append(MessageRun.of(first, bodies))
        entries.append(EntryRunValue(QueuePosition(first), MessageId(first + 7), count))
        first += count
    blocks = list(cut_messages(messages))
    ids = [number for block in blocks for run in block for number in run.ids]
    assert ids == [number for run in messages for number in run.ids]
    for block in blocks:
        count = sum(run.length for run in block)
        assert 1 <= count <= BLOCK_ITEMS_MAX and (count == 1 or count * body_bytes <= BLOCK_BYTES_MAX)
    cut = list(cut_entries(entries))
    assert [
        (position, position + run.message - run.first)
        for block in cut
        for run in block
        for position in run.positions
    ] == [(position, position + 7) for run in entries for position in run.positions]
    assert all(1 <= sum(run.count for run in block) <= BLOCK_ITEMS_MAX for block in cut)
    assert all(sum(run.count for run in block) == BLOCK_ITEMS_MAX for block in cut[:-1])


def test_an_empty_snapshot_has_nothing() -> None:
    assert snapshot().scan() == []
    assert snapshot().messages(MessageId(1)) == {}
    assert snapshot(block_of(1)).messages() == {}


def test_what_is_left_of_a_block_may_come_alone_in_a_piece() -> None:
    made = snapshot(block_of(1, 2, 3), left_item(MessageId(3), [0, 2]), block_of(4, 5))
    scan = Scan(made.the)
    assert made.run(scan.next(1)) == ((), False)
    assert made.run(scan.next(1)) == (tuple(messages(1, 3)), False)
    assert made.run(scan.next(1)) == (tuple(messages(4, 5)), True), (
        "what is left of one says nothing of the next"
    )
    assert made.run(scan.next(1)) == ((), True)


def test_some_goes_on_until_there_is_something() -> None:
    made = snapshot(block_of(1, 2), left_item(MessageId(2), [0]), block_of(3, 4))
    scan = Scan(made.the, message_key(MessageId(2)))
    assert made.run(scan.some(1)) == (tuple(messages(3, 4)), True)
    assert made.run(scan.some(1)) == ((), True)


def test_messages_that_are_wanted_together_are_read_together() -> None:
    wanted = range(1, 10_000, 7)
    made = snapshot(*blocks_of(10_000), AFTER)
    assert list(made.messages(*map(MessageId, wanted))) == list(wanted)
    assert made.jobs < 20


def test_a_piece_has_no_more_items_than_one_of_single_items_has() -> None:
    """Whoever takes it in sends no heartbeat meanwhile."""
    made = snapshot(META, *blocks_of(10_000), AFTER)
    scan, sizes, is_last = Scan(made.the), list[int](), False
    while not is_last:
        items, is_last = made.run(scan.next(1 << 20))
        sizes.append(len(items))
    assert sizes == [PIECE_ITEMS_MAX, PIECE_ITEMS_MAX, 10_002 - 2 * PIECE_ITEMS_MAX]
    assert made.scan(bytes_max=1 << 20) == [META, *messages(*range(10_000)), AFTER]


def test_a_piece_has_so_many_blocks_at_most() -> None:
    kept = blocks_of(10_000)
    made = snapshot(META, *kept, AFTER)
    scan, sizes, is_last = Scan(made.the), list[int](), False
    while not is_last:
        items, is_last = made.run(scan.blocks(1 << 20))
        sizes.append(len(items))
    assert sizes == [PIECE_BLOCKS_MAX, len(kept) + 2 - PIECE_BLOCKS_MAX]
    assert made.blocks() == [META, *kept, AFTER]


def test_messages_behind_the_last_are_not_looked_for_among_other_items() -> None:
    made = snapshot(block_of(1, 2), AFTER)
    assert made.messages(MessageId(3), MessageId(4)) == {}
    assert made.messages(MessageId(2), MessageId(4)) == {2: message_item(2).value}


@pytest.mark.parametrize("write", [block_of, old_block_of])
def test_a_block_without_some_is_named_as_before(write: Callable[..., StateItem]) -> None:
    thinned, left = without(write(1, 2, 3).value, {MessageId(1), MessageId(3)})
    assert (thinned, left) == (block_of(2).value, [range(2, 3)])
    made = snapshot(StateItem(messages_block_key(MessageId(3)), thinned, True))
    assert made.scan() == messages(2)
    assert made.messages(*map(MessageId, (1, 2, 3))) == {2: message_item(2).value}


def test_a_block_and_what_is_left_of_it_are_neighbours() -> None:
    keys = [
        message_key(MessageId(3)),
        left_key(MessageId(3)),
        messages_block_key(MessageId(3)),
        message_key(MessageId(4)),
    ]
    assert keys == sorted(keys)
    assert entries_block_key(QUEUE, QueuePosition(3)) < entry_key(QUEUE, QueuePosition(4))
    assert all(key.startswith(MESSAGE) for key in keys)


@pytest.mark.parametrize(
    "value", [b"", b"\xc0", b"\x92\x01\x02", block_of(1, 2).value[:-1], old_block_of(1, 2).value[:-1]]
)
def test_a_block_that_cannot_be_read_is_damage(value: bytes) -> None:
    made = snapshot(StateItem(messages_block_key(MessageId(2)), value, True))
    for read in (made.scan, made.blocks):
        with pytest.raises(DiskError) as caught:
            read()
        assert caught.value.problem is DiskProblem.CORRUPT
    with pytest.raises(DiskError):
        without(value, frozenset())
