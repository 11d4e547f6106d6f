"""Transactions of clients: gaps, owners, rollback-only, locks, order after a rollback, and outcomes (DESIGN 4, T1 to T6)."""

import pytest
from msgspec.structs import replace

from lockstep.core.commands import (
    AnyCommand,
    BeginCommand,
    CommitCommand,
    DeleteQueueCommand,
    Disposition,
    EndCommand,
    OutgoingMessage,
    PublishCommand,
    PurgeQueueCommand,
    RollbackCommand,
    SelectDtxCommand,
    StartCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, SessionId, TransactionKey
from lockstep.core.records import Rollback, RollbackReason
from lockstep.core.requests import GetOutcome
from lockstep.core.server_messages import (
    OutcomeAnswer,
    OutcomeState,
    SessionAttached,
)
from lockstep.core.transaction_states import TransactionState
from lockstep.core.xid import Xid
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import Rig, RigClient, is_ascending, publish


@pytest.fixture
def client(rig: Rig) -> RigClient:
    client = rig.client()
    client.declare("q")
    client.declare("r")
    return client


def outcome(
    client: RigClient, transaction: TransactionKey, fence: bool = False, of: RigClient | None = None
) -> tuple[int, int]:
    """`of`: whose it is; he has told the id of his session."""
    client.say(GetOutcome(1, transaction, fence, () if of is None else (of.session_id,)))
    answer = client.heard_of(OutcomeAnswer)[-1]
    assert answer.transaction == transaction
    return answer.state, answer.reason


def test_a_begin_is_answered_before_it_is_committed(rig: Rig, client: RigClient) -> None:
    rig.holds_store = True
    number = client.command(BeginCommand(0))
    assert client.answers[number].value == rig.core.log_end


def test_a_commit_begins_others_which_are_this_sessions_and_empty(rig: Rig, client: RigClient) -> None:
    key = client.begin()
    client.ok(publish("q", b"1", transaction=key, sequence=1))
    answered = client.do(CommitCommand(0, key, 1, begins=2))
    assert answered.code is ErrorCode.NONE
    one, two = (LogIndex(answered.value - 2), key[1]), (LogIndex(answered.value - 1), key[1])
    assert outcome(client, key)[0] == outcome(rig.client(), key)[0] == OutcomeState.COMMITTED
    client.ok(publish("q", b"3", transaction=two, sequence=1))
    client.ok(publish("q", b"2", transaction=one, sequence=1))
    assert rig.client().do(publish("q", b"x", transaction=one, sequence=2)).code is ErrorCode.LOCKED
    assert client.commit(one, 1).value == TransactionState.COMMITTED
    client.rollback(two)
    assert rig.bodies("q") == [b"1", b"2"]
    rig.check_log()


def test_a_commit_brings_its_last_publish(rig: Rig, client: RigClient) -> None:
    assert client.heard_of(SessionAttached)[-1].takes_last_publish
    key = client.begin()
    client.ok(publish("q", b"1", transaction=key, sequence=1))
    last = publish("r", b"2", b"3", transaction=key, sequence=2)
    number = client.command(CommitCommand(0, key, 2, 1, last))
    first = client.answers.pop(number)
    assert first.value == rig.core.log_end
    assert (rig.bodies("q"), rig.bodies("r")) == ([b"1"], [b"2", b"3"])
    client.say(client.sent[number])
    assert client.answers[number] == first, "it is done once"
    assert rig.bodies("r") == [b"2", b"3"]
    rig.check_log()


@pytest.mark.parametrize("count", [1, 5], ids=["one message", "a run"])
def test_a_publish_that_is_all_of_a_transaction_is_applied_with_its_commit(
    rig: Rig, client: RigClient, count: int
) -> None:
    client.declare("ring", length_max=6, is_evicting=True)
    client.ok(publish("ring", *[b"old"] * 4))
    keys = [client.begin() for _ in range(2)]
    fresh = [b"%d" % number for number in range(count)]
    before = rig.core.log_end
    last = publish("ring", *fresh, transaction=keys[0], sequence=1)
    number = client.command(CommitCommand(0, keys[0], 1, 0, last))
    assert client.answers[number].value == TransactionState.COMMITTED
    assert rig.bodies("ring") == ([b"old"] * 4 + fresh)[-6:]
    assert rig.core.log_end == before + 2 + (count > 2), "the publish, the commit and what is evicted"
    client.say(client.sent[number])
    assert client.do(CommitCommand(0, keys[0], 1)).code is ErrorCode.TRANSACTION_FINISHED
    assert rig.state.outcome(keys[0]).state is TransactionState.COMMITTED
    assert client.commit(keys[1], 0).code is ErrorCode.NONE
    assert not rig.core.context.progress
    assert not rig.core.context.tx_queues.by_key
    rig.check_log()


def test_a_commit_that_brings_its_only_publish_begins_others(rig: Rig, client: RigClient) -> None:
    key = client.begin()
    committed = client.ok(CommitCommand(0, key, 1, 2, publish("q", b"1", transaction=key, sequence=1)))
    assert committed == rig.core.log_end
    for index in (committed - 2, committed - 1):
        assert client.commit((LogIndex(index), rig.core.epoch), 0).code is ErrorCode.NONE
    assert rig.bodies("q") == [b"1"]
    rig.check_log()


def test_a_commit_that_lacks_operations_before_its_last_publish_rolls_back(
    rig: Rig, client: RigClient
) -> None:
    key = client.begin()
    last = publish("q", b"1", transaction=key, sequence=1)
    assert client.do(CommitCommand(0, key, 2, last_publish=last)).code is ErrorCode.ROLLED_BACK
    assert rig.bodies("q") == []
    rig.check_log()


def test_a_commit_that_brings_a_publish_of_another_transaction_commits_nothing(
    rig: Rig, client: RigClient
) -> None:
    one, other = client.begin(), client.begin()
    last = publish("q", b"1", transaction=other, sequence=1)
    assert client.do(CommitCommand(0, one, 1, last_publish=last)).code is ErrorCode.ROLLED_BACK
    assert rig.bodies("q") == []
    assert client.commit(other, 1).code is ErrorCode.NONE
    assert rig.bodies("q") == [b"1"]
    rig.check_log()


def test_what_a_commit_brings_may_be_of_both_kinds(rig: Rig, client: RigClient) -> None:
    """Durable and transient messages are records of their own."""
    key = client.begin()
    last = PublishCommand(
        0, "", "q", (OutgoingMessage(b"", b"1", True), OutgoingMessage(b"", b"2", False)), key, 1
    )
    before = rig.core.log_end
    assert client.do(CommitCommand(0, key, 1, 0, last)).value == TransactionState.COMMITTED
    assert rig.core.log_end == before + 3, "two publishes and the commit"
    assert rig.bodies("q") == [b"1", b"2"]
    rig.check_log()


@pytest.mark.parametrize(
    ("queue", "size", "sequence", "code"),
    [
        ("nowhere", 1, 2, ErrorCode.NOT_FOUND),
        ("q", 1, 1, ErrorCode.SEQUENCE_GAP),
        ("q", 1, 3, ErrorCode.SEQUENCE_GAP),
        ("q", PrimarySettings().message_bytes_max + 1, 2, ErrorCode.TOO_LARGE),
    ],
)
def test_a_commit_whose_last_publish_is_refused_rolls_back(
    rig: Rig, client: RigClient, queue: str, size: int, sequence: int, code: ErrorCode
) -> None:
    key = client.begin()
    client.ok(publish("q", b"1", transaction=key, sequence=1))
    last = publish(queue, bytes(size), transaction=key, sequence=sequence)
    answered = client.do(CommitCommand(0, key, 2, 2, last))
    assert answered.code is code
    assert outcome(client, key) == (OutcomeState.ROLLED_BACK, RollbackReason.ROLLBACK_ONLY)
    assert rig.bodies("q") == []
    assert len(rig.core.context.progress) == 0
    rig.check_log()


def test_a_commit_behind_a_refused_operation_does_not_bring_anything(rig: Rig, client: RigClient) -> None:
    key = client.begin()
    assert client.do(publish("nowhere", b"1", transaction=key, sequence=1)).code is ErrorCode.NOT_FOUND
    last = publish("q", b"2", transaction=key, sequence=2)
    assert client.do(CommitCommand(0, key, 2, 0, last)).code is ErrorCode.ROLLBACK_ONLY
    assert outcome(client, key)[0] == OutcomeState.ROLLED_BACK
    assert rig.bodies("q") == []


def test_what_another_sessions_commit_brings_changes_nothing(rig: Rig, client: RigClient) -> None:
    key = client.begin()
    last = publish("q", b"x", transaction=key, sequence=1)
    assert rig.client().do(CommitCommand(0, key, 1, 0, last)).code is ErrorCode.LOCKED
    client.ok(publish("q", b"1", transaction=key, sequence=1))
    assert client.commit(key, 1).value == TransactionState.COMMITTED
    assert rig.bodies("q") == [b"1"]


def test_a_commit_that_begins_others_is_answered_again_as_it_was(rig: Rig, client: RigClient) -> None:
    number = client.command(CommitCommand(0, client.begin(), 0, begins=1))
    first = client.answers.pop(number)
    client.say(client.sent[number])
    assert client.answers[number] == first
    assert first.value > 1


def test_a_commit_that_is_refused_begins_nothing(rig: Rig, client: RigClient) -> None:
    key = client.begin()
    assert client.do(CommitCommand(0, key, 7, begins=2)).code is ErrorCode.ROLLED_BACK
    assert len(rig.core.context.progress) == 0


def test_nothing_of_a_transaction_is_seen_before_its_commit_and_all_of_it_after(
    rig: Rig, client: RigClient
) -> None:
    client.publish("q", b"old")
    client.consume("q", credit=1)
    transaction = client.begin()
    client.settle("q", transaction=transaction, sequence=1)
    client.ok(publish("r", b"1", b"2", transaction=transaction, sequence=2))
    client.ok(publish("q", b"3", transaction=transaction, sequence=3))
    assert (rig.bodies("q"), rig.bodies("r")) == ([b"old"], [])
    other = rig.client()
    other.consume("q")
    other.consume("r")
    assert not other.in_hand
    rig.holds_store = True
    number = client.command(CommitCommand(0, transaction, 3))
    assert not other.in_hand and number not in client.answers
    rig.acknowledge()
    assert client.answers[number].value == TransactionState.COMMITTED
    assert (other.bodies("q"), other.bodies("r")) == ([b"3"], [b"1", b"2"])
    rig.check_log()


@pytest.mark.parametrize("sequence", [0, 1, 3, -1, 1 << 70])
def test_an_operation_out_of_sequence_is_refused_and_the_transaction_can_only_be_rolled_back(
    rig: Rig, client: RigClient, sequence: int
) -> None:
    transaction = client.begin()
    client.ok(publish("q", b"1", transaction=transaction, sequence=1))
    refused = client.do(publish("q", b"2", transaction=transaction, sequence=sequence))
    assert refused.code is ErrorCode.SEQUENCE_GAP and "orders/" in refused.message
    late = client.do(publish("q", b"3", transaction=transaction, sequence=2))
    assert late.code is ErrorCode.ROLLBACK_ONLY
    answered = client.commit(transaction, 2)
    assert answered.code is ErrorCode.ROLLED_BACK and "orders/" in answered.message
    assert rig.bodies("q") == []
    assert outcome(client, transaction) == (OutcomeState.ROLLED_BACK, RollbackReason.ROLLBACK_ONLY)
    rig.check_log()


@pytest.mark.parametrize("operations", [0, 2, -1, 1 << 70])
def test_a_commit_that_lacks_operations_rolls_back(rig: Rig, client: RigClient, operations: int) -> None:
    transaction = client.begin()
    client.ok(publish("q", b"1", transaction=transaction, sequence=1))
    assert client.commit(transaction, operations).code is ErrorCode.ROLLED_BACK
    assert rig.bodies("q") == []
    rig.check_log()


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (publish("nowhere", b""), ErrorCode.NOT_FOUND),
        (publish("", b"", exchange="nowhere"), ErrorCode.NOT_FOUND),
        (publish("q", bytes(2000)), ErrorCode.TOO_LARGE),
    ],
)
def test_a_refused_operation_makes_its_transaction_rollback_only(
    refused: AnyCommand, code: ErrorCode
) -> None:
    rig = Rig(PrimarySettings(message_bytes_max=1000))
    client = rig.client()
    client.declare("q")
    transaction = client.begin()
    client.ok(publish("q", b"1", transaction=transaction, sequence=1))
    assert client.do(replace(refused, transaction=transaction, sequence=2)).code is code
    assert client.commit(transaction, 1).code is ErrorCode.ROLLED_BACK
    assert rig.bodies("q") == []
    rig.check_log()


