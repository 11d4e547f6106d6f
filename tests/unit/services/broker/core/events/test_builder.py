"""From frames to committed transactions: what a record means to readers is what it does in the state (DESIGN 7; history 19)."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.ids import LogIndex, QueuePosition, SessionKey, TransactionKey
from lockstep.core.queues import Queue
from lockstep.core.records import (
    CommandRef,
    Commit,
    DeleteExchange,
    DeleteQueue,
    DequeueReason,
    Move,
    Prepare,
    Publish,
    RollbackReason,
)
from services.broker.core.events.builder import ContentGone, DecodedFrame, EventBuilder
from services.broker.core.events.state_names import StateNames
from services.broker.core.events.transactions import CommittedTransaction, EventKind
from tests.counted_work import CountedCalls
from tests.unit.lockstep.core.history import Log, Writer, durable_replay, message
from tests.unit.services.broker.core.events.event_rig import all_words, position, read, told, words


def test_every_durable_effect_is_an_event_at_its_place() -> None:
    log = Log()
    queue = log.queue("q")
    at = log.publish(message((queue,), b"one"), message((queue,), b"two"))
    log.dequeue(queue, position(at, 1))
    declared, published, dequeued = told(log)
    assert words(declared) == ["declare q"]
    assert words(published) == [f"enqueue q {at}.0", f"enqueue q {at}.1"]
    assert [one.body for one in published.effects[0].messages] == [b"one", b"two"]
    assert (published.index, published.epoch, published.key) == (at, 1, None)
    assert words(dequeued) == [f"dequeue q {at}.1"]
    assert dequeued.effects[0].reason == DequeueReason.ACCEPTED


@pytest.mark.parametrize("is_transaction", [False, True])
def test_what_went_to_very_many_queues_is_told_of_one_record_after_the_other(is_transaction: bool) -> None:
    log, publishes = Log(), 20
    queues = tuple(log.queue(f"q{number}") for number in range(50))
    log.flush()
    key = log.begin() if is_transaction else None
    for _ in range(publishes):
        log.publish(message(queues), transaction=key)
    if key is not None:
        log.commit(key)
    log.flush()
    builder = EventBuilder(StateNames(log.state), log.frames[0].header.last)
    steps = builder.feed_in_steps(DecodedFrame.of(log.frames[1].durable))
    most = total = 0
    while True:
        with CountedCalls() as counted:
            try:
                next(steps)
            except StopIteration as ended:
                committed: list[CommittedTransaction] = ended.value
                break
        made = counted.by_name["StateNames.queue"]
        most, total = max(most, made), total + made
    assert sum(done.events for done in committed) == total == publishes * len(queues)
    assert most == len(queues)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (DequeueReason.ACCEPTED, EventKind.DEQUEUE),
        (DequeueReason.REJECTED, EventKind.DEQUEUE),
        (DequeueReason.PURGED, EventKind.DEQUEUE),
        (DequeueReason.EXPIRED, EventKind.EXPIRE),
        (DequeueReason.EVICTED, EventKind.EXPIRE),
    ],
)
def test_events_say_how_a_message_left(reason: int, kind: EventKind) -> None:
    log = Log()
    queue = log.queue("q")
    at = log.publish(message((queue,)))
    log.dequeue(queue, position(at), reason=reason)
    (effects,) = told(log)[-1].effects
    assert (effects.kind, effects.reason) == (kind, reason)


def test_a_message_for_several_queues_is_an_event_in_each() -> None:
    log = Log()
    one, two = log.queue("one"), log.queue("two")
    at = log.publish(message((one, two), b"both"), message((two,), b"second"))
    assert words(told(log)[-1]) == [f"enqueue one {at}.0", f"enqueue two {at}.0", f"enqueue two {at}.1"]


def test_what_is_transient_is_no_event() -> None:
    log = Log()
    queue, other = log.queue("q"), log.queue("transient", is_durable=False)
    log.publish(message((queue,), is_durable=False), is_durable=False)
    assert all_words(told(log)) == ["declare q"]
    at = log.publish(message((queue, other)))
    assert all_words(told(log)) == ["declare q", f"enqueue q {at}.0"]
    assert told(log) == told(log, state=durable_replay(log.frames)), "whoever still has the transient queue"


def test_a_transaction_is_one_at_the_index_of_its_commit() -> None:
    log = Log()
    queue = log.queue("q")
    at = log.publish(message((queue,), b"old"))
    log.flush()
    key = log.begin()
    log.publish(message((queue,), b"new"), transaction=key)
    log.dequeue(queue, position(at), transaction=key)
    log.flush()
    committed = log.commit(key)
    done = told(log)[-1]
    assert (done.index, done.key) == (committed, key)
    assert words(done) == [f"enqueue q {committed}.0", f"dequeue q {at}.0"]
    assert done.time_ms - done.started_ms == 7, "the commit is in the frame behind its operations"
    assert not done.is_joint


def test_a_branch_says_its_name_and_in_which_sets_its_transaction_is() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin(b"branch")
    log.publish(message((queue,)), transaction=key)
    log.append(Prepare(None, key, False, b"branch", 0, ("east", "west")))
    assert len(told(log)) == 1, "prepared is not committed"
    log.append(Commit(None, key))
    done = told(log)[-1]
    assert (done.xid, done.resource_sets, done.is_joint, done.is_heuristic) == (
        b"branch",
        ("east", "west"),
        True,
        False,
    )


def test_sets_that_a_repeated_vote_names_are_told_wherever_a_reader_begins() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin(b"branch")
    log.publish(message((queue,)), transaction=key)
    places = [log.prepare(key, b"branch")]
    log.flush()
    log.publish(message((queue,)))
    places += [log.prepare(key, b"branch", ("east", "west")), log.prepare(key, b"branch")]
    log.flush()
    committed = log.commit_prepared(key)
    for after in (0, *places):
        done = told(log, after)[-1]
        assert (done.index, done.resource_sets) == (committed, ("east", "west"))
        assert words(done) == [f"enqueue q {committed}.0"]


def test_who_has_only_a_repeated_vote_does_not_tell_when_the_transaction_began() -> None:
    """Nothing durable was done in it: the vote is the first that the log has of it, and the time of another would be told."""
    log = Log()
    key = log.begin(b"branch")
    first = log.prepare(key, b"branch")
    log.flush()
    log.prepare(key, b"branch", ("east", "west"))
    log.flush()
    log.rollback(key, RollbackReason.COORDINATOR)
    (whole,) = told(log, first)
    assert whole.started_ms < whole.time_ms - 7, "by its first vote"
    with pytest.raises(ContentGone):
        told(log, first, lowest=first + 1)


def test_a_vote_that_was_learnt_before_what_was_done_first_counts_when_that_is_learnt_too() -> None:
    """Another transaction, that ends first, began between what was done and the vote: so much is looked up for it."""
    log = Log()
    queue = log.queue("q")
    key = log.begin(b"branch")
    log.publish(message((queue,)), transaction=key)
    log.flush()
    other = log.begin()
    log.flush()
    voted = log.prepare(key, b"branch")
    log.flush()
    log.publish(message((queue,)), transaction=other)
    log.commit(other)
    log.flush()
    committed = log.commit_prepared(key)
    assert told(log, voted) == told(log)[1:]
    assert words(told(log, voted)[-1]) == [f"enqueue q {committed}.0"]


@pytest.mark.parametrize("is_heuristic", [False, True])
def test_a_heuristic_end_is_said(is_heuristic: bool) -> None:
    log = Log()
    queue = log.queue("q")
    for number in range(2):
        key = log.begin(b"branch")
        log.publish(message((queue,)), transaction=key)
        log.prepare(key, b"branch")
        if number:
            log.append(Commit(None, key, is_heuristic))
        else:
            log.rollback(key, RollbackReason.HEURISTIC if is_heuristic else RollbackReason.COORDINATOR)
    _, rolled_back, committed = told(log)
    assert (rolled_back.is_heuristic, committed.is_heuristic) == (is_heuristic, is_heuristic)
    assert words(rolled_back) == ["rollback"]
    assert words(committed) == [f"enqueue q {committed.index}.0"]


def test_a_rollback_counts_what_was_undone() -> None:
    log = Log()
    queue = log.queue("q")
    at = log.publish(message((queue,)))
    key = log.begin()
    log.publish(message((queue,)), message((queue,)), transaction=key)
    log.dequeue(queue, position(at), transaction=key)
    log.rollback(key, RollbackReason.TIMED_OUT)
    done = told(log)[-1]
    assert words(done) == ["rollback"]
    assert (done.undone_publishes, done.undone_accepts) == (2, 1)
    assert (done.rollback_reason, done.key) == (RollbackReason.TIMED_OUT, key)


def test_behind_prepare_only_a_coordinator_or_an_operator_ends_a_branch() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin(b"branch")
    log.publish(message((queue,)), transaction=key)
    log.prepare(key, b"branch")
    for reason in (RollbackReason.TIMED_OUT, RollbackReason.FENCED, RollbackReason.SESSION_ENDED):
        log.rollback(key, reason)
    log.append(Commit(None, key))
    assert all_words(told(log)) == ["declare q", f"enqueue q {log.state.applied}.0"]


def test_a_new_epoch_aborts_what_is_open_and_leaves_what_is_prepared() -> None:
    log = Log()
    queue = log.queue("q")
    open_one, prepared = log.begin(), log.begin(b"branch")
    for key in (open_one, prepared):
        log.publish(message((queue,)), transaction=key)
    log.prepare(prepared, b"branch")
    log.begin_epoch()
    log.rollback(open_one)
    log.append(Commit(None, prepared))
    assert all_words(told(log)) == ["declare q", f"enqueue q {log.state.applied}.0"]
    assert told(log)[-1].epoch == 2


def test_a_prepared_branch_whose_queue_is_deleted_has_no_events_there() -> None:
    log = Log()
    kept, deleted = log.queue("kept"), log.queue("deleted")
    key = log.begin(b"branch")
    log.publish(message((kept, deleted)), transaction=key)
    log.prepare(key, b"branch")
    log.append(DeleteQueue(None, deleted.id))
    log.append(Commit(None, key))
    done = told(log)[-1]
    assert words(done) == [f"enqueue kept {done.index}.0"]


def test_events_of_a_queue_that_was_deleted_since_name_it() -> None:
    log = Log()
    queue = log.queue("q")
    at = log.publish(message((queue,)))
    log.append(DeleteQueue(None, queue.id))
    log.queue("q")
    assert all_words(told(log)) == ["declare q", f"enqueue q {at}.0", "delete q", "declare q"]
    first, second = told(log)[0], told(log)[-1]
    assert first.effects[0].resource != second.effects[0].resource, "ids are never given out twice"


def test_deleting_a_queue_twice_is_one_event() -> None:
    log = Log()
    queue = log.queue("q")
    log.append(DeleteQueue(None, queue.id))
    log.append(DeleteQueue(None, queue.id))
    assert all_words(told(log)) == ["declare q", "delete q"]


def test_exchanges() -> None:
    log = Log()
    exchange = log.exchange("x")
    log.append(DeleteExchange(None, exchange))
    declared, deleted = told(log)
    assert [done.effects[0].is_exchange for done in (declared, deleted)] == [True, True]
    assert [done.effects[0].kind for done in (declared, deleted)] == [EventKind.DECLARE, EventKind.DELETE]
    assert declared.effects[0].resource == deleted.effects[0].resource == exchange
    assert [done.effects[0].name for done in (declared, deleted)] == ["x", "x"]


def test_dead_lettering_to_several_targets_is_one_transaction() -> None:
    log = Log()
    queue, one, two = log.queue("q"), log.queue("one"), log.queue("two")
    at = log.publish(message((queue,)), message((queue,)))
    moved = log.append(
        Move(
            None,
            3,
            queue.id,
            (position(at, 0), position(at, 1)),
            (one.id, two.id),
            DequeueReason.EXPIRED,
            (0, 99),
        )
    )
    done = told(log)[-1]
    assert words(done) == [
        f"dead_letter q {at}.0",
        f"dead_letter q {at}.1",
        f"enqueue one {moved}.3",
        f"enqueue one {moved}.4",
        f"enqueue two {moved}.3",
        f"enqueue two {moved}.4",
    ]
    left, *arrived = done.effects
    assert left.reason == DequeueReason.EXPIRED
    assert [list(effects.sources) for effects in arrived] == [[position(at, 0), position(at, 1)]] * 2
    assert [effects.expires_ms for effects in arrived] == [0, 99]


def test_dead_letters_of_a_transient_queue_are_not_its_events() -> None:
    """They leave no durable trace where they came from or where they cannot stay."""
    log = Log()
    queue, transient = log.queue("q"), log.queue("transient", is_durable=False)
    at = log.publish(message((queue,)))
    log.append(Move(None, 0, queue.id, (position(at),), (transient.id,)))
    assert words(told(log)[-1]) == [f"dead_letter q {at}.0"]


def test_the_session_of_a_command_is_said() -> None:
    log = Log()
    queue = log.queue("q")
    log.append(Publish(CommandRef(SessionKey(77), 1), None, 0, (message((queue,)),)))
    assert told(log)[-1].session == 77
    assert told(log)[0].session == 0


# --- beginning anywhere -------------------------------------------------------------------------------------------------


def long_transaction() -> tuple[Log, LogIndex]:
    """Operations in two frames, the prepare in a third, the commit in a fourth; between them other work."""
    log = Log()
    queue = log.queue("q")
    key = log.begin(b"branch")
    for body in (b"one", b"two"):
        log.publish(message((queue,), body), transaction=key)
        log.publish(message((queue,), b"other"))
        log.flush()
    log.prepare(key, b"branch", ("east", "west"))
    log.publish(message((queue,), b"other"))
    log.flush()
    return log, log.commit_prepared(key)


def test_who_begins_behind_a_transactions_begin_gets_all_of_it() -> None:
    log, commit = long_transaction()
    whole = told(log)
    done = whole[-1]
    assert [one.body for effects in done.effects for one in effects.messages] == [b"one", b"two"]
    for after in range(commit):
        assert told(log, after) == [one for one in whole if one.index > after], f"behind {after}"


def test_who_begins_behind_the_commit_gets_nothing_of_it() -> None:
    log, commit = long_transaction()
    assert told(log, commit) == []


def test_a_reading_that_ends_inside_a_frame_and_the_next_one_give_all() -> None:
    log = Log()
    queue = log.queue("q")
    for number in range(5):
        log.publish(message((queue,), b"%d" % number))
    whole = told(log)
    for until in range(1, len(whole)):
        first = [done for done in whole if done.index <= until]
        assert first + told(log, until) == whole


@pytest.mark.fuzz
@given(st.randoms(use_true_random=True), st.integers(0, 60))
def test_events_are_the_same_for_whoever_reads_them_from_wherever(random: Random, steps: int) -> None:
    log = Writer(random).write(steps)
    whole = told(log, state=durable_replay(log.frames))
    assert told(log) == whole, "names are those of durable queues, whoever has others besides"
    for after in sorted(random.sample(range(log.state.applied + 1), min(4, log.state.applied))):
        assert told(log, after) == [done for done in whole if done.index > after], f"behind {after}"


class PureWriter(Writer):
    """As a primary does it, no record takes durable and transient messages of one queue."""

    def _free(self, queue: Queue) -> list[QueuePosition]:
        return [free for free in super()._free(queue) if not queue.is_durable or queue.is_entry_durable(free)]


@pytest.mark.fuzz
@given(st.randoms(use_true_random=True), st.integers(0, 60))
def test_what_was_enqueued_and_not_dequeued_is_what_durable_queues_hold(random: Random, steps: int) -> None:
    log = PureWriter(random).write(steps)
    held: dict[int, set[int]] = {}
    for done in told(log):
        for effects in done.effects:
            if effects.kind is EventKind.ENQUEUE:
                queue = held.setdefault(effects.resource, set())
                assert queue.isdisjoint(effects.positions), "no position twice"
                queue.update(effects.positions)
            elif effects.kind in (EventKind.DEQUEUE, EventKind.EXPIRE, EventKind.DEAD_LETTER):
                assert held[effects.resource].issuperset(effects.positions), "every dequeue after its enqueue"
                held[effects.resource].difference_update(effects.positions)
            elif effects.kind is EventKind.DELETE and not effects.is_exchange:
                held.pop(effects.resource, None)
    state = durable_replay(log.frames)
    assert {queue: found for queue, found in held.items() if found} == {
        queue.id: set(queue.positions()) for queue in state.queues.by_id.values() if queue.length
    }


# --- logs of which the first part is gone -------------------------------------------------------------------------------

ENDS = ("commit", "rollback", "commit of the prepared", "rollback of the prepared")


def ended_transaction(end: str) -> tuple[Log, LogIndex]:
    """Two operations, perhaps a prepare, and an end, each in a frame of its own, with other work behind it in all of them."""
    log = Log()
    queue = log.queue("q")
    log.flush()

    def other() -> None:
        log.publish(message((queue,), b"other"))
        log.flush()

    is_prepared = end.endswith("prepared")
    key = log.begin(b"branch" if is_prepared else b"")
    other()
    for body in (b"one", b"two"):
        log.publish(message((queue,), body), transaction=key)
        other()
    if is_prepared:
        log.prepare(key, b"branch")
        other()
    if end.startswith("rollback"):
        ended = log.rollback(key, RollbackReason.COORDINATOR)
    else:
        ended = log.commit_prepared(key) if is_prepared else log.commit(key)
    other()
    return log, ended


@pytest.mark.parametrize("end", ENDS)
def test_who_has_not_all_of_a_transaction_tells_nothing_of_it_and_says_so(end: str) -> None:
    log, ended = ended_transaction(end)
    whole = told(log)
    assert ended in [done.index for done in whole]
    first = log.frames[2].header.first
    for lowest in [frame.header.first for frame in log.frames]:
        for after in range(lowest - 1, log.state.applied):
            wanted = [done for done in whole if done.index > after]
            if lowest <= first or after >= ended:
                assert told(log, after, lowest=lowest) == wanted, f"{lowest}, behind {after}"
            else:
                with pytest.raises(ContentGone, match=f"ends at {ended}") as caught:
                    told(log, after, lowest=lowest)
                assert caught.value.end == ended


def test_a_long_transaction_is_told_whole_or_not_at_all() -> None:
    log, commit = long_transaction()
    whole = told(log)
    first = whole[0].index + 1
    for lowest in [frame.header.first for frame in log.frames]:
        for after in range(lowest - 1, commit):
            if lowest <= first:
                assert told(log, after, lowest=lowest) == [done for done in whole if done.index > after]
            else:
                with pytest.raises(ContentGone):
                    told(log, after, lowest=lowest)


@pytest.mark.parametrize("end", ENDS)
def test_what_a_transaction_did_first_is_not_missed_where_it_was_never_durable(end: str) -> None:
    """Its segment may go before it does something durable, with an ordinal above 0."""
    log = Log()
    queue = log.queue("q")
    is_prepared = end.endswith("prepared")
    key = log.begin(b"branch" if is_prepared else b"")
    log.publish(message((queue,), is_durable=False), transaction=key, is_durable=False)
    log.flush()
    log.publish(message((queue,), b"other"))
    log.flush()
    at = log.publish(message((queue,), b"durable"), transaction=key)
    log.flush()
    assert log.state.transactions.live[key].next_ordinal == 2
    if is_prepared:
        log.prepare(key, b"branch")
    if end.startswith("rollback"):
        log.rollback(key, RollbackReason.COORDINATOR)
    else:
        log.commit_prepared(key) if is_prepared else log.commit(key)
    whole = told(log)
    for after in range(at - 1, log.state.applied):
        assert told(log, after, lowest=at) == [done for done in whole if done.index > after], (
            f"behind {after}"
        )


def test_a_rollback_of_nothing_is_no_event_wherever_the_log_begins() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin()
    log.flush()
    lowest = log.publish(message((queue,)))
    log.flush()
    log.rollback(key)
    assert all_words(told(log, lowest - 1, lowest=lowest)) == [f"enqueue q {lowest}.0"]


def test_a_log_that_was_written_before_ends_were_counted_lacks_what_does_not_begin_with_its_first_operation() -> (
    None
):
    log = Log()
    queue = log.queue("q")
    key = log.begin()
    log.publish(message((queue,), b"other"))
    log.flush()
    first = log.publish(message((queue,), b"first"), transaction=key)
    log.flush()
    second = log.publish(message((queue,), b"second"), transaction=key)
    log.flush()
    log.append(Prepare(None, key, True))
    (done,) = told(log, second, lowest=first)
    assert [one.body for effects in done.effects for one in effects.messages] == [b"first", b"second"]
    with pytest.raises(ContentGone):
        told(log, second, lowest=second)


def test_a_commit_that_was_written_before_ends_were_counted_has_a_prepare() -> None:
    log = Log()
    queue = log.queue("q")
    key = log.begin(b"branch")
    log.publish(message((queue,)), transaction=key)
    log.append(Prepare(None, key, False, b"branch"))
    log.flush()
    lowest = log.publish(message((queue,)))
    log.flush()
    log.append(Commit(None, key))
    with pytest.raises(ContentGone):
        told(log, lowest, lowest=lowest)


def first_durable_records(log: Log) -> dict[TransactionKey, LogIndex]:
    """Of each transaction, those that end one apart."""
    found: dict[TransactionKey, LogIndex] = {}
    for frame in log.frames:
        for indexed in DecodedFrame.of(frame.durable).records:
            key = getattr(indexed.record, "transaction", None)
            if key is not None:
                found.setdefault(key, indexed.index)
    return found


def told_until_gone(
    log: Log, after: LogIndex, lowest: LogIndex
) -> tuple[list[CommittedTransaction], ContentGone | None]:
    """What a reader gets before he is refused the rest, if he is."""
    got: list[CommittedTransaction] = []
    try:
        for done in read(log.frames, after, StateNames(log.state), lowest):
            got.append(done)
    except ContentGone as gone:
        return got, gone
    return got, None


@pytest.mark.fuzz
@given(st.randoms(use_true_random=True), st.integers(0, 80))
def test_wherever_a_log_begins_it_tells_the_same_or_that_a_transaction_is_not_all_there(
    random: Random, steps: int
) -> None:
    log = Writer(random).write(steps)
    whole, firsts = told(log), first_durable_records(log)
    for frame in random.sample(log.frames, min(4, len(log.frames))):
        lowest = frame.header.first
        after = LogIndex(random.randint(lowest - 1, log.state.applied))
        while after < log.state.applied:
            got, gone = told_until_gone(log, after, lowest)
            before = behind = LogIndex(log.state.applied + 1)
            if gone is not None:
                assert firsts[gone.key] < lowest, f"nothing of {gone.key} is gone"
                before = next(each.header.first for each in log.frames if each.header.last >= gone.end)
                behind = gone.end
            assert got == [done for done in whole if after < done.index < before], f"{lowest}, behind {after}"
            after = behind
