"""Bad input: each a typed error that says what it is about; nothing crashes and nothing is lost."""

import pytest
from msgspec.structs import replace

from lockstep.core.commands import (
    AnyCommand,
    BeginCommand,
    BindCommand,
    CommitCommand,
    DeclareExchangeCommand,
    DeclareQueueCommand,
    DeleteExchangeCommand,
    DeleteQueueCommand,
    OutgoingMessage,
    PublishCommand,
    PurgeQueueCommand,
    QueueOptions,
    RollbackCommand,
    SettleCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SessionId
from lockstep.core.requests import (
    Browse,
    CloseConsumer,
    Describe,
    DetachSession,
    GetOutcome,
    GrantCredit,
    OpenConsumer,
)
from lockstep.core.server_messages import (
    AttachRefused,
    BrowseAnswer,
    ConsumerClosed,
    Description,
    OutcomeAnswer,
    OutcomeState,
    SessionEnded,
)
from lockstep.core.state_hash import state_hash
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import Rig, RigClient, publish

LONG = "x" * 10_000
NO_TEXT = "\ud800"
TRANSACTION = LogIndex(1 << 70), Epoch(1 << 70)
HUGE = 1 << 70
N = ErrorCode.NOT_FOUND
I = ErrorCode.INVALID_ARGUMENT  # noqa: E741
U = ErrorCode.UNKNOWN_TRANSACTION


def declare(**options: object) -> DeclareQueueCommand:
    return DeclareQueueCommand(0, "new", QueueOptions(**options))  # type: ignore[arg-type]


def settle(*positions: int, **options: object) -> SettleCommand:
    named = tuple(QueuePosition(position) for position in positions)
    return replace(SettleCommand(0, "q", Epoch(1), named), **options)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (DeclareQueueCommand(0, "", QueueOptions()), I),
        (DeclareQueueCommand(0, LONG, QueueOptions()), I),
        (DeclareQueueCommand(0, "é" * 128, QueueOptions()), I),
        (DeclareQueueCommand(0, "a\x00b", QueueOptions()), I),
        (DeclareQueueCommand(0, NO_TEXT, QueueOptions()), I),
        (declare(length_max=-1), I),
        (declare(bytes_max=HUGE), I),
        (declare(message_ttl_ms=HUGE), I),
        (declare(delivery_count_max=-5), I),
        (declare(dead_letter_exchange=LONG), I),
        (declare(dead_letter_exchange=NO_TEXT), I),
        (declare(dead_letter_exchange="", dead_letter_key=NO_TEXT), I),
        (DeclareQueueCommand(0, "q", QueueOptions(length_max=1)), ErrorCode.ALREADY_EXISTS),
        (DeclareExchangeCommand(0, "", "direct", True), I),
        (DeclareExchangeCommand(0, NO_TEXT, "direct", True), I),
        (DeclareExchangeCommand(0, "new", LONG, True), I),
        (DeclareExchangeCommand(0, "new", NO_TEXT, True), I),
        (DeclareExchangeCommand(0, "x", "topic", True), ErrorCode.ALREADY_EXISTS),
        (DeleteExchangeCommand(0, LONG), N),
        (DeleteExchangeCommand(0, ""), N),
        (DeleteQueueCommand(0, LONG), N),
        (DeleteQueueCommand(0, NO_TEXT), N),
        (PurgeQueueCommand(0, "nowhere"), N),
        (BindCommand(0, "nowhere", "q", ""), N),
        (BindCommand(0, "x", "nowhere", ""), N),
        (BindCommand(0, "x", "q", LONG), I),
        (BindCommand(0, "x", "q", NO_TEXT), I),
        (BindCommand(0, "x", "q", "", ((NO_TEXT, ""),)), I),
        (BindCommand(0, "x", "q", "", (("", NO_TEXT),)), I),
        (BindCommand(0, "x", "q", "", (("name", LONG),)), I),
        (BindCommand(0, "x", "q", "", (("name", "x" * 3000),) * 2), ErrorCode.TOO_LARGE),
        (BindCommand(0, "x", "q", "", (("", ""),) * 5000), ErrorCode.TOO_LARGE),
        (publish("nowhere", b""), N),
        (publish(LONG, b""), N),
        (publish(NO_TEXT, b""), N),
        (publish("key", b"", exchange="nowhere"), N),
        (publish(LONG, b"", exchange="x"), I),
        (publish(NO_TEXT, b"", exchange="x"), I),
        (publish("q", b"", ttl_ms=-1), I),
        (publish("q", b"", ttl_ms=HUGE), I),
        (publish("q", bytes(1001)), ErrorCode.TOO_LARGE),
        (PublishCommand(0, "", "q", (OutgoingMessage(bytes(501), bytes(500)),)), ErrorCode.TOO_LARGE),
        (publish("q", *[b""] * 6), ErrorCode.TOO_LARGE),
        (publish("q", bytes(1000), bytes(1000), bytes(1)), ErrorCode.TOO_LARGE),
        (publish("q", b"", transaction=TRANSACTION, sequence=1), U),
        (settle(1), ErrorCode.STALE_DELIVERY),
        (settle(HUGE, -1), ErrorCode.STALE_DELIVERY),
        (settle(1, 1), I),
        (settle(1, disposition=0), I),
        (settle(1, disposition=HUGE), I),
        (settle(1, queue="nowhere"), N),
        (settle(*range(6)), ErrorCode.TOO_LARGE),
        (settle(transaction=TRANSACTION, sequence=1), U),
        (settle(delivery_epoch=Epoch(HUGE)), ErrorCode.STALE_DELIVERY),
        (CommitCommand(0, TRANSACTION, HUGE), U),
        (CommitCommand(0, TRANSACTION, 0, HUGE), U),
        (CommitCommand(0, TRANSACTION, HUGE, 0, PublishCommand(0, "", "q", (), TRANSACTION, HUGE)), U),
        (CommitCommand(0, (LogIndex(-1), Epoch(-1)), -1), ErrorCode.EXPIRED),
        (RollbackCommand(0, TRANSACTION), U),
    ],
)
def test_a_bad_command_is_rejected_by_a_code(command: AnyCommand, code: ErrorCode) -> None:
    limits = PrimarySettings(message_bytes_max=1000, command_messages_max=5, command_bytes_max=2000)
    rig = Rig(limits)
    client = rig.client()
    client.declare("q")
    client.exchange("x")
    client.publish("q", b"kept")
    answered = client.do(command)
    assert answered.code is code, answered
    assert len(answered.message) < 500
    assert rig.bodies("q") == [b"kept"]
    rig.check_log()