def test_a_stale_accept_makes_its_transaction_rollback_only(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    client.consume("q")
    position = client.positions("q")[0]
    client.settle("q", disposition=Disposition.RELEASE)
    client.in_hand.clear()
    transaction = client.begin()
    client.ok(publish("r", b"1", transaction=transaction, sequence=1))
    other = rig.client()
    assert other.settle("q", position, transaction=transaction, sequence=2).code is ErrorCode.STALE_DELIVERY
    assert client.settle("q", position).code is ErrorCode.NONE
    assert client.settle("q", position, transaction=transaction, sequence=2).code is ErrorCode.STALE_DELIVERY
    assert client.commit(transaction, 1).code is ErrorCode.ROLLED_BACK


@pytest.mark.parametrize("disposition", [Disposition.RELEASE, Disposition.FAIL, Disposition.REJECT])
def test_only_accepts_can_be_in_a_transaction(rig: Rig, client: RigClient, disposition: int) -> None:
    client.publish("q", b"1")
    client.consume("q")
    transaction = client.begin()
    refused = client.settle("q", disposition=disposition, transaction=transaction, sequence=1)
    assert refused.code is ErrorCode.INVALID_ARGUMENT
    assert client.settle("q").code is ErrorCode.NONE, "it is still held"


def test_another_session_can_do_nothing_to_a_transaction(rig: Rig, client: RigClient) -> None:
    transaction = client.begin()
    client.ok(publish("q", b"1", transaction=transaction, sequence=1))
    other = rig.client()
    for command in (
        publish("q", b"2", transaction=transaction, sequence=2),
        CommitCommand(0, transaction, 1),
        RollbackCommand(0, transaction),
    ):
        assert other.do(command).code is ErrorCode.LOCKED
    assert client.commit(transaction, 1).code is ErrorCode.NONE


def test_a_commit_repeated_under_its_number_is_answered_again_and_under_another_refused(
    rig: Rig, client: RigClient
) -> None:
    transaction = client.begin()
    client.ok(publish("q", b"1", transaction=transaction, sequence=1))
    first = client.commit(transaction, 1)
    client.say(client.sent[client.number])
    assert client.answers[client.number] == first
    assert client.commit(transaction, 1).code is ErrorCode.TRANSACTION_FINISHED
    assert client.rollback(transaction).code is ErrorCode.TRANSACTION_FINISHED
    late = client.do(publish("q", b"2", transaction=transaction, sequence=2))
    assert late.code is ErrorCode.TRANSACTION_FINISHED
    assert rig.bodies("q") == [b"1"]


def test_a_rolled_back_transaction_takes_nothing_more(rig: Rig, client: RigClient) -> None:
    transaction = client.begin()
    assert client.rollback(transaction).code is ErrorCode.NONE
    for command in (
        publish("q", b"", transaction=transaction, sequence=1),
        CommitCommand(0, transaction, 0),
        RollbackCommand(0, transaction),
    ):
        assert client.do(command).code is ErrorCode.ROLLED_BACK
    rig.check_log()


def test_a_rollback_gives_messages_back_in_their_order_with_their_deliveries_counted(
    rig: Rig, client: RigClient
) -> None:
    client.publish("q", b"1", b"2", b"3", b"4")
    client.consume("q", credit=3)
    first, _, third = client.positions("q")
    transaction = client.begin()
    client.settle("q", third, transaction=transaction, sequence=1)
    client.settle("q", first, transaction=transaction, sequence=2)
    rig.holds_store = True
    client.command(RollbackCommand(0, transaction))
    other = rig.client()
    rig.acknowledge()
    other.consume("q")
    assert other.bodies("q") == [b"1", b"3", b"4"] and is_ascending(other.positions("q"))
    assert [delivered.delivery_count for delivered in other.in_hand.values()] == [1, 1, 0]
    rig.check_log()


def test_nobody_gets_what_a_rollback_gave_back_before_the_rollback_is_committed(
    rig: Rig, client: RigClient
) -> None:
    """A successor without the rollback still has it locked (P3)."""
    client.publish("q", b"1")
    consumer = client.consume("q", credit=1)
    transaction = client.begin()
    client.settle("q", transaction=transaction, sequence=1)
    other = rig.client()
    other.consume("q")
    rig.holds_store = True
    client.command(RollbackCommand(0, transaction))
    other.consume("q")
    assert consumer and not other.in_hand
    rig.acknowledge()
    assert other.bodies("q") == [b"1"]


def test_what_a_transaction_accepted_is_locked_to_everybody(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1", b"2")
    client.consume("q")
    first = client.positions("q")[0]
    transaction = client.begin()
    client.settle("q", first, transaction=transaction, sequence=1)
    assert client.settle("q", first).code is ErrorCode.STALE_DELIVERY
    assert client.ok(PurgeQueueCommand(0, "q")) == 0
    client.resume()
    other = rig.client()
    other.consume("q")
    assert not other.in_hand
    client.commit(transaction, 1)
    assert rig.bodies("q") == [b"2"]


def test_a_deleted_queue_makes_the_transactions_that_touch_it_rollback_only(
    rig: Rig, client: RigClient
) -> None:
    client.publish("q", b"1")
    client.consume("q")
    transaction = client.begin()
    client.settle("q", transaction=transaction, sequence=1)
    client.ok(publish("r", b"2", transaction=transaction, sequence=2))
    client.ok(DeleteQueueCommand(0, "q"))
    client.declare("q")
    assert client.commit(transaction, 2).code is ErrorCode.ROLLED_BACK
    assert (rig.bodies("q"), rig.bodies("r")) == ([], [])
    rig.check_log()


def test_a_transaction_ends_with_its_time_out_whatever_the_wall_clock_says(
    rig: Rig, client: RigClient
) -> None:
    transaction = client.begin(timeout_ms=1000)
    client.ok(publish("q", b"1", transaction=transaction, sequence=1))
    rig.wall_ms += 1 << 30
    rig.pass_time(999)
    assert outcome(client, transaction)[0] == OutcomeState.OPEN
    rig.pass_time(1)
    assert outcome(client, transaction) == (OutcomeState.ROLLED_BACK, RollbackReason.TIMED_OUT)
    assert client.commit(transaction, 1).code is ErrorCode.ROLLED_BACK
    rig.check_log()


def test_a_new_epoch_aborts_open_transactions_and_says_so(rig: Rig, client: RigClient) -> None:
    client.publish("q", b"1")
    client.consume("q")
    transaction = client.begin()
    client.settle("q", transaction=transaction, sequence=1)
    rig = client.rig = Rig(predecessor=rig)
    client.stream = 0
    client.resume()
    assert client.commit(transaction, 1).code is ErrorCode.ROLLED_BACK
    assert outcome(client, transaction)[0] == OutcomeState.ROLLED_BACK
    client.consume("q")
    assert client.bodies("q") == [b"1"]


def test_an_outcome_is_known_in_later_epochs(rig: Rig, client: RigClient) -> None:
    committed, rolled_back = client.begin(), client.begin()
    client.commit(committed, 0)
    client.rollback(rolled_back)
    rig = client.rig = Rig(predecessor=rig, is_restarted=True)
    asker = rig.client("asker")
    assert outcome(asker, committed)[0] == OutcomeState.COMMITTED
    assert outcome(asker, rolled_back) == (OutcomeState.ROLLED_BACK, RollbackReason.CLIENT)


def test_asking_with_a_fence_rolls_back_what_is_open_and_answers_when_that_is_committed(
    rig: Rig, client: RigClient
) -> None:
    transaction = client.begin()
    client.ok(publish("q", b"1", transaction=transaction, sequence=1))
    asker = rig.client()
    assert outcome(asker, transaction)[0] == OutcomeState.OPEN
    rig.holds_store = True
    asker.heard.clear()
    asker.say(GetOutcome(2, transaction, True, (client.session_id,)))
    assert not asker.heard
    rig.acknowledge()
    assert outcome(asker, transaction) == (OutcomeState.ROLLED_BACK, RollbackReason.FENCED)
    number = client.command(CommitCommand(0, transaction, 1))
    rig.acknowledge()
    assert client.answers[number].code is ErrorCode.ROLLED_BACK


def test_a_fence_of_a_stranger_does_nothing(rig: Rig, client: RigClient) -> None:
    """Names of transactions can be guessed: who could roll back by them could roll back everything."""
    transaction = client.begin()
    stranger = rig.client()
    assert outcome(stranger, transaction, fence=True, of=rig.client())[0] == OutcomeState.OPEN
    stranger.say(GetOutcome(2, transaction, True, (SessionId(""),)))
    assert stranger.heard_of(OutcomeAnswer)[-1].state == OutcomeState.OPEN
    assert not [record for record in rig.records() if isinstance(record, Rollback)]
    assert outcome(client, transaction, fence=True) == (OutcomeState.ROLLED_BACK, RollbackReason.FENCED)


@pytest.mark.usefixtures("client")
def test_what_was_handed_over_is_fenced_by_who_knows_its_session(rig: Rig) -> None:
    client = rig.client(outlives_hand_over=True)
    transaction = client.begin()
    client.ok(publish("q", b"1", transaction=transaction, sequence=1))
    rig = rig.next_reign("hand-over")
    stranger, asker = rig.client(), rig.client()
    assert outcome(stranger, transaction, fence=True)[0] == OutcomeState.OPEN
    assert outcome(asker, transaction, fence=True, of=client)[0] == OutcomeState.ROLLED_BACK


def test_an_open_branch_is_fenced_by_those_who_work_in_it(rig: Rig, client: RigClient) -> None:
    beginner, joiner, stranger = client, rig.client(), rig.client()
    for one in (beginner, joiner):
        one.ok(SelectDtxCommand(0))
    xid = Xid(7, b"global", b"one").encode()
    key = LogIndex(beginner.ok(StartCommand(0, xid))), rig.core.epoch
    joiner.ok(StartCommand(0, xid, is_join=True))
    beginner.ok(EndCommand(0, xid, 0))
    assert outcome(stranger, key, fence=True)[0] == OutcomeState.OPEN
    assert outcome(joiner, key, fence=True)[0] == OutcomeState.ROLLED_BACK


def test_a_branch_that_all_have_ended_is_fenced_by_who_began_it(rig: Rig, client: RigClient) -> None:
    client.ok(SelectDtxCommand(0))
    xid = Xid(7, b"global", b"one").encode()
    key = LogIndex(client.ok(StartCommand(0, xid))), rig.core.epoch
    client.ok(EndCommand(0, xid, 0))
    assert outcome(rig.client(), key, fence=True)[0] == OutcomeState.OPEN
    assert outcome(client, key, fence=True)[0] == OutcomeState.ROLLED_BACK


def test_a_fence_does_nothing_to_what_has_ended(rig: Rig, client: RigClient) -> None:
    transaction = client.begin()
    client.commit(transaction, 0)
    before = rig.core.log_end
    assert outcome(client, transaction, fence=True)[0] == OutcomeState.COMMITTED
    assert rig.core.log_end == before


def test_a_name_that_was_never_given_out_is_unknown_or_rolled_back(rig: Rig, client: RigClient) -> None:
    assert outcome(client, (LogIndex(1 << 40), Epoch(1)), fence=True)[0] == OutcomeState.UNKNOWN
    assert outcome(client, (LogIndex(1), Epoch(9)), fence=True)[0] == OutcomeState.UNKNOWN
    rig = client.rig = Rig(predecessor=rig)
    asker = rig.client("asker")
    assert outcome(asker, (rig.core.log_end, Epoch(1)))[0] == OutcomeState.ROLLED_BACK


def test_outcomes_are_kept_for_the_retention_and_expired_after_it(rig: Rig) -> None:
    rig = Rig(PrimarySettings(outcome_retention_ms=1000, outcome_sweep_ms=100))
    client = rig.client()
    transaction = client.begin()
    client.commit(transaction, 0)
    rig.wall_ms += 1 << 30
    for _ in range(10):
        rig.pass_time(100)
    assert outcome(client, transaction)[0] == OutcomeState.COMMITTED
    for _ in range(3):
        rig.pass_time(100)
    assert outcome(client, transaction)[0] == OutcomeState.EXPIRED
    assert client.commit(transaction, 0).code is ErrorCode.EXPIRED
    rig.check_log()


def test_of_many_outcomes_the_oldest_go_before_their_time_some_at_once() -> None:
    rig = Rig(PrimarySettings(outcomes_max=3, outcome_sweep_ms=100, outcome_sweep_max=4))
    client = rig.client()
    transactions = [client.begin() for _ in range(9)]
    for transaction in transactions:
        client.commit(transaction, 0)
    kept = []
    for _ in range(3):
        rig.pass_time(100)
        kept.append(len(rig.state.outcomes))
    assert kept == [5, 3, 3]
    states = [outcome(client, transaction)[0] for transaction in transactions]
    assert states == [OutcomeState.EXPIRED] * 6 + [OutcomeState.COMMITTED] * 3
    rig.check_log()


def test_a_set_at_rest_writes_nothing_when_its_outcomes_are_forgotten() -> None:
    rig = Rig(PrimarySettings(outcome_retention_ms=1000, outcome_sweep_ms=100))
    client = rig.client()
    client.commit(client.begin(), 0)
    for _ in range(30):
        rig.pass_time(100)
    assert len(rig.state.outcomes) == 0
    end = rig.core.log_end
    for _ in range(30):
        rig.pass_time(100)
    assert rig.core.log_end == end


def test_open_transactions_and_their_operations_are_limited() -> None:
    rig = Rig(PrimarySettings(transactions_open_max=2, transaction_operations_max=3))
    client = rig.client()
    client.declare("q")
    transaction = client.begin()
    client.begin()
    assert client.do(BeginCommand(0)).code is ErrorCode.UNAVAILABLE
    client.ok(publish("q", b"1", b"2", transaction=transaction, sequence=1))
    too_many = client.do(publish("q", b"3", b"4", transaction=transaction, sequence=2))
    assert too_many.code is ErrorCode.TOO_LARGE
    assert client.commit(transaction, 1).code is ErrorCode.ROLLED_BACK
    client.begin()


def test_tx_queues_are_gone_when_their_outcomes_are_committed(rig: Rig, client: RigClient) -> None:
    transactions = [client.begin() for _ in range(3)]
    for transaction in transactions:
        client.ok(publish("q", b"12345", transaction=transaction, sequence=1))
    tx_queues = rig.core.context.tx_queues
    assert (len(tx_queues.by_key), tx_queues.bytes) == (3, 15)
    rig.holds_store = True
    client.command(CommitCommand(0, transactions[0], 1))
    client.command(RollbackCommand(0, transactions[1]))
    client.command(CommitCommand(0, transactions[2], 5))
    assert len(tx_queues.by_key) == 3
    rig.acknowledge()
    assert (len(tx_queues.by_key), tx_queues.bytes) == (0, 0)
    assert not rig.core.context.progress
