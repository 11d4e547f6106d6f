"""Sessions of callers, over the real driver and stream, with a scripted set: what callers hear when something goes wrong."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from lockstep.core.clock import Now
from lockstep.core.commands import (
    BeginCommand,
    Command,
    CommitCommand,
    Disposition,
    EndCommand,
    OutgoingMessage,
    PublishCommand,
    SetTimeoutCommand,
    SettleCommand,
    StartCommand,
)
from lockstep.core.effects import AnyEffect, CloseClientStream, TellClient
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SessionKey, SetName, TransactionKey
from lockstep.core.inputs import AnyInput, ClientSaid, Tick
from lockstep.core.requests import AttachSession, CloseConsumer, DetachSession, DrainConsumer, OpenConsumer
from lockstep.core.server_messages import (
    Answers,
    AnyServerMessage,
    CommandAnswered,
    ConsumerDrained,
    ConsumerOpened,
    DeliveredMessage,
    Deliveries,
    PushedBack,
    SessionAttached,
    SessionEnded,
)
from lockstep.core.xid import Xid
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.driver import Driver
from lockstep.runtime.serving import ServingRights
from services.broker import caller_sessions
from services.broker.caller_limits import CallerLimits
from services.broker.caller_session import SETTLES_KEPT, Done
from services.broker.caller_sessions import CallerSessions, OpenTransaction
from services.primary.sessions import SessionsService

SET, E3 = SetName("orders"), Epoch(3)
HEAD = E3, LogIndex(50)


async def heard(call: Awaitable[Any]) -> tuple[type[LockstepError], ErrorCode]:
    """The error that a call ends with."""
    with pytest.raises(LockstepError) as raised:
        await asyncio.wait_for(call, 5)
    return type(raised.value), raised.value.code


class ScriptedSet:
    """Answers commands with their number, as long as it is not told otherwise; 40 is the index of every begin."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.silent = False
        self.next_number = 1
        self.push_back = False
        self.refuses = ErrorCode.NONE
        """What every settle is refused with."""
        self.refuses_time_outs = ErrorCode.NONE
        self.queue: list[DeliveredMessage] = []
        self.queue_name = ""
        self.drains = True
        self.stream = 0
        self.wanted: list[AnyEffect] = []

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        if not isinstance(given, ClientSaid):
            wanted, self.wanted = self.wanted, []
            return wanted
        self.stream = given.stream
        self.said += given.messages
        answers = [answer for message in given.messages for answer in self._answers(message)]
        return [TellClient(SET, given.stream, answer, 0) for answer in answers]

    def _answers(self, message: object) -> Iterator[AnyServerMessage]:
        match message:
            case AttachSession():
                yield SessionAttached(*HEAD, SessionKey(7), E3, self.next_number, ())
            case Command() if self.push_back:
                yield PushedBack(*HEAD, message.number, ErrorCode.UNAVAILABLE, "later")
                self.push_back = False
            case SetTimeoutCommand() if self.refuses_time_outs:
                refused = CommandAnswered(message.number, self.refuses_time_outs, "refused", 0)
                yield Answers(*HEAD, (refused,))
            case SettleCommand() if self.refuses:
                yield Answers(*HEAD, (CommandAnswered(message.number, self.refuses, "refused", 0),))
            case Command() if not self.silent:
                value = 40 if isinstance(message, BeginCommand) else 1
                if isinstance(message, StartCommand):
                    value = message.number
                yield Answers(*HEAD, (CommandAnswered(message.number, ErrorCode.NONE, "", value),))
            case OpenConsumer():
                yield ConsumerOpened(*HEAD, message.consumer)
                self.queue_name = message.queue
            case DrainConsumer():
                if self.queue:
                    yield Deliveries(*HEAD, message.consumer, self.queue_name, tuple(self.queue))
                if self.drains:
                    yield ConsumerDrained(*HEAD, message.consumer, 0)
            case DetachSession() if not self.silent:
                yield SessionEnded(*HEAD, ErrorCode.NONE, "detached")
            case _:
                pass

    @property
    def commands(self) -> list[Command]:
        return [message for message in self.said if isinstance(message, Command)]


