"""However many messages a state has, what is done with all of them is done in steps that look at few."""

import gc
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.apply_epochs import GIVEN_BACK_IN_ONE, begin_epoch
from lockstep.core.content_shelf import SHELF_BITS
from lockstep.core.entry_pages import PAGE_ENTRIES
from lockstep.core.ids import ORDINAL_BITS, Epoch, LogIndex, QueuePosition, place
from lockstep.core.invariants import check_invariants
from lockstep.core.items import QUEUE
from lockstep.core.log_copy import LogCopy
from lockstep.core.pieces import PIECE_COST, Pieces
from lockstep.core.position_tables import PositionTable
from lockstep.core.queues import RESTORED_IN_ONE
from lockstep.core.records import Bind, EpochBegins, OpenSession, Prepare, Requeue
from lockstep.core.restoration import Restoration
from lockstep.core.set_state import RECORD_COST, SPREAD_IN_ONE, STEP_RECORDS, WHOLE_MAX, SetState
from lockstep.core.state_captures import LOOKED_AT, PIECE_ENTRIES, CapturedContents, CapturedEntries
from lockstep.core.state_hash import hash_in_steps, state_hash
from tests.counted_work import CountedCalls
from tests.unit.lockstep.core.history import SET, Log, message, replay

ALONE, TOGETHER, RUN = 12_000, 400, 50
"""Messages that were published alone, and runs of so many messages each."""


def long_state() -> SetState:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    for number in range(ALONE):
        log.publish(message((queue,), b"%d" % number))
    for _ in range(TOGETHER):
        log.publish(*(message((queue,), b"x"),) * RUN)
    log.flush()
    return log.state


STATE = long_state()


def pieces_of(work: Iterator[int]) -> int:
    """How many pieces it is done in."""
    pieces, count = Pieces(), 0
    pieces.begin(work)
    while pieces.works:
        pieces.go_on()
        count += 1
    return count


def test_steps_cost_little_beside_a_piece() -> None:
    items = list(STATE.items(transient=False, in_blocks=True))
    restored = SetState(SET)
    restoration = Restoration(restored)
    costs = [*restoration.take_in_steps(items), *restoration.settle_in_steps()]
    assert max(costs) <= PIECE_COST
    assert sum(costs) >= ALONE
    check_invariants(restored)
    assert state_hash(restored) == state_hash(STATE)


def test_a_state_is_loaded_and_hashed_in_as_many_pieces_as_it_is_long() -> None:
    items = list(STATE.items(transient=False))
    restoration = Restoration(SetState(SET))
    assert pieces_of(restoration.take_in_steps(items)) >= ALONE // PIECE_COST
    assert pieces_of(restoration.settle_in_steps()) >= ALONE // PIECE_COST
    assert pieces_of(hash_in_steps(STATE.items_in_pieces(bodies=False))) >= ALONE // PIECE_COST


def test_entries_are_captured_a_few_at_a_time() -> None:
    captured = CapturedEntries(STATE, True, True)
    lengths: list[int] = []
    while (piece := captured.next()) is not None:
        lengths.append(sum(1 if isinstance(ids, range) else len(ids) for _, ids in piece.pieces))
    assert max(lengths) <= PIECE_ENTRIES + 1
    assert len(lengths) >= ALONE // PIECE_ENTRIES


def test_entries_of_which_something_is_said_are_captured_a_few_at_a_time_however_many_came_together() -> None:
    captured = CapturedEntries(transient_messages(4 * PIECE_ENTRIES), False, True)
    lengths: list[int] = []
    while (piece := captured.next()) is not None:
        lengths.append(sum(len(positions) for positions, _ in piece.pieces))
    assert max(lengths) <= PIECE_ENTRIES + 500
    assert sum(lengths) == 4 * PIECE_ENTRIES


