"""The SDK's distributed transaction over real gRPC, against a fake broker and a fake coordinator."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from lockstep.client import Client, InDoubt, Message, OutcomeState, Rejected, Session, TransactionState
from lockstep.client.coordinators import PATIENCE_SECONDS, Coordinators
from lockstep.client.distributed_transaction import ENDED_SECONDS
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import LogIndex, SetName, TransactionKey, transaction_id
from lockstep.core.xa import XaStatus
from services.coordinator.core.settings import CoordinatorLimits
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.fake_coordinator import FakeCoordinator


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coordinators are not waited for for long."""
    monkeypatch.setattr(Coordinators.call, "__defaults__", (0.3,))


@pytest_asyncio.fixture
async def message(broker: FakeBroker, session: Session) -> AsyncIterator[Message]:
    """Of queue "a", in the hands of its consumer."""
    async with await session.consume("a", credit=8) as consumer:
        await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
        await broker.deliver("one", 1, "a", 1)
        yield await anext(consumer)


async def test_what_was_accepted_and_published_is_committed(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session, message: Message
) -> None:
    async with session.distributed_transaction() as tx:
        await tx.accept(message)
        await tx.publish("b", b"x")
    assert tx.state is TransactionState.COMMITTED
    assert coordinator.asked == ["Begin", "Commit"]
    commands = broker.worlds["one"].executed()
    assert [type(command) for command in commands] == [
        c.SelectDtxCommand,
        c.BeginCommand,
        c.StartCommand,
        c.SettleCommand,
        c.PublishCommand,
        c.SetTimeoutCommand,
        c.EndCommand,
    ]
    limit = commands[-2]
    assert isinstance(limit, c.SetTimeoutCommand)
    assert limit.timeout_ms == 1000 * ENDED_SECONDS, "nobody else would end it if this client died now"


def test_an_ended_branch_waits_for_as_long_as_its_commit_is_tried_and_coordinators_ask_for_votes() -> None:
    """Coordinators that are away for that time would make a commit a rollback otherwise."""
    assert PATIENCE_SECONDS * 1000 + CoordinatorLimits().prepare_ms < ENDED_SECONDS * 1000


async def test_an_ended_branch_waits_for_connections_that_are_prepared_before(
    broker: FakeBroker, session: Session
) -> None:
    """The list of participants goes into the log first, which is tried for as long as a commit."""
    async with session.distributed_transaction() as tx:
        await tx.publish("a", b"x")
        await tx.enlist_postgres(Connection("PREPARE TRANSACTION"), "grpc://127.0.0.1:1/rows")
    limits = [one for one in broker.worlds["one"].executed() if isinstance(one, c.SetTimeoutCommand)]
    assert [one.timeout_ms for one in limits] == [1000 * (ENDED_SECONDS + PATIENCE_SECONDS)]