class Rig:
    def __init__(self, limits: CallerLimits) -> None:
        self.set, self.driver, self.rights = ScriptedSet(), Driver(), ServingRights()
        self.driver.host(SET, self.set)
        self.callers = CallerSessions(SessionsService(self.driver, self.rights, lambda _: []), limits)

    async def begin(self, session_id: str = "") -> OpenTransaction:
        return (await self.callers.begin(SET, session_id, 0))[0]

    def perform(self, effect: AnyEffect) -> None:
        """The set wants this done now."""
        self.set.wanted.append(effect)
        self.driver.feed(Tick(SET))
        self.driver.drain()

    def deliver(self, messages: list[DeliveredMessage], serve_until_ms: int = 0) -> None:
        """To the first consumer."""
        deliveries = Deliveries(*HEAD, 1, "q", tuple(messages))
        self.perform(TellClient(SET, self.set.stream, deliveries, serve_until_ms))

    def lose_stream(self) -> None:
        """The set stops serving here."""
        self.perform(CloseClientStream(SET, self.set.stream))


def publish(key: TransactionKey, sequence: int, body: bytes = b"x") -> PublishCommand:
    return PublishCommand(0, "", "q", (OutgoingMessage(b"", body),), key, sequence)


@pytest.fixture
async def rig() -> Rig:
    return Rig(CallerLimits(answer_seconds=0.2, sessions_max=2, unanswered_max=3))


async def test_commands_are_numbered_on_from_where_the_set_is(rig: Rig) -> None:
    rig.set.next_number = 12
    transaction = await rig.begin("mine")
    await rig.callers.operate(transaction, publish(transaction.key, 1))
    assert [command.number for command in rig.set.commands] == [12, 13]


async def test_what_was_pushed_back_may_be_sent_again_with_the_same_sequence(rig: Rig) -> None:
    transaction = await rig.begin()
    rig.set.push_back = True
    with pytest.raises(Rejected) as pushed:
        await rig.callers.operate(transaction, publish(transaction.key, 1))
    assert pushed.value.code is ErrorCode.UNAVAILABLE
    await rig.callers.operate(transaction, publish(transaction.key, 1))
    assert [command.number for command in rig.set.commands] == [1, 2, 2]


async def test_commit_that_was_pushed_back_may_be_repeated(rig: Rig) -> None:
    transaction = await rig.begin()
    rig.set.push_back = True
    with pytest.raises(Rejected):
        await rig.callers.end(transaction, CommitCommand(0, transaction.key, 0))
    await rig.callers.end(transaction, CommitCommand(0, transaction.key, 0))
    assert rig.callers.find(SET, transaction.key) is None


async def test_answer_that_does_not_come_is_in_doubt_and_a_repeat_waits_for_the_same_one(rig: Rig) -> None:
    transaction = await rig.begin()
    rig.set.silent = True
    for _ in range(2):
        with pytest.raises(InDoubt):
            await rig.callers.operate(transaction, publish(transaction.key, 1))
    assert len(rig.set.commands) == 2


async def test_stream_that_ends_leaves_its_commands_in_doubt_and_forgets_its_transactions(rig: Rig) -> None:
    transaction = await rig.begin()
    rig.set.silent = True
    ending = asyncio.ensure_future(rig.callers.end(transaction, CommitCommand(0, transaction.key, 0)))
    await asyncio.sleep(0.01)
    rig.lose_stream()
    with pytest.raises(InDoubt) as doubt:
        await ending
    assert doubt.value.code is ErrorCode.NOT_PRIMARY
    assert rig.callers.find(SET, transaction.key) is None


async def test_session_is_opened_again_after_its_stream_ended(rig: Rig) -> None:
    await rig.begin("mine")
    rig.lose_stream()
    await asyncio.sleep(0.01)
    await rig.begin("mine")
    attached = [message for message in rig.set.said if isinstance(message, AttachSession)]
    assert [message.session_id for message in attached] == ["mine", "mine"]


