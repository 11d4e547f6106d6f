"""Snapshots that are read while the state goes on: they show what was there when they were begun."""

import gc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.apply_transactions import ENDED_IN_ONE
from lockstep.core.items import ENTRY, Item, message_key
from lockstep.core.records import Annotate, Commit, DequeueReason, Move, Prepare
from lockstep.core.set_state import SetState
from lockstep.core.state_captures import CapturedContents, CapturedEntries, EntriesPiece
from lockstep.core.state_hash import state_hash
from tests.unit.lockstep.core.history import SET, Log, Writer, durable_replay, message
from tests.unit.services.store.crowd import Crowd

RANDOMS = st.randoms(use_true_random=True)
WRITERS = st.sampled_from((Crowd, Writer))
WANTED = st.sampled_from(((True, True), (True, False), (False, True)))


@pytest.mark.fuzz
@given(RANDOMS, WRITERS, st.integers(0, 80), st.integers(0, 40), WANTED, st.booleans(), st.booleans())
def test_a_snapshot_is_of_the_moment_at_which_it_was_begun(
    random: Random,
    kind: type[Crowd | Writer],
    before: int,
    after: int,
    wanted: tuple[bool, bool],
    bodies: bool,
    in_blocks: bool,
) -> None:
    writer = kind(random)
    for _ in range(before):
        writer.step()
    state = writer.log.state
    asked = (*wanted, bodies, in_blocks and wanted[0])
    expected = list(state.items(*asked))
    reading = state.items_in_pieces(*asked)
    found: list[Item] = []
    for _ in range(after):
        writer.step()
        for _ in range(random.randrange(4)):
            if (item := next(reading, None)) is not None:
                found.append(item)
    found += [item for item in reading if item is not None]
    assert found == expected


@pytest.mark.fuzz
@given(RANDOMS, WRITERS, st.integers(0, 80), st.integers(0, 40), WANTED, st.integers(1, 6))
def test_entries_are_read_in_pieces_however_small(
    random: Random, kind: type[Crowd | Writer], before: int, after: int, wanted: tuple[bool, bool], size: int
) -> None:
    writer = kind(random)
    for _ in range(before):
        writer.step()
    state = writer.log.state
    expected = entries_in(CapturedEntries(state, *wanted), wanted)
    captured = CapturedEntries(state, *wanted, piece_entries=size)
    pieces: list[EntriesPiece] = []
    for _ in range(after):
        writer.step()
        if random.randrange(2) and (piece := captured.next()) is not None:
            pieces.append(piece)
    assert entries_of(pieces, wanted) + entries_in(captured, wanted) == expected


@pytest.mark.fuzz
@given(RANDOMS, st.integers(0, 80), st.integers(0, 20), st.integers(0, 30))
def test_what_is_not_read_yet_is_kept_when_a_snapshot_is_laid_over_the_state(
    random: Random, before: int, read: int, after: int
) -> None:
    writer = Writer(random)
    log = writer.write(before)
    returned = durable_replay(log.frames)
    expected = list(returned.items())
    reading = returned.items_in_pieces()
    found = [item for _ in range(read) if (item := next(reading, None)) is not None]
    returned.overlay(log.state.items(durable=False))
    assert found + [item for item in reading if item is not None] == expected
    assert state_hash(returned) == state_hash(log.state)


@pytest.mark.parametrize("is_durable_wanted", [True, False])
def test_transactions_are_read_as_they_were_whatever_becomes_of_them(is_durable_wanted: bool) -> None:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    kept, again, ended, opened = (log.begin(xid=b"x%d" % number) for number in range(4))
    for key in (kept, again, ended, opened):
        log.publish(message((queue,)), transaction=key)
        log.publish(message((queue,), is_durable=False), transaction=key, is_durable=False)
    for key in (kept, ended):
        log.append(Prepare(None, key, False, log.state.transactions.live[key].xid, 7))
    log.prepare(again, log.state.transactions.live[again].xid)
    log.flush()
    expected = list(log.state.items(durable=is_durable_wanted))
    reading = log.state.items_in_pieces(durable=is_durable_wanted)
    log.append(Commit(None, ended))
    log.append(Prepare(None, again, False, log.state.transactions.live[again].xid, 8))
    log.publish(message((queue,)), transaction=opened)
    log.begin_epoch(is_restarted=True)
    assert list(log.state.items(durable=is_durable_wanted)) != expected
    assert [item for item in reading if item is not None] == expected