async def test_who_publishes_faster_than_can_be_said_waits(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = session.distributed_transaction()
    await tx.publish("b", b"1")
    port, _ = await session.of_set(SetName("one"))
    monkeypatch.setattr(port, "BACKLOG_BYTES_MAX", -1)
    publishing = asyncio.ensure_future(tx.publish("b", b"2"))
    await asyncio.sleep(0.02)
    assert not publishing.done()
    monkeypatch.setattr(port, "BACKLOG_BYTES_MAX", 1 << 20)
    async with asyncio.timeout(5):
        await session.publish("a", b"makes way")
        await publishing
        await tx.commit()


async def test_a_short_time_out_of_its_own_is_left_alone(
    broker: FakeBroker, session: Session, message: Message
) -> None:
    async with session.distributed_transaction(timeout_ms=2_000) as tx:
        await tx.accept(message)
    commands = broker.worlds["one"].executed()
    assert [one.timeout_ms for one in commands if isinstance(one, c.BeginCommand)] == [2_000]
    assert not any(isinstance(one, c.SetTimeoutCommand) for one in commands)


async def test_a_void_message_is_refused_and_nothing_commits_without_it(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session, message: Message
) -> None:
    broker.worlds["one"].fail_over(keep=9)
    broker.hang_up()
    await eventually(lambda: message.is_void)
    tx = session.distributed_transaction()
    await tx.publish("b", b"x")
    with pytest.raises(Rejected) as raised:
        await tx.accept(message)
    assert raised.value.code is ErrorCode.STALE_DELIVERY
    with pytest.raises(Rejected) as raised:
        await tx.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert tx.state is TransactionState.ROLLED_BACK
    assert "Commit" not in coordinator.asked


async def test_a_message_is_accepted_in_one_transaction_only(
    coordinator: FakeCoordinator, session: Session, message: Message
) -> None:
    async with session.distributed_transaction() as first:
        await first.accept(message)
    second = session.distributed_transaction()
    with pytest.raises(Rejected) as raised:
        async with second:
            await second.accept(message)
    assert raised.value.code is ErrorCode.STALE_DELIVERY
    assert (first.state, second.state) == (TransactionState.COMMITTED, TransactionState.ROLLED_BACK)
    assert coordinator.asked.count("Commit") == 1


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_transaction_that_touches_a_second_set_waits_for_neither(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session, is_old: bool
) -> None:
    coordinator.is_old = is_old
    async with session.transaction() as tx:
        broker.is_holding = True
        try:
            await tx.publish("a", b"x")
            await tx.publish("c", b"y")
            await eventually(
                lambda: all(
                    _count(broker, one, kind) == 1
                    for one in ("one", "two")
                    for kind in (c.StartCommand, c.PublishCommand)
                )
            )
        finally:
            await broker.commit()
    assert coordinator.asked == ["Begin", *["Enlist"] * 2 * is_old, "Commit"]
    assert [_count(broker, one, c.PublishCommand) for one in ("one", "two")] == [1, 1]


async def test_a_second_set_that_is_refused_leaves_nothing_open(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session
) -> None:
    coordinator.is_old, coordinator.enlists_max = True, 1
    tx = session.transaction()
    await tx.publish("a", b"x")
    with pytest.raises(Rejected):
        await tx.publish("c", b"y")
    assert not any(_count(broker, one, c.StartCommand) for one in ("one", "two"))
    assert coordinator.asked == ["Begin", "Enlist", "Enlist", "Rollback"]
    with pytest.raises(Rejected) as raised:
        await tx.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    await eventually(lambda: _count(broker, "one", c.RollbackCommand) == 1)


def _count(broker: FakeBroker, set_name: str, kind: type[c.Command]) -> int:
    return sum(isinstance(command, kind) for command in broker.worlds[set_name].executed())


async def test_who_is_cancelled_while_it_becomes_distributed_leaves_no_branch_open(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session
) -> None:
    for queue in ("a", "c"):
        await session.publish(queue, b"warm")
    transaction = session.transaction()

    async def work() -> None:
        async with transaction:
            await transaction.publish("a", b"x")
            coordinator.answers.clear()
            await transaction.publish("c", b"y")

    working = asyncio.ensure_future(work())
    await eventually(lambda: coordinator.asked == ["Begin"])
    working.cancel()
    await asyncio.sleep(0.02)
    coordinator.answers.set()
    await asyncio.wait([working])
    assert working.cancelled()
    assert transaction.state is TransactionState.ROLLED_BACK
    assert coordinator.asked[-1] == "Rollback"
    for name in ("one", "two"):
        assert _count(broker, name, c.StartCommand) == _count(broker, name, c.EndCommand) == 1
        assert _count(broker, name, c.PublishCommand) <= 2


async def test_who_is_cancelled_while_a_branch_begins_leaves_none_open(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session
) -> None:
    await session.publish("a", b"warm")
    transaction = session.distributed_transaction()

    async def work() -> None:
        async with transaction:
            await transaction.publish("a", b"x")
            await asyncio.sleep(60)

    working = asyncio.ensure_future(work())
    await eventually(lambda: _count(broker, "one", c.StartCommand) == 1)
    working.cancel()
    await asyncio.wait([working])
    assert [_count(broker, "one", kind) for kind in (c.StartCommand, c.EndCommand)] == [1, 1]
    assert coordinator.asked[-1] == "Rollback"


async def test_a_commit_is_asked_for_once(coordinator: FakeCoordinator, session: Session) -> None:
    transaction = session.distributed_transaction()
    await transaction.publish("a", b"x")
    first = asyncio.ensure_future(transaction.commit())
    await asyncio.sleep(0)
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.TRANSACTION_FINISHED
    await first
    assert coordinator.asked.count("Commit") == 1
    assert "Rollback" not in coordinator.asked


@pytest.mark.parametrize("queue", ["b", "c"])
async def test_work_is_refused_while_it_is_being_committed(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session, queue: str
) -> None:
    """In a set that it has a branch in, and in another."""
    transaction = session.distributed_transaction()
    await transaction.publish("a", b"x")
    broker.is_holding = True
    committing = asyncio.ensure_future(transaction.commit())
    await eventually(lambda: _count(broker, "one", c.EndCommand) == 1)
    refused = await asyncio.gather(
        transaction.publish(queue, b"y"),
        transaction.enlist("grpc://127.0.0.1:1/rows"),
        return_exceptions=True,
    )
    assert [_code(error) for error in refused] == [ErrorCode.TRANSACTION_FINISHED] * 2
    await broker.commit()
    await committing
    assert coordinator.asked == ["Begin", "Commit"]
    assert [_count(broker, name, c.PublishCommand) for name in ("one", "two")] == [1, 0]


def _code(error: object) -> ErrorCode | None:
    return error.code if isinstance(error, Rejected) else None


async def test_work_that_is_not_enlisted_yet_when_the_commit_begins_is_refused(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session
) -> None:
    transaction = session.distributed_transaction()
    await transaction.publish("a", b"x")
    coordinator.answers.clear()
    late = asyncio.ensure_future(transaction.publish("c", b"y"))
    await eventually(lambda: coordinator.asked == ["Begin", "Enlist"])
    broker.is_holding = True
    committing = asyncio.ensure_future(transaction.commit())
    await eventually(lambda: _count(broker, "one", c.EndCommand) == 1)
    coordinator.answers.set()
    with pytest.raises(Rejected) as raised:
        await late
    assert raised.value.code is ErrorCode.TRANSACTION_FINISHED
    await broker.commit()
    await committing
    assert _count(broker, "two", c.StartCommand) == 0


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_branch_that_begins_while_it_is_being_ended_is_ended_too(
    broker: FakeBroker, session: Session, is_commit: bool
) -> None:
    """The coordinator can roll it back then."""
    transaction = session.distributed_transaction()
    await transaction.publish("a", b"x")
    world = broker.worlds["two"]
    world.loses_begins = broker.is_holding = True
    late = asyncio.ensure_future(transaction.publish("c", b"y"))
    await eventually(lambda: any(isinstance(entry.command, c.BeginCommand) for entry in world.log))
    ending = asyncio.ensure_future(transaction.commit() if is_commit else transaction.rollback())
    await eventually(lambda: _count(broker, "one", c.EndCommand) == 1)
    world.loses_begins = False
    await broker.commit()
    with pytest.raises(Rejected) as raised:
        await late
    assert raised.value.code is ErrorCode.TRANSACTION_FINISHED
    await ending
    kinds = (c.StartCommand, c.EndCommand, c.PublishCommand)
    assert [_count(broker, "two", kind) for kind in kinds] == [1, 1, 0]


KINDS = [Session.transaction, Session.distributed_transaction]


async def _work(transaction: Any) -> None:
    """In both sets."""
    async with transaction:
        await transaction.publish("a", b"x")
        await transaction.publish("c", b"y")


@pytest.mark.parametrize(
    ("outcome", "state", "heuristic"),
    [
        (OutcomeState.COMMITTED, TransactionState.COMMITTED, XaStatus.OK),
        (OutcomeState.HEURISTICALLY_COMMITTED, TransactionState.COMMITTED, XaStatus.HEURCOM),
        (OutcomeState.ROLLED_BACK, TransactionState.ROLLED_BACK, XaStatus.OK),
        (OutcomeState.HEURISTICALLY_ROLLED_BACK, TransactionState.ROLLED_BACK, XaStatus.HEURRB),
        (OutcomeState.PREPARED, TransactionState.IN_DOUBT, XaStatus.OK),
        (OutcomeState.UNKNOWN, TransactionState.IN_DOUBT, XaStatus.OK),
        (OutcomeState.EXPIRED, TransactionState.IN_DOUBT, XaStatus.OK),
        (99, TransactionState.IN_DOUBT, XaStatus.OK),
    ],
)
@pytest.mark.usefixtures("impatient")
async def test_of_one_in_a_single_set_that_set_is_asked_for_the_outcome(
    broker: FakeBroker,
    coordinator: FakeCoordinator,
    client: Client,
    session: Session,
    outcome: OutcomeState,
    state: TransactionState,
    heuristic: XaStatus,
) -> None:
    """P6: it is committed in one phase, and the log has nothing of it."""
    broker.outcome = int(outcome)
    coordinator.silent = "Commit"
    transaction = session.distributed_transaction()
    await transaction.publish("a", b"x")
    ended = (await asyncio.gather(transaction.commit(), return_exceptions=True))[0]
    assert (transaction.state, transaction.heuristic) == (state, heuristic)
    match state:
        case TransactionState.COMMITTED:
            assert ended is None
        case TransactionState.ROLLED_BACK:
            assert _code(ended) is ErrorCode.ROLLED_BACK
        case _:
            assert isinstance(ended, InDoubt)
            begun = _begun(broker, "one")
            named = str(ended.details["transaction_id"])
            assert named == transaction_id(SetName("one"), begun)
            told = outcome if outcome in list(OutcomeState) else OutcomeState.OF_LATER_VERSION
            assert (await client.get_outcome(named, fence=True)).state is told


def _begun(broker: FakeBroker, set_name: str) -> TransactionKey:
    """Of the last that was begun there."""
    log = broker.worlds[set_name].log
    at = max(index for index, entry in enumerate(log, 1) if isinstance(entry.command, c.BeginCommand))
    return LogIndex(at), log[at - 1].epoch


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.usefixtures("impatient")
async def test_what_no_coordinator_enlists_did_not_happen(
    coordinator: FakeCoordinator, session: Session, make: Any, is_old: bool
) -> None:
    coordinator.is_old = is_old
    coordinator.silent = "Enlist" if is_old else "Begin"
    transaction = make(session)
    with pytest.raises(Rejected, match="was not enlisted") as raised:
        await _work(transaction)
    assert raised.value.code is ErrorCode.UNAVAILABLE
    assert transaction.state is TransactionState.ROLLED_BACK


@pytest.mark.parametrize("make", KINDS)
async def test_a_begin_whose_answer_is_lost_with_the_brokers_is_rolled_back(
    broker: FakeBroker, session: Session, make: Any
) -> None:
    await session.publish("a", b"warm")
    world = broker.worlds["one"]
    world.loses_begins = broker.is_holding = True
    transaction = make(session)
    working = asyncio.ensure_future(_work(transaction))
    await eventually(lambda: any(isinstance(entry.command, c.BeginCommand) for entry in world.log))
    world.loses_begins = broker.is_holding = False
    world.restart()
    broker.hang_up()
    with pytest.raises(Rejected) as raised:
        await working
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert transaction.state is TransactionState.ROLLED_BACK


async def test_who_is_cancelled_twice_leaves_no_branch_open(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session
) -> None:
    for queue in ("a", "c"):
        await session.publish(queue, b"warm")
    transaction = session.distributed_transaction()

    async def work() -> None:
        async with transaction:
            await transaction.publish("a", b"x")
            await transaction.publish("c", b"y")
            await asyncio.sleep(60)

    working = asyncio.ensure_future(work())
    await eventually(lambda: _count(broker, "two", c.StartCommand) == 1)
    broker.is_holding = True
    for _ in range(2):
        working.cancel()
        await asyncio.sleep(0.02)
    assert working.cancelled()
    await broker.commit()
    await eventually(lambda: coordinator.asked[-1] == "Rollback")
    assert [_count(broker, name, c.EndCommand) for name in ("one", "two")] == [1, 1]
    assert transaction.state is TransactionState.ROLLED_BACK


async def test_a_set_without_a_primary_does_not_hold_up_the_others_rollback(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session
) -> None:
    transaction = session.distributed_transaction()
    await transaction.publish("a", b"x")
    await transaction.publish("c", b"y")
    await eventually(lambda: _count(broker, "two", c.StartCommand) == 1)
    broker.is_holding = True
    rolling_back = asyncio.ensure_future(transaction.rollback())
    try:
        await eventually(lambda: [_count(broker, name, c.EndCommand) for name in ("one", "two")] == [1, 1], 5)
        await eventually(lambda: coordinator.asked[-1] == "Rollback", 5)
    finally:
        await broker.commit()
        await rolling_back


async def test_what_could_not_be_accepted_goes_back_though_its_set_answers_late(
    broker: FakeBroker, coordinator: FakeCoordinator, session: Session, message: Message
) -> None:
    broker.refused_accepts["a"] = ErrorCode.ROLLBACK_ONLY
    transaction = session.distributed_transaction()
    broker.is_holding = True
    await transaction.accept(message)
    await transaction.rollback()
    assert coordinator.asked[-1] == "Rollback"
    await broker.commit()
    await eventually(
        lambda: any(
            isinstance(one, c.SettleCommand) and one.disposition == c.Disposition.RELEASE
            for one in broker.worlds["one"].executed()
        ),
        5,
    )


class Cursor:
    def __init__(self, statusmessage: str) -> None:
        self.statusmessage = statusmessage


class Connection:
    """To PostgreSQL, which answers a PREPARE TRANSACTION like that."""

    def __init__(self, status: str) -> None:
        self._status = status
        self.rolled_back = 0

    async def execute(self, query: bytes, /) -> object:
        assert query.startswith(b"prepare transaction")
        return Cursor(self._status)

    async def rollback(self) -> None:
        self.rolled_back += 1


class AutocommitConnection(Connection):
    autocommit = True


async def test_a_connection_in_autocommit_mode_is_not_enlisted(
    coordinator: FakeCoordinator, session: Session
) -> None:
    """What it does would stay, whatever becomes of the rest."""
    tx = session.distributed_transaction()
    connection = AutocommitConnection("PREPARE TRANSACTION")
    with pytest.raises(Rejected, match="autocommit") as raised:
        await tx.enlist_postgres(connection, "grpc://127.0.0.1:1/rows")
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT
    assert (connection.rolled_back, coordinator.asked) == (0, [])


async def test_a_connection_is_enlisted_once(session: Session) -> None:
    """The second time would undo what it has done since the first."""
    tx = session.distributed_transaction()
    connection = Connection("PREPARE TRANSACTION")
    await tx.enlist_postgres(connection, "grpc://127.0.0.1:1/rows")
    with pytest.raises(Rejected, match="already"):
        await tx.enlist_postgres(connection, "grpc://127.0.0.1:1/rows")
    assert connection.rolled_back == 1


async def test_what_a_connection_does_beside_a_transaction_that_has_ended_is_left_alone(
    session: Session,
) -> None:
    tx = session.distributed_transaction()
    await tx.rollback()
    connection = Connection("PREPARE TRANSACTION")
    with pytest.raises(Rejected) as raised:
        await tx.enlist_postgres(connection, "grpc://127.0.0.1:1/rows")
    assert raised.value.code is ErrorCode.TRANSACTION_FINISHED
    assert connection.rolled_back == 0


async def test_what_postgres_has_prepared_is_committed(
    coordinator: FakeCoordinator, session: Session
) -> None:
    async with session.distributed_transaction() as tx:
        await tx.enlist_postgres(Connection("PREPARE TRANSACTION"), "grpc://127.0.0.1:1/rows")
    assert tx.state is TransactionState.COMMITTED
    assert coordinator.asked == ["Begin", "Close", "Commit"]


async def test_what_postgres_has_rolled_back_instead_is_rolled_back_everywhere(
    coordinator: FakeCoordinator, session: Session
) -> None:
    tx = session.distributed_transaction()
    connections = [Connection("PREPARE TRANSACTION"), Connection("ROLLBACK")]
    for connection in connections:
        await tx.enlist_postgres(connection, "grpc://127.0.0.1:1/rows")
    with pytest.raises(Rejected, match="answered ROLLBACK to PREPARE TRANSACTION") as raised:
        await tx.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert tx.state is TransactionState.ROLLED_BACK
    assert coordinator.asked == ["Begin", "Enlist", "Close", "Rollback"]
    # Once when they were enlisted.
    assert [connection.rolled_back for connection in connections] == [2, 2]


async def test_what_was_accepted_is_not_released_from_the_hands_of_the_next_session(
    broker: FakeBroker, session: Session, message: Message
) -> None:
    world = broker.worlds["one"]
    tx = session.distributed_transaction()
    await tx.publish("b", b"1")
    broker.is_holding = True
    await tx.accept(message)
    await eventually(lambda: isinstance(world.log[-1].command, c.SettleCommand))
    world.ended.update(primary.session for _, primary, _ in broker.streams)
    broker.is_holding = False
    broker.hang_up()
    port = next(iter(session._sets.values()))[0]
    await eventually(lambda: port.lost_sessions == 1 and port.is_attached)
    await broker.deliver("one", 1, "a", message.position)
    again = await anext(message.consumer)
    await tx.rollback()
    await again.accept()
    settled = [one for one in world.executed() if isinstance(one, c.SettleCommand)]
    assert [one.disposition for one in settled] == [c.Disposition.ACCEPT] * 2


@pytest.mark.parametrize(("wide_ms", "limits_of_first"), [(300_000, [300_000]), (0, [])])
async def test_who_looks_after_the_time_of_a_transaction_says_how_long_it_may_be_over_several_sets(
    broker: FakeBroker,
    coordinator: FakeCoordinator,
    session: Session,
    wide_ms: int,
    limits_of_first: list[int],
) -> None:
    async with session.transaction(wide_timeout_ms=wide_ms) as transaction:
        await transaction.publish("a", b"x")
        await transaction.publish("c", b"y")
    assert coordinator.timeouts_ms == [wide_ms]
    first, second = (broker.worlds[name].executed() for name in ("one", "two"))
    limits = [one.timeout_ms for one in first if isinstance(one, c.SetTimeoutCommand)]
    assert limits == [*limits_of_first, 1000 * ENDED_SECONDS]
    assert [one.timeout_ms for one in first if isinstance(one, c.BeginCommand)] == [0]
    assert [one.timeout_ms for one in second if isinstance(one, c.BeginCommand)] == [wide_ms]