def transient_messages(count: int) -> SetState:
    """In a durable queue, by records of 500."""
    log = Log(SetState(SET))
    log.begin_epoch()
    queue = log.queue("q")
    for _ in range(count // 500):
        log.publish(*[message((queue,), is_durable=False)] * 500, is_durable=False)
    return log.state


def empty_queues(count: int, is_durable: bool) -> SetState:
    log = Log(SetState(SET))
    log.begin_epoch()
    for number in range(count):
        log.queue(f"q{number}", is_durable)
    return log.state


@pytest.mark.parametrize(
    ("state", "is_transient_wanted", "in_blocks"),
    [
        (transient_messages(10 * LOOKED_AT), False, True),
        (transient_messages(10 * LOOKED_AT), False, False),
        (empty_queues(LOOKED_AT, True), True, True),
        (empty_queues(LOOKED_AT, False), True, False),
    ],
)
def test_others_have_their_turn_where_much_is_looked_at_and_nothing_found(
    state: SetState, is_transient_wanted: bool, in_blocks: bool
) -> None:
    reading = state.items_in_pieces(transient=is_transient_wanted, in_blocks=in_blocks)
    pauses = [item is None for item in reading if item is None or item.key[:1] != QUEUE]
    assert 8 <= sum(pauses) <= 50, "in as many turns as it is long, and no more"


def test_contents_are_captured_a_shelf_at_a_time() -> None:
    captured = CapturedContents(STATE, True)
    count = 0
    while not captured.is_over:
        shelf = captured.next()
        assert shelf is not None
        assert len(list(shelf.records())) <= 1 << (SHELF_BITS - ORDINAL_BITS)
        count += 1
    assert count >= (ALONE + TOGETHER) >> (SHELF_BITS - ORDINAL_BITS)


def test_a_copy_of_a_shelf_makes_nothing_of_each_content_before_its_record_is_read() -> None:
    log, records, each = Log(), 20, 200
    log.begin_epoch()
    # What goes to several queues has several references.
    targets = log.queue("q"), log.queue("other")
    for number in range(records):
        log.publish(*(message(targets, b"%d" % number),) * each, is_durable=number % 2 == 0)
    (shelf,) = log.state.contents.shelves.values()
    assert len(shelf.references) == records * each
    blocks = sys.getallocatedblocks()
    copy = shelf.copy()
    assert sys.getallocatedblocks() - blocks < each
    assert copy.has_transients
    reading, made, transients = copy.records(), list[int](), list[int]()
    gc.collect()  # Or what is free by chance hides some of what is made.
    for _ in range(records):
        blocks = sys.getallocatedblocks()
        ids, contents = next(reading)
        made.append(sys.getallocatedblocks() - blocks)
        transients.append(len(copy.transient_among(ids)))
        assert {content.body for content in contents} == {b"%d" % (len(made) - 1)}  # type: ignore[union-attr]
    assert max(made) < 3 * each
    assert transients == [0, each] * (records // 2)
    assert next(reading, None) is None


def test_a_change_copies_no_more_than_the_unit_that_it_is_in() -> None:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    for _ in range(500):
        log.publish(message((queue,)))
    entries, contents = CapturedEntries(log.state, True, True), CapturedContents(log.state, True)
    log.dequeue(queue, queue.positions()[250])
    saved = [unit for units in entries._saved.values() for unit in units.values()]
    assert [len(positions) for unit in saved for positions, _ in unit.pieces] == [1]
    assert len(contents._saved) == 1


def test_a_page_of_entries_does_not_grow_with_its_queue() -> None:
    log = Log(SetState(SET))
    log.begin_epoch()
    queue, other = log.queue("q"), log.queue("other")
    for _ in range(3):
        # Of a batch that goes to several queues each message is kept by itself.
        log.publish(
            *(message((queue, other) if number % 2 else (queue,)) for number in range(PAGE_ENTRIES * 2))
        )
        for _ in range(PAGE_ENTRIES):
            log.publish(message((queue,)))
    restored = SetState.from_items(SET, list(log.state.items()))
    for each in (queue, restored.queues.by_name["q"]):
        assert each.length == PAGE_ENTRIES * 9
        assert max(len(page.order) for page in each._pages) <= PAGE_ENTRIES + RESTORED_IN_ONE
    log.dequeue(queue, *queue.positions()[:-1])
    assert [len(page.single) for page in queue._pages] == [1]


def test_what_is_said_of_entries_is_kept_on_pages_that_do_not_grow_with_their_number() -> None:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    records, each = 1000, 3
    for _ in range(records):
        log.publish(*(message((queue,)),) * each, is_durable=False)
    log.append(Requeue(None, queue.id, tuple(queue.positions())))
    for table in (queue.transient_positions, queue.delivery_counts):
        assert len(table) == records * each == len(list(table))
        assert max(map(len, table.pages.values())) == each << (SHELF_BITS - ORDINAL_BITS)
    log.dequeue(queue, *queue.positions()[1:])
    assert [len(table) for table in (queue.transient_positions, queue.delivery_counts)] == [1, 1]
    check_invariants(log.state)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 3))))