@pytest.mark.parametrize("is_in_pieces", [False, True])
def test_a_branch_of_very_many_operations_that_commits_meanwhile_is_read_as_it_was_prepared(
    is_in_pieces: bool,
) -> None:
    log = Log()
    log.begin_epoch()
    log.state.clearing.is_in_pieces = is_in_pieces
    queue = log.queue("q")
    key = log.begin(xid=b"x")
    for _ in range(ENDED_IN_ONE + 1):
        log.publish(message((queue,)), transaction=key)
    log.prepare(key, b"x")
    expected = list(log.state.items())
    reading = log.state.items_in_pieces()
    log.commit_prepared(key)
    log.state.finish()
    assert [item for item in reading if item is not None] == expected


def test_a_queue_that_has_nothing_more_to_read_hides_nothing_of_those_behind_it() -> None:
    """All that was not durable in it was one record's, and left behind the first piece."""
    log = Log()
    log.begin_epoch()
    first, behind = log.queue("first"), log.queue("behind", is_durable=False)
    log.publish(message((behind,)), is_durable=False)
    log.publish(*(message((first,), is_durable=False) for _ in range(3)), is_durable=False)
    log.publish(message((first,)))
    state, wanted = log.state, (False, True)
    expected = entries_in(CapturedEntries(state, *wanted), wanted)
    captured = CapturedEntries(state, *wanted, piece_entries=2)
    piece = captured.next()
    assert piece is not None
    log.dequeue(first, *first.positions()[:3], is_durable=False)
    assert entries_of([piece], wanted) + entries_in(captured, wanted) == expected


def test_who_lets_go_of_a_snapshot_leaves_nothing_behind() -> None:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    log.publish(message((queue,)))
    captures = log.state.changes.captures
    gc.disable()
    try:
        reading = log.state.items()
        next(reading)
        assert captures.of_contents and captures.of_entries
        del reading
        assert not captures.of_contents and not captures.of_entries
        list(log.state.items(in_blocks=True))
        assert not captures.of_contents and not captures.of_entries
    finally:
        gc.enable()


def test_what_was_said_of_entries_is_read_as_it_was() -> None:
    log = Log()
    log.begin_epoch()
    queue, dead = log.queue("q"), log.queue("dead")
    log.publish(message((queue,)), message((queue,)), message((queue,)))
    move = Move(None, 0, queue.id, tuple(queue.positions()), (dead.id,), DequeueReason.REJECTED, (), 5)
    log.append(move)
    first, second, _ = dead.positions()
    log.append(Annotate(None, dead.id, (first, second), b"\xa3\x01a\x41"))
    reading, expected = log.state.items(), list(log.state.items())
    log.append(Annotate(None, dead.id, (second,), b"\xa3\x01b\x41"))
    log.dequeue(dead, first)
    assert list(log.state.items()) != expected
    assert list(reading) == expected


def test_a_memory_snapshot_passes_what_is_durable_by() -> None:
    """It looks at what is not, and at nothing else, however long the queue is."""
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    for number in range(500):
        is_durable = number % 250 != 0
        log.publish(message((queue,), b"%d" % number, is_durable), is_durable=is_durable)
    captured = CapturedEntries(log.state, False, True)
    looked_at = 0
    while (piece := captured.next()) is not None:
        looked_at += sum(len(positions) for positions, _ in piece.pieces)
    assert looked_at == 2
    contents = CapturedContents(log.state, False)
    shelves = []
    while not contents.is_over:
        if (shelf := contents.next()) is not None:
            shelves.append(shelf)
    assert [len(shelf.transient_among(list(shelf.references))) for shelf in shelves] == [1, 1]
    items = list(log.state.items(durable=False))
    assert [item.key[:1] for item in items] == [ENTRY, ENTRY, message_key(0)[:1], message_key(0)[:1]]  # type: ignore[arg-type]


def test_a_restored_state_may_be_hashed_while_it_goes_on() -> None:
    log = Log()
    log.begin_epoch()
    queue = log.queue("q")
    log.publish(*(message((queue,), b"%d" % number) for number in range(100)))
    restored = SetState.from_items(SET, log.state.items(in_blocks=True))
    assert state_hash(restored) == state_hash(log.state)


def entries_in(captured: CapturedEntries, wanted: tuple[bool, bool]) -> list[tuple[object, ...]]:
    """All that is left to be read."""
    pieces = []
    while (piece := captured.next()) is not None:
        pieces.append(piece)
    return entries_of(pieces, wanted)


def entries_of(pieces: list[EntriesPiece], wanted: tuple[bool, bool]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for queue, is_queue_durable, parts, counts, expiries, transient, deaths, annotations in pieces:
        for positions, ids in parts:
            for position, message_id in zip(positions, ids, strict=True):
                is_durable = is_queue_durable and position not in transient
                if wanted[0 if is_durable else 1]:
                    entry = (queue, position, message_id, counts.get(position), expiries.get(position))
                    found.append((*entry, is_durable, deaths.get(position), annotations.get(position)))
    return found