async def test_limits_are_told_and_nothing_is_done_beyond_them(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.begin("one")
    transaction = await rig.begin("two")
    with pytest.raises(Rejected) as many:
        await rig.begin("three")
    assert many.value.code is ErrorCode.UNAVAILABLE
    rig.set.silent = True
    calls = [
        asyncio.ensure_future(rig.callers.operate(transaction, publish(transaction.key, number)))
        for number in range(1, 5)
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["InDoubt"] * 3 + ["NotTaken"]
    assert [line.partition(" refusals")[0] for line in caplog.messages if "limit=" in line] == [
        "event=limit_reached limit=caller_sessions_max",
        "event=limit_reached limit=caller_unanswered_max",
    ]


@pytest.mark.parametrize("is_branch", [False, True])
async def test_transactions_that_are_being_begun_count_as_open(
    is_branch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Their answers come late, and meanwhile any number of others would be let in."""
    rig = Rig(CallerLimits(answer_seconds=0.2, transactions_max=2))
    rig.set.silent = True

    async def begin(number: int) -> None:
        if is_branch:
            await rig.callers.start_branch(SET, "", Xid(7, b"%d" % number, b""), 0)
        else:
            await rig.callers.begin(SET, "", 0)

    begun = await asyncio.gather(*(begin(number) for number in range(5)), return_exceptions=True)
    assert [type(error) for error in begun] == [InDoubt, InDoubt, Rejected, Rejected, Rejected]
    assert len([line for line in caplog.messages if "limit=caller_transactions_max" in line]) == 1
    # What was given up is not open, as far as anybody knows here.
    assert isinstance((await asyncio.gather(begin(9), return_exceptions=True))[0], InDoubt)


async def test_operation_behind_the_commit_is_refused(rig: Rig) -> None:
    transaction = await rig.begin()
    rig.set.silent = True
    with contextlib.suppress(InDoubt):
        await rig.callers.end(transaction, CommitCommand(0, transaction.key, 0))
    with pytest.raises(Rejected) as late:
        await rig.callers.operate(transaction, publish(transaction.key, 1))
    assert late.value.code is ErrorCode.TRANSACTION_FINISHED


def delivered(count: int, body: bytes) -> list[DeliveredMessage]:
    return [DeliveredMessage(QueuePosition(n), b"", body, 0, 0, True) for n in range(1, count + 1)]


async def test_acquire_drains_its_consumer_and_closes_it_before_it_answers() -> None:
    rig = Rig(CallerLimits())
    rig.set.queue = delivered(2, b"x")
    acquired = await rig.callers.session(SET, "mine").acquisitions.acquire("q", 5, 0.0)
    assert [message.position for message in acquired.messages] == [1, 2] and acquired.epoch == E3
    kinds = [type(message) for message in rig.set.said]
    assert kinds == [AttachSession, OpenConsumer, DrainConsumer, CloseConsumer]


async def test_what_came_is_answered_though_the_set_does_not_say_that_it_is_all(rig: Rig) -> None:
    rig.set.queue, rig.set.drains = delivered(1, b"x"), False
    acquired = await rig.callers.session(SET, "mine").acquisitions.acquire("q", 5, 0.0)
    assert [message.position for message in acquired.messages] == [1]
    rig.set.queue = []
    with pytest.raises(InDoubt):
        await rig.callers.session(SET, "mine").acquisitions.acquire("q", 5, 0.0)
    assert isinstance(rig.set.said[-1], CloseConsumer)


async def test_messages_beyond_the_bytes_of_an_answer_are_released() -> None:
    rig = Rig(CallerLimits(acquired_bytes_max=10))
    rig.set.queue = delivered(3, b"12345678")
    acquired = await rig.callers.session(SET, "mine").acquisitions.acquire("q", 5, 0.0)
    assert len(acquired.messages) == 1
    await asyncio.sleep(0.01)
    (released,) = rig.set.commands
    assert isinstance(released, SettleCommand)
    assert released.disposition == Disposition.RELEASE and released.positions == (2, 3)


async def test_messages_for_a_caller_that_has_gone_are_released() -> None:
    rig = Rig(CallerLimits())
    session = rig.callers.session(SET, "mine")
    waiting = asyncio.ensure_future(session.acquisitions.acquire("q", 5, 0.05))
    await asyncio.sleep(0.01)
    waiting.cancel()
    rig.deliver(delivered(1, b"x"))
    await asyncio.sleep(0.1)
    (released,) = rig.set.commands
    assert isinstance(released, SettleCommand) and released.positions == (1,)


async def test_release_that_the_set_does_not_take_is_said_again() -> None:
    rig = Rig(CallerLimits(acquired_bytes_max=10))
    rig.set.queue, rig.set.push_back = delivered(3, b"12345678"), True
    await rig.callers.session(SET, "mine").acquisitions.acquire("q", 5, 0.0)
    async with asyncio.timeout(10):
        while len(rig.set.commands) < 2:
            await asyncio.sleep(0.01)
    first, again = rig.set.commands
    assert again == first and isinstance(again, SettleCommand) and again.positions == (2, 3)


async def test_consumer_ends_as_soon_as_an_answer_has_no_room_for_more() -> None:
    rig = Rig(CallerLimits(acquired_bytes_max=10))
    rig.set.drains = False
    acquiring = asyncio.ensure_future(rig.callers.session(SET, "mine").acquisitions.acquire("q", 1000, 0.0))
    await asyncio.sleep(0.01)
    assert not any(isinstance(message, CloseConsumer) for message in rig.set.said)
    rig.deliver(delivered(2, b"12345678"))
    async with asyncio.timeout(5):
        acquired = await acquiring
    assert [message.position for message in acquired.messages] == [1]
    await asyncio.sleep(0.01)
    assert any(isinstance(message, CloseConsumer) for message in rig.set.said)
    (released,) = rig.set.commands
    assert isinstance(released, SettleCommand) and released.positions == (2,)


async def test_messages_are_not_answered_when_the_right_to_serve_has_ended_meanwhile(rig: Rig) -> None:
    rig.set.drains = False
    until_ms = boottime_ms() + 100
    rig.rights.extend(until_ms, boottime_ms())
    acquiring = asyncio.ensure_future(rig.callers.session(SET, "mine").acquisitions.acquire("q", 10, 0.0))
    await asyncio.sleep(0.01)
    rig.deliver(delivered(1, b"x"), until_ms)
    with pytest.raises(InDoubt) as late:
        await acquiring
    assert late.value.code is ErrorCode.NOT_PRIMARY
    await asyncio.sleep(0.01)
    (released,) = rig.set.commands
    assert isinstance(released, SettleCommand) and released.positions == (1,)


async def test_new_session_of_an_acquire_that_fails_ends_again(rig: Rig) -> None:
    rig.set.drains = False
    for _ in range(4):
        with pytest.raises(InDoubt):
            await rig.callers.acquire(SET, "", 0, "q", 1, 0.0)
        await asyncio.sleep(0.01)
    rig.set.drains = True
    session, _ = await rig.callers.acquire(SET, "", 0, "q", 1, 0.0)
    assert rig.callers.known_session(SET, session.session_id) is session
    rig.set.drains = False
    with pytest.raises(InDoubt):
        await rig.callers.acquire(SET, session.session_id, 0, "q", 1, 0.0)
    await asyncio.sleep(0.01)
    assert rig.callers.known_session(SET, session.session_id) is session


async def test_sessions_of_some_keep_nobody_from_publishing(rig: Rig) -> None:
    for name in ("one", "two"):
        await rig.begin(name)
    transaction = await rig.begin()
    assert (await rig.callers.operate(transaction, publish(transaction.key, 1))).value == 1


async def test_end_of_a_session_is_asked_for_once(rig: Rig) -> None:
    session = rig.callers.session(SET, "mine")
    await asyncio.sleep(0.01)
    rig.set.silent = True
    for _ in range(3):
        session.detach()
        await asyncio.sleep(0.01)
    assert len([message for message in rig.set.said if isinstance(message, DetachSession)]) == 1


async def test_branches_that_have_ended_are_not_open_and_their_end_may_be_repeated() -> None:
    rig = Rig(CallerLimits(transactions_max=2))
    ends = []
    for number in range(5):
        xid = Xid(1, b"global %d" % number, b"")
        await rig.callers.start_branch(SET, "", xid, 3_600_000)
        ends.append(EndCommand(0, xid.encode(), 0))
        await rig.callers.end_branch(SET, ends[-1])
        await asyncio.sleep(0)
    said = len(rig.set.commands)
    await rig.callers.end_branch(SET, ends[-1])
    assert len(rig.set.commands) == said
    with pytest.raises(Rejected) as otherwise:
        await rig.callers.end_branch(SET, EndCommand(0, ends[-1].xid, 7))
    assert otherwise.value.code is ErrorCode.TRANSACTION_FINISHED


async def test_branch_that_has_begun_and_whose_time_out_is_refused_is_in_doubt() -> None:
    """Its caller would take a refusal for a branch that is not there, while its work stays open. So it can end it."""
    rig = Rig(CallerLimits())
    rig.set.refuses_time_outs = ErrorCode.INVALID_ARGUMENT
    xid = Xid(1, b"global", b"")
    with pytest.raises(InDoubt, match="has begun") as caught:
        await rig.callers.start_branch(SET, "", xid, 1000)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    await rig.callers.end_branch(SET, EndCommand(0, xid.encode(), 0, is_failed=True))
    assert isinstance(rig.set.commands[-1], EndCommand)


async def test_branch_with_a_longer_time_out_is_known_for_longer() -> None:
    rig = Rig(CallerLimits())
    branch, _ = await rig.callers.start_branch(SET, "", Xid(1, b"global", b""), 1000)
    before = branch.forgotten_at
    for timeout_ms, more in ((600_000, 590), (1000, 590), (0, 3590), (1 << 42, 3590)):
        await rig.callers.set_timeout(SET, SetTimeoutCommand(0, branch.xid, timeout_ms))
        assert more <= branch.forgotten_at - before < more + 30


async def test_branch_whose_caller_did_not_hear_of_its_start_is_ended_by_the_session_that_works_in_it() -> (
    None
):
    rig = Rig(CallerLimits())
    rig.callers.session(SET, "mine")
    await asyncio.sleep(0.01)
    rig.set.silent = True
    starting = asyncio.ensure_future(rig.callers.start_branch(SET, "mine", xid := Xid(1, b"global", b""), 0))
    await asyncio.sleep(0.01)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    rig.set.silent = False
    answers = tuple(CommandAnswered(number, ErrorCode.NONE, "", 44) for number in (1, 2))
    rig.perform(TellClient(SET, rig.set.stream, Answers(*HEAD, answers), 0))
    await asyncio.sleep(0.01)
    await rig.callers.end_branch(SET, EndCommand(0, xid.encode(), 0, is_failed=True))
    attached = [message for message in rig.set.said if isinstance(message, AttachSession)]
    assert [message.session_id for message in attached] == ["mine"]


def settle(position: int, disposition: int) -> SettleCommand:
    return SettleCommand(0, "q", E3, (QueuePosition(position),), disposition)


async def test_settle_that_is_repeated_is_done_once_where_it_is_for_good(rig: Rig) -> None:
    session = rig.callers.session(SET, "mine")
    for position in (1, 1, 2):
        await session.settle(settle(position, Disposition.ACCEPT))
    assert len(rig.set.commands) == 2
    for _ in range(2):
        await session.settle(settle(3, Disposition.RELEASE))
    assert len(rig.set.commands) == 4


async def test_settle_that_is_repeated_before_its_answer_waits_for_the_same_one(rig: Rig) -> None:
    session = rig.callers.session(SET, "mine")
    rig.set.silent = True
    for _ in range(2):
        with pytest.raises(InDoubt):
            await session.settle(settle(1, Disposition.REJECT))
    assert len(rig.set.commands) == 1


async def test_settle_that_was_not_taken_is_said_when_it_is_repeated(rig: Rig) -> None:
    session = rig.callers.session(SET, "mine")
    rig.set.push_back = True
    with pytest.raises(Rejected):
        await session.settle(settle(1, Disposition.ACCEPT))
    await asyncio.sleep(0)
    assert (await session.settle(settle(1, Disposition.ACCEPT))).value == 1
    assert len(rig.set.commands) == 2


async def test_not_all_settles_are_remembered(rig: Rig) -> None:
    session = rig.callers.session(SET, "mine")
    for position in range(1, SETTLES_KEPT + 2):
        await session.settle(settle(position, Disposition.ACCEPT))
    await session.settle(settle(SETTLES_KEPT + 1, Disposition.ACCEPT))
    assert len(rig.set.commands) == SETTLES_KEPT + 1
    await session.settle(settle(1, Disposition.ACCEPT))
    assert len(rig.set.commands) == SETTLES_KEPT + 2


async def test_operation_behind_one_for_which_there_was_no_room_is_not_said_when_there_is() -> None:
    rig = Rig(CallerLimits(unanswered_max=1))
    transaction = await rig.begin()
    rig.set.silent = True
    operations = [asyncio.ensure_future(rig.callers.operate(transaction, publish(transaction.key, 1)))]
    await asyncio.sleep(0.01)
    operations.append(asyncio.ensure_future(rig.callers.operate(transaction, publish(transaction.key, 2))))
    answers = (CommandAnswered(2, ErrorCode.NONE, "", 1),)
    rig.perform(TellClient(SET, rig.set.stream, Answers(*HEAD, answers), 0))
    operations.append(asyncio.ensure_future(rig.callers.operate(transaction, publish(transaction.key, 3))))
    first, second, third = await asyncio.gather(*operations, return_exceptions=True)
    assert isinstance(first, Done) and isinstance(second, Rejected) and isinstance(third, Rejected)
    assert (second.code, third.code) == (ErrorCode.UNAVAILABLE, ErrorCode.SEQUENCE_GAP)
    assert [command.number for command in rig.set.commands] == [1, 2]


async def test_operation_behind_one_that_was_just_pushed_back_is_not_said(rig: Rig) -> None:
    transaction = await rig.begin()
    rig.set.silent = True
    operations = [asyncio.ensure_future(rig.callers.operate(transaction, publish(transaction.key, 1)))]
    await asyncio.sleep(0.01)
    pushed = PushedBack(*HEAD, 2, ErrorCode.UNAVAILABLE, "later")
    rig.perform(TellClient(SET, rig.set.stream, pushed, 0))
    operations.append(asyncio.ensure_future(rig.callers.operate(transaction, publish(transaction.key, 2))))
    first, second = await asyncio.gather(*operations, return_exceptions=True)
    assert isinstance(first, Rejected) and isinstance(second, Rejected)
    assert (first.code, second.code) == (ErrorCode.UNAVAILABLE, ErrorCode.SEQUENCE_GAP)
    rig.set.silent = False
    for sequence in (1, 2):
        assert (await rig.callers.operate(transaction, publish(transaction.key, sequence))).value == 1
    assert [command.number for command in rig.set.commands] == [1, 2, 2, 3]


@pytest.mark.parametrize("disposition", [Disposition.ACCEPT, Disposition.REJECT, Disposition.RELEASE])
@pytest.mark.parametrize("session_id", ["", "mine"])
async def test_what_a_session_holds_no_more_is_settled_in_doubt_where_it_may_be_by_an_earlier_call(
    disposition: int, session_id: str
) -> None:
    """Whoever names a session may have had it at another broker, and settled there; a new one has settled nothing elsewhere."""
    rig = Rig(CallerLimits(answer_seconds=0.2))
    rig.set.refuses = ErrorCode.STALE_DELIVERY
    session = rig.callers.session(SET, session_id)
    is_certain = not session_id and disposition != Disposition.RELEASE
    with pytest.raises(Rejected if is_certain else InDoubt) as raised:
        await session.settle(SettleCommand(0, "q", E3, (QueuePosition(1),), disposition))
    assert raised.value.code is ErrorCode.STALE_DELIVERY


async def test_a_new_session_that_has_forgotten_settles_does_not_know_what_it_holds_no_more() -> None:
    rig = Rig(CallerLimits(answer_seconds=5.0))
    session = rig.callers.session(SET)
    for position in range(SETTLES_KEPT + 1):
        await session.settle(SettleCommand(0, "q", E3, (QueuePosition(position),), Disposition.ACCEPT))
    rig.set.refuses = ErrorCode.STALE_DELIVERY
    with pytest.raises(InDoubt):
        await session.settle(SettleCommand(0, "q", E3, (QueuePosition(0),), Disposition.ACCEPT))


@pytest.mark.parametrize(
    ("asked_ms", "granted_ms"), [(0, 2_000), (1, 1), (5_000, 5_000), (5_001, 5_000), (1 << 60, 5_000)]
)
async def test_a_caller_has_a_session_for_as_long_as_it_says_and_the_limit_allows(
    asked_ms: int, granted_ms: int
) -> None:
    rig = Rig(CallerLimits(session_timeout_ms=2_000, session_timeout_ms_max=5_000))
    session = rig.callers.session(SET, "mine", asked_ms)
    await asyncio.sleep(0)
    (attach,) = [message for message in rig.set.said if isinstance(message, AttachSession)]
    assert attach.timeout_ms == session.timeout_ms == granted_ms


async def test_a_session_that_its_caller_does_not_use_ends_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caller_sessions, "SWEEP_SECONDS", 0.02)
    rig = Rig(CallerLimits(session_timeout_ms_max=200))
    rig.callers.session(SET, "mine", 1 << 60)
    await asyncio.sleep(0.1)
    assert rig.callers.known_session(SET, "mine") is not None, "and this call was a use of it"
    async with asyncio.timeout(10):
        while not any(isinstance(message, DetachSession) for message in rig.set.said):
            await asyncio.sleep(0.02)


async def test_a_callers_transaction_with_too_long_a_time_out_is_refused() -> None:
    rig = Rig(CallerLimits(transaction_timeout_ms_max=5_000))
    with pytest.raises(Rejected) as refused:
        await rig.callers.begin(SET, "", 5_001)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    await rig.callers.begin(SET, "", 5_000)
    (begin,) = [command for command in rig.set.commands if isinstance(command, BeginCommand)]
    assert begin.timeout_ms == 5_000