def test_a_position_table_is_a_dict(deeds: list[tuple[bool, int, int]]) -> None:
    table, model = PositionTable[int](), dict[QueuePosition, int]()
    for is_said, index, ordinal in deeds:
        position = QueuePosition(place(index * 20, ordinal))
        if is_said:
            table[position] = model[position] = index
        else:
            table.remove([position])
            model.pop(position, None)
        assert (len(table), bool(table), position in table) == (len(model), bool(model), position in model)
        assert table.get(position) == model.get(position) and table.get(position, 7) == model.get(position, 7)
    assert list(table.items()) == sorted(model.items())
    assert [position for part in table.parts() for position in part] == sorted(model)
    assert table.any_of(model) is bool(model)


def test_open_transactions_are_given_back_in_steps_that_look_at_few_operations() -> None:
    log = Log()
    log.begin_epoch()
    queue, operations = log.queue("q"), 3 * GIVEN_BACK_IN_ONE + 1
    for _ in range(2):
        key = log.begin()
        for _ in range(operations):
            log.publish(message((queue,)), transaction=key)
    record = EpochBegins(None, Epoch(2), "broker", False)
    steps = list(begin_epoch(log.state, LogIndex(log.state.applied + 1), record))
    assert len(steps) == 10 and max(steps) <= PIECE_COST
    assert len(log.state.contents) == 0 and queue.reserved_length == 0


@pytest.mark.parametrize("is_restored", [False, True])
def test_what_an_epoch_aborts_is_given_back_in_steps_that_look_at_few_queues_and_messages(
    is_restored: bool,
) -> None:
    """Of few operations, each of which is for many queues, or accepts many messages."""
    longest = []
    for operations in (20, 60):
        log = Log()
        log.begin_epoch()
        queues = tuple(log.queue(f"q{number}") for number in range(200))
        log.publish(*(message(queues[:1], b"x"),) * 2 * GIVEN_BACK_IN_ONE)
        log.publish(*(message(queues[:1], b"x"),) * GIVEN_BACK_IN_ONE * operations)
        positions = queues[0].positions()
        key = log.begin()
        log.dequeue(queues[0], *positions, transaction=key)
        for _ in range(operations):
            log.publish(message(queues), transaction=key)
        if is_restored:
            state = SetState.from_items(SET, log.state.items())
        else:
            state = log.state
        record = EpochBegins(None, Epoch(2), "broker", False)
        calls = calls_by_step(begin_epoch(state, LogIndex(state.applied + 1), record))
        longest.append(max(calls))
        check_invariants(state)
        assert not state.queues.by_name["q0"].locks and not state.queues.by_name["q7"].reserved_length
    assert longest[1] <= 1.2 * longest[0]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_of_single_operations_ends_by_queues_and_not_by_operations(is_committed: bool) -> None:
    calls = []
    for operations in (100, 300):
        log = Log()
        log.begin_epoch()
        queue = log.queue("q")
        for _ in range(operations):
            log.publish(message((queue,)))
        positions = queue.positions()
        key = log.begin()
        for position in positions:
            log.publish(message((queue,)), transaction=key)
            log.dequeue(queue, position, transaction=key)
        with CountedCalls() as counted:
            (log.commit if is_committed else log.rollback)(key)
        calls.append(_of_queues(counted))
        if is_committed:
            # Page by page: what was accepted leaves.
            calls[-1] = {name: count for name, count in calls[-1].items() if not name.endswith("release")}
        assert queue.length == operations
        check_invariants(log.state)
    assert calls[0] == calls[1]


_OF_QUEUES = ("append", "remove", "unlock", "locked_by", "count_delivery", "release", "reserve")


def _of_queues(calls: CountedCalls) -> dict[str, int]:
    """Of functions that take entries of a queue, their contents and their room in and out, and lock them."""
    return {name: count for name, count in calls.by_name.items() if name.rpartition(".")[2] in _OF_QUEUES}