@pytest.mark.parametrize("command", [settle(), publish("q"), BeginCommand(0, HUGE), BeginCommand(0, -1)])
def test_an_odd_command_does_no_harm(command: AnyCommand) -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.ok(command)
    rig.check_log()


def test_a_number_that_is_over_and_forgotten_is_answered_as_such() -> None:
    rig = Rig()
    client = rig.client()
    client.say(replace(publish("q", b""), number=-3))
    assert client.answers[-3].code is ErrorCode.EXPIRED


@pytest.mark.parametrize("session_id", ["", LONG, NO_TEXT])
def test_a_bad_session_id_is_refused(session_id: str) -> None:
    client = RigClient(Rig(), SessionId(session_id))
    client.attach()
    (refused,) = client.heard_of(AttachRefused)
    assert refused.code is ErrorCode.INVALID_ARGUMENT and len(refused.message) < 500


def test_bad_requests_are_answered() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.say(
        GrantCredit(7, HUGE),
        CloseConsumer(7),
        OpenConsumer(7, LONG, 1),
        OpenConsumer(8, "q", -HUGE),
        OpenConsumer(8, "q", 1),
        GrantCredit(8, -HUGE),
        Browse(1, NO_TEXT, QueuePosition(0), 1),
        Browse(2, "q", QueuePosition(HUGE), HUGE),
        Browse(3, "q", QueuePosition(-HUGE), -1),
        GetOutcome(4, TRANSACTION, True),
        Describe(5),
        Describe(6, with_state_hash=True),
    )
    assert [(closed.consumer, closed.code) for closed in client.heard_of(ConsumerClosed)] == [
        (7, ErrorCode.NOT_FOUND),
        (8, ErrorCode.ALREADY_EXISTS),
    ]
    assert [(answer.request, answer.code) for answer in client.heard_of(BrowseAnswer)] == [
        (1, ErrorCode.NOT_FOUND),
        (2, ErrorCode.NONE),
        (3, ErrorCode.NONE),
    ]
    assert client.heard_of(OutcomeAnswer)[0].state == OutcomeState.UNKNOWN
    plain, hashed = client.heard_of(Description)
    assert (plain.request, plain.state_hash) == (5, "")
    assert (hashed.request, hashed.state_hash) == (6, state_hash(rig.state))


def test_a_stream_without_a_session_gets_no_messages() -> None:
    """They would be held for ever by nobody."""
    rig = Rig()
    owner = rig.client()
    owner.declare("q")
    refused = RigClient(rig, SessionId(""))
    refused.attach()
    detached = rig.client()
    detached.say(DetachSession())
    for client in (refused, detached):
        client.consume("q")
        assert client.heard_of(SessionEnded)[-1].code is ErrorCode.UNKNOWN_SESSION
    owner.publish("q", b"1")
    assert not refused.in_hand and not detached.in_hand
    owner.consume("q")
    assert owner.bodies("q") == [b"1"]
