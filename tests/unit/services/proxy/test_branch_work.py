"""Branches that clients declare, at a real primary: which of them the proxy ends, and which belong to somebody else."""

import asyncio
from typing import cast

import pytest

from lockstep.client.command_batches import CommandBatches
from lockstep.client.session import Session
from lockstep.client.set_session import SetSession
from lockstep.client.transaction_state import TransactionState
from lockstep.core.commands import (
    CommitBranchCommand,
    EndCommand,
    OutgoingMessage,
    PrepareBranchCommand,
    PublishCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    StartCommand,
)
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.ids import QueuePosition
from lockstep.core.records import Dequeue
from lockstep.core.requests import ClientMessage
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from services.proxy.amqp_transaction import AmqpTransaction
from services.proxy.amqp_transactions import AmqpTransactions
from services.proxy.nodes import Target
from services.proxy.settings import ProxyLimits
from tests.unit.services.primary.primary_rig import Rig, RigClient
from tests.unit.services.proxy.branch_rig import Worker

XID = Xid(7, b"global", b"branch")
NAME = XID.encode()
TARGET = Target("", "q", cast(SetSession, None), cast(CommandBatches, None))
MESSAGES = (OutgoingMessage(b"", b"ours"),)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.client("administrator").declare("q")
    return rig


def state_of(rig: Rig) -> str:
    """Of the branch, which is open or prepared; "none" else."""
    branch = rig.state.transactions.find_branch(NAME)
    return branch.branch_state.name if branch is not None else "none"


def somebody(rig: Rig) -> RigClient:
    client = rig.client("somebody")
    client.ok(SelectDtxCommand(0))
    return client


def prepare_elsewhere(rig: Rig) -> RigClient:
    """Another proxy's client prepares the branch, with one message; its coordinator has heard the vote."""
    client = somebody(rig)
    client.ok(StartCommand(0, NAME))
    branch = rig.state.transactions.find_branch(NAME)
    assert branch is not None
    client.ok(PublishCommand(0, "", "q", (OutgoingMessage(b"", b"theirs"),), branch.key, 1))
    client.ok(EndCommand(0, NAME, 1))
    assert client.ok(PrepareBranchCommand(0, NAME)) == XaStatus.OK
    return client


def declare(worker: Worker, timeout_seconds: float = 0) -> AmqpTransaction:
    return AmqpTransaction(b"name", worker.work(XID), timeout_seconds)


async def operate(transaction: AmqpTransaction) -> LockstepError | None:
    """Publishes in it; why not."""
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    transaction.publish(TARGET, MESSAGES, done.set_result)
    error = await done
    assert error is None or isinstance(error, LockstepError)
    return error


async def discharge(transaction: AmqpTransaction) -> ErrorCode:
    try:
        await transaction.commit()
    except Rejected as rejected:
        return rejected.code
    return ErrorCode.NONE


@pytest.mark.parametrize("end", ["discharge", "link loss", "time-out"])
async def test_a_declare_of_a_used_global_id_leaves_the_branch_to_its_coordinator(rig: Rig, end: str) -> None:
    coordinator = prepare_elsewhere(rig)
    transaction = declare(Worker(rig), 0.01 if end == "time-out" else 0)
    refused = await operate(transaction)
    assert refused is not None
    assert refused.code is ErrorCode.NOT_ALLOWED
    match end:
        case "discharge":
            assert await discharge(transaction) is ErrorCode.ROLLED_BACK
        case "link loss":
            await transaction.rollback()
        case _:
            while not transaction.is_late:
                await asyncio.sleep(0.005)
            assert await discharge(transaction) is ErrorCode.ROLLED_BACK
    assert coordinator.ok(CommitBranchCommand(0, NAME)) == XaStatus.OK
    assert rig.bodies("q") == [b"theirs"]


async def test_a_declare_of_a_used_global_id_leaves_the_work_of_another_client_of_the_worker(
    rig: Rig,
) -> None:
    worker = Worker(rig)
    first, second = declare(worker), declare(worker)
    assert await operate(first) is None
    assert await operate(second) is not None
    await second.rollback()
    assert state_of(rig) == "ACTIVE"
    assert await operate(first) is None
    assert await discharge(first) is ErrorCode.NONE
    assert state_of(rig) == "PREPARED"


async def test_a_global_id_that_was_used_is_not_asked_for_again_when_it_is_free(rig: Rig) -> None:
    coordinator = prepare_elsewhere(rig)
    transaction = declare(Worker(rig))
    assert await operate(transaction) is not None
    coordinator.ok(CommitBranchCommand(0, NAME))
    assert await operate(transaction) is not None
    assert state_of(rig) == "none"


async def test_a_start_in_doubt_leaves_a_branch_of_somebody_else_alone(rig: Rig) -> None:
    coordinator = prepare_elsewhere(rig)
    worker = Worker(rig)
    transaction = await lost_at_its_start(worker)
    await transaction.rollback()
    await worker.attached()
    assert state_of(rig) == "PREPARED"
    assert coordinator.ok(CommitBranchCommand(0, NAME)) == XaStatus.OK


async def test_a_start_in_doubt_that_began_the_branch_is_undone_with_its_session(rig: Rig) -> None:
    worker = Worker(rig)
    transaction = await lost_at_its_start(worker)
    assert state_of(rig) == "none"
    assert await discharge(transaction) is ErrorCode.ROLLED_BACK