def test_a_long_transaction_is_collected_in_several_steps_where_a_frame_has_all_of_it() -> None:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    log.flush()
    key = log.begin()
    for _ in range(10 * WHOLE_MAX):
        log.publish(message((queue,)), transaction=key)
    log.commit(key)
    log.flush()
    state = replay(log.frames[:-1])
    steps = list(state.apply_in_steps(log.frames[-1]))
    assert len(steps) > 10 and max(steps) <= RECORD_COST * STEP_RECORDS
    assert state_hash(state) == state_hash(log.state)


@pytest.mark.parametrize("is_durable", [True, False])
def test_what_is_rolled_back_is_given_back_a_few_publishes_at_a_time_if_each_message_is_looked_at(
    is_durable: bool,
) -> None:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q", is_durable)
    log.publish(message((queue,)), is_durable=False)
    key, together = log.begin(), 2 * GIVEN_BACK_IN_ONE
    for _ in range(6):
        log.publish(*(message((queue,)),) * together, is_durable=is_durable, transaction=key)
    log.flush()
    before = len(log.frames)
    log.rollback(key)
    log.flush()
    state = replay(log.frames[:before])
    state.clearing.is_in_pieces, state.done_in_one = True, 1
    left = [len(state.contents)]
    for _ in state.apply_in_steps(log.frames[before]):
        left.append(len(state.contents))
    assert max(one - next_one for one, next_one in pairwise(left)) <= together
    assert left[-1] == 1
    assert state_hash(state) == state_hash(log.state)
    check_invariants(state)


def test_what_an_epoch_aborts_and_a_restart_loses_goes_in_steps_where_frames_are_applied() -> None:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    key = log.begin()
    for _ in range(3 * GIVEN_BACK_IN_ONE):
        log.publish(message((queue,)), is_durable=False)
        log.publish(message((queue,)), transaction=key)
    log.flush()
    before = len(log.frames)
    log.begin_epoch(is_restarted=True)
    log.flush()
    state = replay(log.frames[:before])
    left = [len(state.contents)]
    for _ in state.apply_in_steps(log.frames[before]):
        left.append(len(state.contents))
    assert max(one - next_one for one, next_one in pairwise(left)) <= GIVEN_BACK_IN_ONE
    assert left[-1] == 0
    assert state_hash(state) == state_hash(log.state)
    check_invariants(state)


MANY = 600


def many_branches(log: Log) -> None:
    queue = log.queue("q")
    for number in range(MANY):
        xid = b"xid%d" % number
        key = log.begin(xid)
        log.publish(message((queue,)), transaction=key)
        log.prepare(key, xid)


def many_open(log: Log) -> None:
    for _ in range(MANY):
        log.begin()


def many_sessions(log: Log) -> None:
    for number in range(MANY):
        log.append(OpenSession(None, f"session{number}", 1000), False)


def many_queues(log: Log) -> None:
    for number in range(MANY):
        log.queue(f"q{number}", is_durable=False)


def many_exchanges(log: Log) -> None:
    for number in range(MANY):
        log.exchange(f"x{number}", is_durable=False)


def many_bindings(log: Log) -> None:
    queue, exchange = log.queue("q", is_durable=False), log.exchange("x")
    for number in range(MANY):
        log.append(Bind(None, exchange, queue.id, f"key{number}", ()), False)


@pytest.mark.parametrize(
    "many", [many_branches, many_open, many_sessions, many_queues, many_exchanges, many_bindings]
)
def test_whatever_there_is_much_of_an_epoch_behind_a_restart_begins_in_steps_that_look_at_few(
    many: Callable[[Log], None],
) -> None:
    log = Log()
    log.begin_epoch()
    many(log)
    log.flush()
    before = len(log.frames)
    log.begin_epoch(is_restarted=True)
    log.flush()
    state = replay(log.frames[:before])
    calls = calls_by_step(state.apply_in_steps(log.frames[before]))
    # The last step is the record itself, which finds all of it done, and what closes a frame.
    assert len(calls) > MANY and max(calls) < 100
    assert state_hash(state) == state_hash(log.state)
    check_invariants(state)


