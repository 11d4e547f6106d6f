"""Commits over several sets whose coordinators are all away for longer than the client tries, and a set that is not there: what
the client hears, and what becomes of the transaction when a coordinator is back.
"""

import signal
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from lockstep.client import coordinators as client_coordinators
from lockstep.client.client import Client, connect
from lockstep.client.outcome import OutcomeState
from lockstep.client.session import Session
from lockstep.client.transaction import Transaction
from lockstep.client.transaction_state import TransactionState
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.wire.v1 import coordinator_pb2 as pb
from services.coordinator.core.steps import Step
from tests.integration.cluster import Deployment, deployed
from tests.integration.coordination import CoordinatorClient, until
from tests.integration.coordinator_processes import Coordinators

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETS = {"east": ["B1"], "west": ["B1"]}
FINAL = {OutcomeState.COMMITTED, OutcomeState.ROLLED_BACK}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Deployment]:
    async with deployed(tmp_path_factory.mktemp("cluster"), sets=SETS, brokers=1) as deployment:
        yield deployment


@pytest_asyncio.fixture(loop_scope="module")
async def coordinators(deployment: Deployment) -> AsyncGenerator[Coordinators]:
    """None of them runs yet."""
    coordinators = Coordinators(deployment)
    yield coordinators
    await coordinators.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def client(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Client]:
    """Coordinators are not waited for for long."""
    monkeypatch.setattr(client_coordinators.Coordinators.call, "__defaults__", (2.0,))
    monkeypatch.setattr(Client._outcome, "__defaults__", (2.0,))
    async with await connect(deployment.addresses) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def session(client: Client) -> AsyncGenerator[Session]:
    async with client.session() as session:
        for name in SETS:
            await session.declare_queue(name, set_name=name)
        yield session


async def in_both(session: Session, body: bytes) -> Transaction:
    """A transaction over both sets, which nothing but its commit is missing to."""
    transaction = session.transaction()
    for name in SETS:
        await transaction.publish(name, body)
    return transaction


async def begun(
    coordinators: Coordinators, session: Session, body: bytes, exit_at: Step | None = None
) -> tuple[CoordinatorClient, Transaction]:
    """(a coordinator that goes away at that step of a commit, a transaction `in_both`)."""
    coordinator = await coordinators.start(exit_at=exit_at.value if exit_at is not None else "")
    return coordinator, await in_both(session, body)


async def seen(session: Session, body: bytes) -> list[bool]:
    """Whether each set's queue has the message."""
    return [body in [message.body async for message in session.browse(name)] for name in SETS]


async def in_log(coordinator: CoordinatorClient) -> int:
    """Transactions that the decision log has."""
    listed = await coordinator.call("List", pb.ListDistributedRequest(), pb.ListDistributedResponse())
    return len(listed.transactions)


async def back_and_done(coordinators: Coordinators) -> None:
    """A coordinator is there again, and what the decision log has is over."""
    back = await coordinators.start()
    await until("nothing is left in the log", lambda: in_log(back), lambda found: not found)


async def test_a_commit_whose_coordinators_are_lost_undecided_is_in_doubt_until_one_is_back(
    client: Client, session: Session, coordinators: Coordinators
) -> None:
    """P6: it is not rejected, for its branches are prepared, and whoever comes next may decide either way."""
    doomed, transaction = await begun(coordinators, session, b"undecided", Step.VOTES_COMPLETE)
    with pytest.raises(InDoubt) as raised:
        await transaction.commit()
    assert await coordinators.end_of(doomed) == -signal.SIGKILL, "the step was reached"
    assert transaction.state is TransactionState.IN_DOUBT
    name = transaction.id
    assert name is not None and raised.value.details["transaction_id"] == name
    branches = raised.value.details["branches"]
    assert isinstance(branches, list) and [branch.split("/")[0] for branch in branches] == list(SETS)
    assert await seen(session, b"undecided") == [False, False]
    await coordinators.start()

    async def outcome() -> OutcomeState | None:
        try:
            return (await client.get_outcome(name, fence=True)).state
        except LockstepError:
            return None  # Brokers have not heard of that coordinator yet.

    ended = await until("its end", outcome, FINAL.__contains__)
    is_committed = ended is OutcomeState.COMMITTED
    await until("both agree", lambda: seen(session, b"undecided"), lambda found: found == [is_committed] * 2)
    for branch in branches:
        assert (await client.get_outcome(branch)).state is ended


async def test_a_commit_that_was_decided_before_its_coordinators_were_lost_is_done(
    client: Client, session: Session, coordinators: Coordinators
) -> None:
    """Its branches find the decision by themselves, and say so to whoever asks for it."""
    doomed, transaction = await begun(coordinators, session, b"decided", Step.DECISION_WRITTEN)
    await transaction.commit()
    assert await coordinators.end_of(doomed) == -signal.SIGKILL, "the step was reached"
    assert transaction.state is TransactionState.COMMITTED and transaction.was_in_doubt
    assert await seen(session, b"decided") == [True, True]
    await back_and_done(coordinators)
    assert await seen(session, b"decided") == [True, True]


async def test_a_commit_that_reached_no_coordinator_is_rolled_back_for_good(
    client: Client, session: Session, coordinators: Coordinators
) -> None:
    lost, transaction = await begun(coordinators, session, b"unheard")
    await coordinators.child(lost).kill()
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    await back_and_done(coordinators)
    assert await seen(session, b"unheard") == [False, False]


async def test_a_set_that_is_not_there_is_refused_at_once_and_leaves_nothing_in_the_log(
    client: Client, session: Session, coordinators: Coordinators
) -> None:
    coordinator = await coordinators.start()
    transaction = session.distributed_transaction()
    await transaction.publish("east", b"mistyped")
    with pytest.raises(Rejected) as raised:
        await transaction.enlist("set:esat")
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT and "'esat'" in raised.value.message
    assert await in_log(coordinator) == 0
    await transaction.rollback()
    assert await in_log(coordinator) == 0
    assert await seen(session, b"mistyped") == [False, False]