async def test_a_start_in_doubt_leaves_what_another_client_of_the_worker_begins_then(rig: Rig) -> None:
    worker = Worker(rig)
    first = await lost_at_its_start(worker)
    somebody(rig).ok(RollbackBranchCommand(0, NAME))
    second = declare(worker)
    assert await operate(second) is None
    await first.rollback()
    assert await discharge(second) is ErrorCode.NONE
    assert state_of(rig) == "PREPARED"


async def lost_at_its_start(worker: Worker) -> AmqpTransaction:
    """A transaction whose branch the set has begun or refused, and the answer got lost with the session."""
    await worker.attached()
    transaction = declare(worker)
    worker.session.is_deaf = True
    operating = asyncio.ensure_future(operate(transaction))
    await asyncio.sleep(0.01)
    worker.session.outlast()
    assert isinstance(await operating, InDoubt)
    return transaction


async def test_a_branch_that_timed_out_leaves_the_next_one_of_its_name(rig: Rig) -> None:
    worker = Worker(rig)
    first, second = worker.work(XID, 500), declare(worker)
    await first.publish("q", MESSAGES)
    rig.pass_time(501)
    assert somebody(rig).ok(RollbackBranchCommand(0, NAME)) == XaStatus.RBTIMEOUT
    assert await operate(second) is None
    await first.rollback()
    assert state_of(rig) == "ACTIVE"
    assert await discharge(second) is ErrorCode.NONE


async def test_a_vote_is_not_that_of_the_next_branch_of_its_name(rig: Rig) -> None:
    worker = Worker(rig)
    first, second = worker.work(XID, 500), declare(worker)
    await first.publish("q", MESSAGES)
    rig.pass_time(501)
    somebody(rig).ok(RollbackBranchCommand(0, NAME))
    assert await operate(second) is None
    with pytest.raises(Rejected) as raised:
        await first.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert state_of(rig) == "ACTIVE"


async def test_what_it_began_is_rolled_back_at_once(rig: Rig) -> None:
    transaction = declare(Worker(rig))
    assert await operate(transaction) is None
    await transaction.rollback()
    assert state_of(rig) == "none"
    assert rig.bodies("q") == []


async def test_what_cannot_be_prepared_is_rolled_back_at_once(rig: Rig) -> None:
    work = Worker(rig).work(XID)
    await work.publish("no such queue", MESSAGES)
    with pytest.raises(Rejected, match="RBROLLBACK") as raised:
        await work.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert state_of(rig) == "none"


async def test_who_works_in_the_branch_too_may_have_it_prepared_later(rig: Rig) -> None:
    work = Worker(rig).work(XID)
    await work.publish("q", MESSAGES)
    other = somebody(rig)
    other.ok(StartCommand(0, NAME, True))
    with pytest.raises(Rejected, match="was not prepared") as raised:
        await work.commit()
    assert raised.value.code is ErrorCode.ILLEGAL_STATE
    other.ok(EndCommand(0, NAME, 0))
    assert other.ok(PrepareBranchCommand(0, NAME)) == XaStatus.OK


async def test_a_branch_that_its_coordinator_has_committed_before_the_vote_is_asked_for_is_not_refused(
    rig: Rig,
) -> None:
    """The set hears the end alone: its primary has changed behind that. The coordinator asks for the vote, too, and decides."""
    worker, coordinator = Worker(rig), somebody(rig)
    work = worker.work(XID)
    await work.publish("q", MESSAGES)
    say = worker.session.line.say

    def says(*messages: ClientMessage) -> None:
        for message in messages:
            if isinstance(message, PrepareBranchCommand):
                assert coordinator.ok(PrepareBranchCommand(0, NAME)) == XaStatus.OK
                assert coordinator.ok(CommitBranchCommand(0, NAME)) == XaStatus.OK
            say(message)

    worker.session.line.say = says  # type: ignore[method-assign]
    await work.commit()
    assert work.state is TransactionState.COMMITTED
    assert rig.bodies("q") == [b"ours"]


async def test_a_branch_in_which_nothing_was_done_is_not_prepared(rig: Rig) -> None:
    """No set has it, so its transaction could only abort."""
    worker = Worker(rig)
    assert await discharge(declare(worker)) is ErrorCode.ROLLED_BACK
    await declare(worker).rollback()


@pytest.mark.parametrize(("seconds", "given_ms"), [(300, 300_000), (7_200, 3_600_000)])
async def test_a_branch_has_the_time_of_its_transaction_as_far_as_sets_allow(
    rig: Rig, seconds: float, given_ms: int
) -> None:
    limits = ProxyLimits(transaction_seconds=seconds)
    transaction = AmqpTransactions(cast(Session, Worker(rig)), limits).declare(NAME)
    assert await operate(transaction) is None
    branch = rig.state.transactions.find_branch(NAME)
    assert branch is not None and branch.timeout_ms == given_ms
    await transaction.rollback()


async def test_a_delivery_is_looked_at_when_its_branch_has_begun(rig: Rig) -> None:
    """Its session may have been lost meanwhile."""
    worker = Worker(rig)
    await worker.attached()
    work = worker.work(XID)
    found: list[str] = []

    def check() -> None:
        found.append(state_of(rig))
        raise Rejected(ErrorCode.STALE_DELIVERY, "void")

    with pytest.raises(Rejected):
        await work.accept_deliveries(
            (worker.session, worker.batches), "q", worker.session.core.line.epoch, (QueuePosition(1),), check
        )
    assert found == ["ACTIVE"]
    await worker.attached()
    assert not [record for record in rig.records() if isinstance(record, Dequeue)]
    await work.rollback()