def test_what_is_prepared_is_read_a_few_at_a_time() -> None:
    log, branches = Log(), 2000
    log.begin_epoch()
    queue = log.queue("q")
    for number in range(branches):
        key = log.begin(xid=b"%d" % number)
        log.publish(message((queue,)), transaction=key)
        log.append(Prepare(None, key, False, b"%d" % number))
    log.flush()

    def reading(is_durable_wanted: bool) -> Iterator[int]:
        for _ in log.state.items_in_pieces(durable=is_durable_wanted):
            yield 0

    for is_durable_wanted in (True, False):
        calls = calls_by_step(reading(is_durable_wanted))
        assert len(calls) > (branches if is_durable_wanted else 10)
        assert max(calls) <= 3 * branches, "a look at each to begin with, and then at its key"


def calls_by_step(work: Iterator[int]) -> list[int]:
    """How many functions are called in each step."""
    totals = [0]
    with CountedCalls() as calls:
        for _ in work:
            totals.append(calls.total)
    return [later - earlier for earlier, later in pairwise([*totals, calls.total])]


@pytest.mark.parametrize("is_committed", [True, False])
def test_who_follows_applies_the_end_of_a_long_transaction_in_steps_whatever_ends_it(
    is_committed: bool,
) -> None:
    longest = []
    for operations in (3000, 6000):
        log = Log()
        log.begin_epoch()
        queue = log.queue("q")
        log.publish(*(message((queue,)),) * operations)
        key = log.begin()
        log.dequeue(queue, *queue.positions(), transaction=key)
        for _ in range(operations):
            log.publish(message((queue,)), transaction=key)
        log.flush()
        before = len(log.frames)
        (log.commit if is_committed else log.rollback)(key)
        log.flush()
        copy = LogCopy(SetState(SET), LogIndex(0), 1 << 40)
        for frame in log.frames:
            copy.append(frame)
        copy.apply_to(log.frames[before - 1].header.last)
        assert not copy.apply_at_once(copy.log_end, PIECE_COST)
        calls = calls_by_step(copy.apply_in_steps(copy.log_end))
        assert len(calls) > 2 and copy.state.applied == copy.log_end
        longest.append(max(calls))
        assert state_hash(copy.state) == state_hash(log.state)
        check_invariants(copy.state)
    assert longest[1] <= 1.2 * longest[0]


def test_what_is_half_done_is_done_with_the_next_record_and_for_whoever_looks_at_all() -> None:
    log = Log()
    log.state.clearing.is_in_pieces, log.state.done_in_one = True, 1
    log.begin_epoch()
    queue = log.queue("q")
    for end in (log.commit, log.rollback):
        key = log.begin()
        for _ in range(3):
            log.publish(message((queue,)), transaction=key)
        end(key)
        assert is_unfinished(log.state)
        log.publish(message((queue,)))
        assert not is_unfinished(log.state)
        check_invariants(log.state)
    key = log.begin()
    log.publish(message((queue,)), transaction=key)
    log.commit(key)
    log.flush()
    assert is_unfinished(log.state)
    assert state_hash(replay(log.frames)) == state_hash(log.state)
    assert not is_unfinished(log.state) and queue.length == 6


def is_unfinished(state: SetState) -> bool:
    return state.unfinished is not None


@pytest.mark.parametrize(
    ("transactions", "messages", "queues"), [(0, 20, 200), (1, WHOLE_MAX + 50, 50), (20, 20, 200)]
)
def test_who_follows_has_turns_between_messages_that_go_to_many_queues(
    transactions: int, messages: int, queues: int
) -> None:
    """In none, in one, or each in one of its own."""
    log = Log()
    log.begin_epoch()
    targets = tuple(log.queue(f"q{number}") for number in range(queues))
    log.flush()
    before = log.frames[-1].header.last
    for _ in range(max(transactions, 1)):
        key = log.begin() if transactions else None
        for number in range(messages // max(transactions, 1)):
            log.publish(message(targets, b"%d" % number), transaction=key)
        if key is not None:
            log.commit(key)
    log.flush()
    copy = LogCopy(SetState(SET), LogIndex(0), 1 << 40)
    for frame in log.frames:
        copy.append(frame)
    copy.apply_to(before)
    calls = calls_by_step(copy.apply_in_steps(copy.log_end))
    assert len(calls) >= min(messages, messages * queues // (2 * SPREAD_IN_ONE))
    assert 10 * max(calls) <= sum(calls)
    assert state_hash(copy.state) == state_hash(log.state)
