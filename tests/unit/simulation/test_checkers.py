"""Every checker finds its hand-made bad history, and none complains about the good one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.frames import IndexedRecord, encode_frame
from lockstep.core.ids import (
    BrokerId,
    Epoch,
    LogIndex,
    QueueId,
    QueuePosition,
    SessionKey,
    SetName,
    TimeMs,
    place,
)
from lockstep.core.records import (
    AnyRecord,
    Begin,
    CommandRef,
    DeclareQueue,
    Dequeue,
    EpochBegins,
    Message,
    Prepare,
    Publish,
)
from lockstep.core.server_messages import OutcomeState
from tests.simulation.checkers import CHECKERS
from tests.simulation.checkers.record import Record, ReplicaView
from tests.simulation.colours import PROPERTIES, selector_of
from tests.simulation.committed_log import CommittedLog, HeldLog
from tests.simulation.history import Browsed, Delivered, Operation, OutcomeHeard, PromiseBroken, Seen
from tests.simulation.log_model import FOREVER, LogModel

SET = SetName("s1")
EPOCH = Epoch(1)
KEY = (LogIndex(5), EPOCH)
PLAIN = QueuePosition(place(4, 0))
IN_A = QueuePosition(place(9, 0))
IN_B = QueuePosition(place(9, 1))


def message(queue: int, body: bytes) -> Message:
    return Message((QueueId(queue),), b"", body, 0, True)


LOG: tuple[AnyRecord, ...] = (
    EpochBegins(None, EPOCH, "b1", False),
    DeclareQueue(None, "a", True),
    DeclareQueue(None, "b", True),
    Publish(CommandRef(SessionKey(1), 1), None, 0, (message(2, b"plain"),)),
    Begin(CommandRef(SessionKey(1), 2), SessionKey(1)),
    Publish(None, KEY, 0, (message(2, b"in a"),)),
    Publish(None, KEY, 1, (message(3, b"in b"),)),
    Dequeue(None, KEY, 2, QueueId(2), (PLAIN,)),
    Prepare(CommandRef(SessionKey(1), 3), KEY, True),
)
"""Queues a (2) and b (3); `plain` in a; a transaction that takes it and publishes one message to each."""


def operation(kind: str, **fields: object) -> Operation:
    given = {"ended_us": 2, "code": ErrorCode.NONE, "epoch": EPOCH, "commit_index": LogIndex(9), **fields}
    return Operation("c1", SET, kind, 1, **given)  # type: ignore[arg-type]


def view(broker: str = "b1") -> ReplicaView:
    return ReplicaView(
        3,
        BrokerId(broker),
        SET,
        LogIndex(9),
        EPOCH,
        "hash",
        {QueueId(2): (IN_A,), QueueId(3): (IN_B,)},
        {KEY: "committed"},
    )


def browsed(messages: tuple[Seen, ...], commit_index: int) -> Browsed:
    return Browsed(3, "c1", SET, "a", EPOCH, LogIndex(commit_index), 2, QueuePosition(0), 10, messages, True)


def delivered(seen: Seen, commit_index: int) -> Delivered:
    return Delivered(3, "c1", SET, "a", EPOCH, LogIndex(commit_index), (seen,))


PLAIN_SEEN = Seen(PLAIN, b"plain", 0, True)
IN_A_SEEN = Seen(IN_A, b"in a", 0, True)


def good() -> Record:
    record = Record()
    model = record.models[SET] = LogModel()
    for place_of, entry in enumerate(LOG):
        model.apply(IndexedRecord(LogIndex(place_of + 1), entry, True), EPOCH)
    record.history.operations += [
        operation("publish", bodies=(b"plain",), queue="a", value=1),
        operation("publish", bodies=(b"in a",), queue="a", value=1, transaction=KEY),
        operation("settle", queue="a", positions=(PLAIN,), disposition=1, transaction=KEY),
        operation("commit", transaction=KEY),
    ]
    record.history.deliveries.append(delivered(PLAIN_SEEN, 4))
    record.history.browses += [browsed((PLAIN_SEEN,), 6), browsed((IN_A_SEEN,), 9)]
    record.history.outcomes.append(
        OutcomeHeard(3, "c1", SET, EPOCH, LogIndex(9), KEY, OutcomeState.COMMITTED, False)
    )
    record.views.append(view())
    record.final_views += [view("b1"), view("b2")]
    return record


def broken_promises(record: Record) -> set[str]:
    return {promise for promise, check in CHECKERS.items() if list(check(record))}


def test_good_history_breaks_nothing() -> None:
    assert {promise: list(check(good())) for promise, check in CHECKERS.items() if list(check(good()))} == {}


def replica_with_half_a_transaction(record: Record) -> None:
    record.views.append(replace(view(), queues={QueueId(2): (IN_A,), QueueId(3): ()}))


def replica_that_applied_beyond_its_index(record: Record) -> None:
    record.views.append(replace(view(), applied=LogIndex(8)))


def browse_of_half_a_transaction(record: Record) -> None:
    record.history.browses.append(browsed((PLAIN_SEEN, IN_A_SEEN), 9))


def browse_beyond_the_commit_index(record: Record) -> None:
    record.history.browses.append(browsed((IN_A_SEEN,), 8))


def browse_that_misses_a_message(record: Record) -> None:
    record.history.browses.append(replace(browsed((), 9), after=QueuePosition(PLAIN)))
    record.models[SET].queues[QueueId(2)].copies[IN_A].visible = LogIndex(1)


def replica_with_another_outcome(record: Record) -> None:
    record.views.append(replace(view(), outcomes={KEY: "rolled back"}))


def answer_that_the_log_contradicts(record: Record) -> None:
    record.history.operations.append(operation("commit", transaction=KEY, code=ErrorCode.ROLLED_BACK))


def outcome_that_the_log_contradicts(record: Record) -> None:
    record.history.outcomes.append(
        OutcomeHeard(3, "c2", SET, EPOCH, LogIndex(9), KEY, OutcomeState.ROLLED_BACK, True)
    )


def refused_transaction_is_committed(record: Record) -> None:
    record.refused.append((SET, KEY))


def equal_logs_with_other_states(record: Record) -> None:
    record.final_views.append(replace(view("b3"), state_hash="another"))


def delivery_of_an_uncommitted_message(record: Record) -> None:
    record.history.deliveries.append(delivered(IN_A_SEEN, 8))


def delivery_of_what_a_transaction_has_locked(record: Record) -> None:
    record.history.deliveries.append(delivered(PLAIN_SEEN, 8))


def delivery_of_what_was_accepted(record: Record) -> None:
    record.history.deliveries.append(delivered(PLAIN_SEEN, 9))


def delivery_of_another_body(record: Record) -> None:
    record.history.deliveries.append(delivered(Seen(PLAIN, b"other", 0, True), 4))


def acknowledged_publish_is_gone(record: Record) -> None:
    record.history.operations.append(operation("publish", bodies=(b"lost",), queue="a", value=1))


def acknowledged_publish_missing_in_its_transaction(record: Record) -> None:
    record.history.operations.append(operation("publish", bodies=(b"torn",), transaction=KEY, value=1))


def accepted_message_is_still_there(record: Record) -> None:
    record.history.operations.append(operation("settle", queue="b", positions=(IN_B,), disposition=1))


def message_is_there_twice(record: Record) -> None:
    record.models[SET].apply(
        IndexedRecord(LogIndex(10), Publish(None, None, 0, (message(2, b"in a"),)), True), EPOCH
    )
    for position, final in enumerate(record.final_views):
        queues = {**final.queues, QueueId(2): (IN_A, QueuePosition(place(10, 0)))}
        record.final_views[position] = replace(final, applied=LogIndex(10), queues=queues)


def replica_ends_before_the_committed_end(record: Record) -> None:
    record.final_views.append(
        replace(
            view("b3"),
            applied=LogIndex(3),
            queues={QueueId(2): (), QueueId(3): ()},
            outcomes={},
            state_hash="x",
        )
    )


def prepared_branch_is_forgotten(record: Record) -> None:
    key = (LogIndex(10), EPOCH)
    model = record.models[SET]
    model.apply(IndexedRecord(LogIndex(10), Begin(None, SessionKey(1), b"xid"), False), EPOCH)
    model.apply(IndexedRecord(LogIndex(11), Prepare(None, key, False, b"xid"), True), EPOCH)
    record.final_views[:] = [replace(final, applied=LogIndex(11)) for final in record.final_views]


def commit_in_doubt_for_ever(record: Record) -> None:
    record.history.outcomes.clear()
    record.history.operations.append(operation("commit", transaction=KEY, code=None, is_in_doubt=True))


def operation_that_never_ends(record: Record) -> None:
    record.history.operations.append(operation("publish", ended_us=None, code=None, bodies=(b"x",)))


def backup_that_never_joins(record: Record) -> None:
    record.stuck.append("s1: b3 is not in sync")


def tx_queue_that_is_never_released(record: Record) -> None:
    record.final_views[0] = replace(record.final_views[0], tx_queue_bytes=10, tx_queues=1)


def command_that_takes_effect_twice(record: Record) -> None:
    record.models[SET].commands[1, 1].append(LogIndex(9))


def rejected_publish_that_happened(record: Record) -> None:
    record.history.operations.append(operation("publish", bodies=(b"plain",), code=ErrorCode.QUEUE_FULL))


def delivery_of_a_deposed_primary(record: Record) -> None:
    record.history.deliveries.insert(0, replace(delivered(PLAIN_SEEN, 4), epoch=Epoch(2)))


def copies_of_a_deposed_primary(record: Record) -> None:
    record.history.browses.append(replace(browsed((IN_A_SEEN,), 9), epoch=Epoch(0)))


def delivery_of_what_is_not_selected(record: Record) -> None:
    record.history.deliveries.append(replace(delivered(PLAIN_SEEN, 4), selector=selector_of("red")))


def copies_of_what_is_not_selected(record: Record) -> None:
    record.history.browses.append(replace(browsed((IN_A_SEEN,), 9), selector=selector_of("red")))


def copies_that_were_shown_before(record: Record) -> None:
    record.history.browses.append(replace(browsed((IN_A_SEEN,), 9), after=IN_A))


@pytest.mark.parametrize(
    ("promise", "spoil"),
    [
        ("P1", replica_with_half_a_transaction),
        ("P1", replica_that_applied_beyond_its_index),
        ("P1", browse_of_half_a_transaction),
        ("P1", browse_beyond_the_commit_index),
        ("P1", browse_that_misses_a_message),
        ("P2", replica_with_another_outcome),
        ("P2", answer_that_the_log_contradicts),
        ("P2", outcome_that_the_log_contradicts),
        ("P2", refused_transaction_is_committed),
        ("P2", equal_logs_with_other_states),
        ("P3", delivery_of_an_uncommitted_message),
        ("P3", delivery_of_what_a_transaction_has_locked),
        ("P3", delivery_of_what_was_accepted),
        ("P3", delivery_of_another_body),
        ("P4", acknowledged_publish_is_gone),
        ("P4", acknowledged_publish_missing_in_its_transaction),
        ("P4", accepted_message_is_still_there),
        ("P4", message_is_there_twice),
        ("P4", replica_ends_before_the_committed_end),
        ("P5", prepared_branch_is_forgotten),
        ("P6", commit_in_doubt_for_ever),
        ("P7", operation_that_never_ends),
        ("P7", backup_that_never_joins),
        ("P7", tx_queue_that_is_never_released),
        ("P8", command_that_takes_effect_twice),
        ("P8", rejected_publish_that_happened),
        ("P8", delivery_of_a_deposed_primary),
        ("P8", copies_of_a_deposed_primary),
        ("AMQP 1.0, 3.5.3", delivery_of_what_is_not_selected),
        ("AMQP 1.0, 3.5.3", copies_of_what_is_not_selected),
        ("AMQP 1.0, 3.5.3", copies_that_were_shown_before),
    ],
)
def test_checker_finds(promise: str, spoil: Callable[[Record], None]) -> None:
    record = good()
    spoil(record)
    assert promise in broken_promises(record)


def test_a_browser_with_a_selector_must_be_shown_all_that_it_matches_and_nothing_else() -> None:
    record = good()
    record.views.clear()
    record.final_views.clear()
    copies = record.models[SET].queues[QueueId(2)].copies
    copies[PLAIN].removed = FOREVER
    copies[IN_A].properties = PROPERTIES["red"]
    record.history.browses[:] = [replace(browsed((IN_A_SEEN,), 9), selector=selector_of("red"))]
    assert "P1" not in broken_promises(record)
    copies[PLAIN].properties = PROPERTIES["red"]
    assert "P1" in broken_promises(record)


def frame(first: int, epoch: int, body: bytes) -> bytes:
    publish = Publish(None, None, 0, (message(2, body),))
    return encode_frame(Epoch(epoch), LogIndex(first), LogIndex(0), TimeMs(0), [(publish, True)]).durable


def held(name: str, *frames: bytes) -> tuple[CommittedLog, HeldLog]:
    log, holder = CommittedLog(SET), HeldLog(name)
    for durable in frames:
        holder.add(log.seen(durable, None), durable)
    return log, holder


@pytest.mark.parametrize(
    ("handed_on", "is_broken"),
    [
        pytest.param({(SET, EPOCH): LogIndex(9)}, False, id="behind the log that was handed on"),
        pytest.param({}, True, id="nothing was handed on"),
        pytest.param({(SET, EPOCH): LogIndex(8)}, True, id="another log was"),
        pytest.param({(SET, Epoch(0)): LogIndex(9)}, True, id="an earlier epoch was"),
    ],
)
def test_whoever_goes_on_with_what_was_open_follows_the_log_that_was_handed_on(
    handed_on: dict[tuple[SetName, Epoch], LogIndex], is_broken: bool
) -> None:
    begins = EpochBegins(None, Epoch(2), "b2", False, True)
    record = Record(
        logs={SET: [encode_frame(Epoch(2), LogIndex(10), LogIndex(9), TimeMs(1), [(begins, True)])]}
    )
    record.handed_on = handed_on
    assert bool(list(CHECKERS["T6, T8"](record))) is is_broken


def test_two_contents_under_one_name_are_found() -> None:
    log, _ = held("b1", frame(1, 1, b"x"))
    with pytest.raises(PromiseBroken, match=r"P2.*two contents"):
        log.seen(frame(1, 1, b"y"), None)


def test_replaced_committed_record_is_found() -> None:
    log, first = held("b1", frame(1, 1, b"x"), frame(2, 1, b"y"))
    log.claim(first, 2)
    successor = HeldLog("b2")
    for durable in (frame(1, 1, b"x"), frame(2, 2, b"z")):
        successor.add(log.seen(durable, None), durable)
    log.claim(successor, 1)
    with pytest.raises(PromiseBroken, match=r"P4.*epoch 2 at index 2"):
        log.claim(successor, 2)


def test_agreeing_claims_are_accepted() -> None:
    log, first = held("b1", frame(1, 1, b"x"), frame(2, 1, b"y"))
    log.claim(first, 2)
    other = HeldLog("b2")
    for durable in (frame(1, 1, b"x"), frame(2, 1, b"y")):
        other.add(log.seen(durable, None), durable)
    log.claim(other, 2)
    assert log.end == 2
