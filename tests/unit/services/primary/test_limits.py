"""Limits: of queues (refusing, evicting, the room that open transactions reserve), and of what one client may cost."""

from collections.abc import Callable

import msgspec
import pytest

from lockstep.core.commands import (
    BeginCommand,
    BindCommand,
    CommitBranchCommand,
    CommitCommand,
    Disposition,
    EndHeuristicallyCommand,
    PrepareBranchCommand,
    SelectDtxCommand,
    SettleCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SessionId, transaction_id
from lockstep.core.inputs import ClientStreamDrained, ClientStreamFull
from lockstep.core.requests import Browse, Describe, Heartbeat
from lockstep.core.server_messages import (
    AttachRefused,
    BrowseAnswer,
    ConsumerClosed,
    HeartbeatAnswered,
    SessionEnded,
)
from lockstep.core.transaction_states import TransactionState
from lockstep.core.xid import Xid
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish

XID = Xid(7, b"global", b"one").encode()


def test_a_queue_that_does_not_evict_refuses_the_whole_batch() -> None:
    client = Rig().client()
    client.declare("q", length_max=2)
    assert client.publish("q", b"1", b"2", b"3").code is ErrorCode.QUEUE_FULL
    assert client.publish("q", b"1", b"2").code is ErrorCode.NONE
    refused = client.publish("q", b"3")
    assert refused.code is ErrorCode.QUEUE_FULL
    assert "'q'" in refused.message and "length_max is 2" in refused.message
    assert client.rig.bodies("q") == [b"1", b"2"]


def test_bytes_are_counted_with_properties() -> None:
    client = Rig().client()
    client.declare("q", bytes_max=10)
    assert client.publish("q", bytes(6), bytes(5)).code is ErrorCode.QUEUE_FULL
    assert client.publish("q", bytes(6)).code is ErrorCode.NONE
    assert client.publish("q", bytes(5)).code is ErrorCode.QUEUE_FULL
    assert client.publish("q", bytes(4)).code is ErrorCode.NONE


def test_a_full_queue_refuses_for_all_queues_of_the_exchange() -> None:
    client = Rig().client()
    client.declare("full", length_max=1)
    client.declare("free")
    client.exchange("x", "full", "free")
    client.publish("full", b"1")
    assert client.publish("", b"2", exchange="x").code is ErrorCode.QUEUE_FULL
    assert client.rig.bodies("free") == []


def test_open_transactions_reserve_room_and_a_rollback_gives_it_back() -> None:
    client = Rig().client()
    client.declare("q", length_max=2)
    transaction = client.begin()
    client.ok(publish("q", b"1", transaction=transaction, sequence=1))
    assert client.publish("q", b"2", b"3").code is ErrorCode.QUEUE_FULL
    assert client.publish("q", b"2").code is ErrorCode.NONE
    assert client.commit(transaction, 1).code is ErrorCode.NONE
    assert client.rig.bodies("q") == [b"2", b"1"]
    other = client.begin()
    assert client.do(publish("q", b"4", transaction=other, sequence=1)).code is ErrorCode.QUEUE_FULL
    client.rollback(other)
    client.consume("q")
    client.settle("q")
    assert client.publish("q", b"5", b"6").code is ErrorCode.NONE


def test_an_evicting_queue_drops_the_oldest_that_nobody_has() -> None:
    client = Rig().client()
    client.declare("q", length_max=3, is_evicting=True)
    client.publish("q", b"1", b"2", b"3")
    client.consume("q", credit=1)
    client.publish("q", b"4", b"5")
    assert client.rig.bodies("q") == [b"1", b"4", b"5"]
    client.settle("q", disposition=Disposition.RELEASE)
    client.publish("q", *[str(number).encode() for number in range(10, 20)])
    assert client.rig.bodies("q") == [b"17", b"18", b"19"]
    client.rig.check_log()


def test_an_evicting_queue_counts_bytes_too() -> None:
    client = Rig().client()
    client.declare("q", bytes_max=10, is_evicting=True)
    client.publish("q", bytes(4), bytes(5))
    client.publish("q", bytes(6))
    assert [len(body) for body in client.rig.bodies("q")] == [6]


def test_a_commit_evicts_what_it_pushes_out() -> None:
    client = Rig().client()
    client.declare("q", length_max=2, is_evicting=True)
    client.publish("q", b"1", b"2")
    transaction = client.begin()
    client.ok(publish("q", b"3", b"4", transaction=transaction, sequence=1))
    assert client.rig.bodies("q") == [b"1", b"2"]
    client.commit(transaction, 1)
    assert client.rig.bodies("q") == [b"3", b"4"]
    client.rig.check_log()


@pytest.mark.parametrize("how", ["its coordinator", "in one phase", "an operator"])
def test_the_commit_of_a_branch_evicts_whoever_decides_it(how: str) -> None:
    client = Rig().client()
    client.declare("q", length_max=2, is_evicting=True)
    client.publish("q", b"1", b"2")
    client.ok(SelectDtxCommand(0))
    client.branch(XID, publish("q", b"3", b"4", b"5"))
    if how != "in one phase":
        client.ok(PrepareBranchCommand(0, XID))
    assert client.rig.bodies("q") == [b"1", b"2"]
    if how == "an operator":
        client.ok(EndHeuristicallyCommand(0, XID, True))
    else:
        client.ok(CommitBranchCommand(0, XID, how == "in one phase"))
    assert client.rig.bodies("q") == [b"4", b"5"]
    client.rig.check_log()


def test_transients_that_overflow_a_queue_evict_durable_messages_by_a_durable_record() -> None:
    client = Rig().client()
    client.declare("q", length_max=2, is_evicting=True)
    client.publish("q", b"1", b"2")
    client.publish("q", b"3", b"4", is_durable=False)
    assert client.rig.bodies("q") == [b"3", b"4"]
    client.rig.check_log()


def test_a_headers_exchange_counts_only_what_goes_to_the_full_queue() -> None:
    client = Rig().client()
    client.declare("full", length_max=1)
    client.exchange("x", kind="headers")
    client.ok(BindCommand(0, "x", "full", "", (("colour", "red"),)))
    client.publish("full", b"1")
    assert client.publish("", b"2", exchange="x").value == 0
    client.rig.check_log()


def test_a_full_disk_rejects_publishes_and_lets_everything_else_go_on() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    rig.fill_disk()
    refused = client.publish("q", b"2")
    assert refused.code is ErrorCode.STORE_FULL and "orders" in refused.message
    client.consume("q")
    assert client.settle("q").code is ErrorCode.NONE
    rig.fill_disk(1 << 50)
    assert client.publish("q", b"3").code is ErrorCode.NONE


# --- one client's part ---


def noted(rig: Rig) -> list[str]:
    """Which limits have refused something, as the log is to have it."""
    return [note.limit for note in rig.notes if note.limit]


def test_the_bytes_of_a_transaction_are_limited_and_it_can_only_be_rolled_back_then() -> None:
    rig = Rig(PrimarySettings(transaction_bytes_max=10))
    client = rig.client()
    client.declare("q")
    transaction = client.begin()
    client.ok(publish("q", bytes(6), transaction=transaction, sequence=1))
    refused = client.do(publish("q", bytes(3), bytes(2), transaction=transaction, sequence=2))
    assert refused.code is ErrorCode.TOO_LARGE
    assert "would have 11 bytes, transaction_bytes_max is 10" in refused.message
    assert transaction_id(SET, transaction) in refused.message
    refused = client.do(publish("q", b"1", transaction=transaction, sequence=2))
    assert refused.code is ErrorCode.ROLLBACK_ONLY
    assert client.commit(transaction, 1).code is ErrorCode.ROLLED_BACK
    assert rig.bodies("q") == []
    client.ok(publish("q", bytes(10), transaction=client.begin(), sequence=1))
    assert noted(rig) == ["transaction_bytes_max"]
    rig.check_log()


def test_one_session_cannot_have_all_open_transactions() -> None:
    rig = Rig(PrimarySettings(transactions_open_max=3, session_transactions_open_max=2))
    greedy, other = rig.client(), rig.client()
    first = greedy.begin()
    greedy.begin()
    refused = greedy.do(BeginCommand(0))
    assert refused.code is ErrorCode.UNAVAILABLE
    assert "session_transactions_open_max is 2" in refused.message
    other.begin()
    assert other.do(BeginCommand(0)).code is ErrorCode.UNAVAILABLE
    assert noted(rig) == ["session_transactions_open_max", "transactions_open_max"]
    greedy.rollback(first)
    greedy.begin()


def test_a_commit_begins_as_many_as_there_is_room_for_or_none() -> None:
    rig = Rig(PrimarySettings(transactions_open_max=4, session_transactions_open_max=3))
    client, other = rig.client(), rig.client()
    first = client.begin()
    answered = client.do(CommitCommand(0, first, 0, begins=3))
    begun = [(LogIndex(answered.value - back), rig.core.epoch) for back in (3, 2, 1)]
    assert sorted(key for key, _ in rig.core.context.progress.items()) == begun
    assert client.do(CommitCommand(0, begun[0], 0, begins=2)).value == TransactionState.COMMITTED
    other.begin()
    assert other.do(CommitCommand(0, other.begin(), 0, begins=2)).value == TransactionState.COMMITTED
    for key in begun[1:]:
        client.commit(key, 0)
    assert len(rig.core.context.progress) == 1
    rig.check_log()


def test_the_share_of_a_session_is_free_again_however_its_transactions_ended() -> None:
    rig = Rig(PrimarySettings(session_transactions_open_max=1))
    client = rig.client()
    client.commit(client.begin(), 0)
    client.rollback(client.begin())
    client.commit(client.begin(), 7)
    client.begin(timeout_ms=100)
    rig.pass_time(200)
    client.begin()
    assert len(rig.core.context.progress) == 1


def test_who_comes_before_the_epoch_serves_waits_within_limits() -> None:
    rig = Rig(PrimarySettings(early_messages_max=2, early_bytes_max=1000), holds_store=True)
    clients = [RigClient(rig, SessionId(f"early-{number}")) for number in range(3)]
    for client in clients:
        client.attach()
    (refused,) = clients[2].heard_of(AttachRefused)
    assert refused.code is ErrorCode.UNAVAILABLE
    assert "early_messages_max is 2" in refused.message and "epoch 1" in refused.message
    assert [client.is_closed for client in clients] == [False, False, True]
    assert noted(rig) == ["early_messages"]
    rig.holds_store = False
    rig.acknowledge()
    assert [bool(client.session) for client in clients] == [True, True, False]


@pytest.mark.parametrize("is_brought", [False, True])
def test_the_bytes_that_wait_for_the_epoch_are_limited_and_come_free_with_their_stream(
    *, is_brought: bool
) -> None:
    rig = Rig(PrimarySettings(early_bytes_max=1000), holds_store=True)
    hog, other = (RigClient(rig, SessionId(name)) for name in ("hog", "other"))
    hog.attach()
    big, key = publish("q", bytes(600)), (LogIndex(1), Epoch(1))
    hog.command(CommitCommand(0, key, 1, 0, big) if is_brought else big)
    hog.command(publish("q", bytes(600)))
    assert hog.is_closed and "early_bytes_max is 1000" in hog.heard_of(AttachRefused)[0].message
    hog.command(publish("q", bytes(600)))
    assert len(rig.core.client_hearing.early) == 0, "what comes behind is dropped, for the stream ends"
    other.attach()
    other.command(publish("q", bytes(900)))
    other.lose_stream()
    assert len(rig.core.client_hearing.early) == 0
    rig.acknowledge()


def test_heartbeats_in_a_row_before_the_epoch_serves_are_kept_once() -> None:
    rig = Rig(PrimarySettings(early_messages_max=4), holds_store=True)
    client = RigClient(rig, SessionId("early"))
    client.attach()
    for _ in range(10):
        client.say(Heartbeat(), Heartbeat())
    client.say(Describe(1), Heartbeat())
    assert not client.is_closed and len(rig.core.client_hearing.early) == 4
    rig.acknowledge()
    assert len(client.heard_of(HeartbeatAnswered)) == 2, "each behind what was said before it"


def test_many_clients_are_asked_for_fewer_heartbeats() -> None:
    rig = Rig(PrimarySettings(client_heartbeats=10))
    clients = [rig.client() for _ in range(5)]
    clients[0].say(Heartbeat())
    assert clients[0].heard_of(HeartbeatAnswered)[0].pause_ms == 500


def test_browses_that_wait_to_be_committed_are_limited() -> None:
    rig = Rig(PrimarySettings(browses_waiting_max=2))
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    rig.holds_store = True
    client.command(publish("q", b"2"))
    client.say(*[Browse(number, "q", QueuePosition(0), 10) for number in range(3)])
    assert not client.heard_of(BrowseAnswer)
    rig.acknowledge()
    answers = client.heard_of(BrowseAnswer)
    assert [(answer.request, answer.code, len(answer.messages)) for answer in answers] == [
        (0, ErrorCode.NONE, 2),
        (1, ErrorCode.NONE, 2),
        (2, ErrorCode.UNAVAILABLE, 0),
    ]
    assert noted(rig) == ["browses_waiting_max"]
    client.say(Browse(3, "q", QueuePosition(0), 10))
    assert client.heard_of(BrowseAnswer)[-1].code is ErrorCode.NONE


def test_a_flood_of_requests_that_wait_to_be_committed_ends_its_stream() -> None:
    rig = Rig(PrimarySettings(questions_waiting_max=3))
    client = rig.client()
    client.declare("q")
    rig.holds_store = True
    client.command(publish("q", b"1"))
    client.say(*[Describe(number) for number in range(4)])
    rig.acknowledge()
    (ended,) = client.heard_of(SessionEnded)
    assert ended.code is ErrorCode.UNAVAILABLE and "questions_waiting_max is 3" in ended.message
    assert noted(rig) == ["questions_waiting_max"]
    assert client.is_closed


def consume_too_often(rig: Rig) -> None:
    client = rig.client()
    client.declare("q")
    for _ in range(2):
        client.consume("q")
    (refused,) = client.heard_of(ConsumerClosed)
    assert refused.code is ErrorCode.TOO_LARGE


def open_too_many_sessions(rig: Rig) -> None:
    rig.client()
    (refused,) = rig.client().heard_of(AttachRefused)
    assert refused.code is ErrorCode.UNAVAILABLE


def publish_too_much(rig: Rig, *bodies: bytes) -> None:
    client = rig.client()
    client.declare("q")
    assert client.publish("q", *bodies).code is ErrorCode.TOO_LARGE


def settle_too_many(rig: Rig) -> None:
    client = rig.client()
    client.declare("q")
    positions = tuple(map(QueuePosition, range(3)))
    assert (
        client.do(SettleCommand(0, "q", Epoch(1), positions, Disposition.ACCEPT)).code is ErrorCode.TOO_LARGE
    )


def bind_with_too_much(rig: Rig) -> None:
    client = rig.client()
    client.declare("q")
    client.exchange("x", kind="headers")
    assert client.do(BindCommand(0, "x", "q", "", (("a", "b"), ("c", "d")))).code is ErrorCode.TOO_LARGE


@pytest.mark.parametrize(
    ("limit", "settings", "go_beyond"),
    [
        ("stream_consumers_max", PrimarySettings(stream_consumers_max=1), consume_too_often),
        ("sessions_max", PrimarySettings(sessions_max=1), open_too_many_sessions),
        (
            "message_bytes_max",
            PrimarySettings(message_bytes_max=2),
            lambda rig: publish_too_much(rig, b"abc"),
        ),
        (
            "command_messages_max",
            PrimarySettings(command_messages_max=1),
            lambda rig: publish_too_much(rig, b"a", b"b"),
        ),
        (
            "command_bytes_max",
            PrimarySettings(command_bytes_max=3),
            lambda rig: publish_too_much(rig, b"ab", b"cd"),
        ),
        ("command_messages_max", PrimarySettings(command_messages_max=2), settle_too_many),
        ("binding_arguments_bytes_max", PrimarySettings(binding_arguments_bytes_max=3), bind_with_too_much),
    ],
)
def test_what_a_limit_refuses_is_noted(
    limit: str, settings: PrimarySettings, go_beyond: Callable[[Rig], None]
) -> None:
    """One proxy's session is all of its clients': whoever has all of it is seen by nobody else."""
    rig = Rig(settings)
    go_beyond(rig)
    assert noted(rig) == [limit]


def test_what_is_tried_in_another_way_is_noted_once_when_it_is_refused() -> None:
    """An accept and its commit are looked at together before they are done one by one."""
    rig = Rig(PrimarySettings(transaction_bytes_max=2))
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    client.consume("q", credit=1)
    key, (position,) = client.begin(), client.positions("q")
    accept = SettleCommand(client.number + 1, "q", rig.core.epoch, (position,), Disposition.ACCEPT, key, 1)
    brought = msgspec.structs.replace(publish("q", b"too much"), transaction=key, sequence=2)
    commit = CommitCommand(client.number + 2, key, 2, 0, brought)
    client.say(accept, commit)
    assert client.answers[commit.number].code is ErrorCode.TOO_LARGE
    assert noted(rig) == ["transaction_bytes_max"]
    rig.check_log()


def test_a_consumer_that_falls_silent_loses_its_stream_and_then_what_it_holds() -> None:
    rig = Rig(PrimarySettings(client_silence_ms=5000))
    silent, other = rig.client(timeout_ms=2000), rig.client()
    silent.declare("q")
    silent.publish("q", b"1")
    silent.consume("q")
    other.consume("q")
    closed = []
    for _ in range(8):
        rig.pass_time(1000)
        other.say(Heartbeat())
        closed.append(silent.is_closed)
    assert closed.index(True) == 4
    (ended,) = silent.heard_of(SessionEnded)
    assert ended.code is ErrorCode.UNAVAILABLE and f"session {silent.session} was silent" in ended.message
    assert not other.is_closed
    assert other.bodies("q") == [b"1"]


def test_who_consumes_nothing_may_be_silent() -> None:
    rig = Rig(PrimarySettings(client_silence_ms=5000))
    client = rig.client()
    rig.pass_time(60_000)
    assert not client.is_closed


def test_a_stream_that_is_full_gets_no_deliveries_until_it_is_drained() -> None:
    rig = Rig()
    slow, other = rig.client(), rig.client()
    slow.declare("q")
    slow.consume("q")
    rig.feed(ClientStreamFull(SET, slow.stream))
    slow.publish("q", b"1")
    slow.declare("r")
    slow.publish("r", b"2")
    slow.consume("r")
    assert slow.bodies("q") == slow.bodies("r") == []
    other.consume("q")
    assert other.bodies("q") == [b"1"], "others get what it does not take"
    rig.feed(ClientStreamDrained(SET, slow.stream))
    assert slow.bodies("r") == [b"2"]
    other.publish("q", b"3", b"4")
    assert len(slow.bodies("q")) + len(other.bodies("q")) == 3
