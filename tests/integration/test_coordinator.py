"""Distributed transactions over real processes: two coordinators, participants in files and PostgreSQL; killed at every step."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator
from itertools import count

import pytest
import pytest_asyncio

from lockstep.core.branch_names import GlobalId, branch_xid, generation_tag
from lockstep.core.decision_log import DecisionKeys
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.postgres_gid import gid_of
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_process import EtcdProcess
from lockstep.wire.v1 import coordinator_pb2 as pb
from services.coordinator.core.steps import STEPS, Step
from tests.integration.coordination import (
    COMMITTED,
    ROLLED_BACK,
    ClientTransaction,
    CoordinationRig,
    CoordinatorClient,
    until,
)
from tests.integration.file_participant import held
from tests.integration.postgres_process import PostgresProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")
_rows = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(
    etcd: EtcdProcess, postgres: PostgresProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[CoordinationRig]:
    async with EtcdClient(etcd.endpoint) as client:
        directory = tmp_path_factory.mktemp("coordination")
        rig = CoordinationRig(directory, client, etcd.endpoint, "coordination", postgres.dsn)
        try:
            async with await rig.connect() as connection:
                await connection.execute("create table tokens (id int primary key)")
            await rig.start_participants()
            yield rig
        finally:
            await rig.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator(rig: CoordinationRig) -> CoordinatorClient:
    """The one that nobody kills."""
    return await rig.start_coordinator()


async def test_rows_and_branches_commit_together(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    row = next(_rows)
    names = [rig.participant("one"), rig.participant("database")]
    transaction = await ClientTransaction.begin(coordinator, names)
    connection = await rig.insert(row, transaction.xids[1])
    await transaction.close(coordinator)
    await rig.prepare_row(connection, transaction.xids[1])
    assert row not in await rig.rows()
    response = await transaction.commit(coordinator)
    assert (response.state, list(response.hazards), list(response.pending)) == (COMMITTED, [], [])
    assert rig.ended("one", transaction.xids[0]) == "committed"
    assert row in await rig.rows()
    await rig.settled()
    assert await coordinator.outcome(transaction, fence=True) == COMMITTED


async def test_a_refusal_rolls_all_back(rig: CoordinationRig, coordinator: CoordinatorClient) -> None:
    row = next(_rows)
    names = [rig.participant("one"), rig.participant("two", "refuses"), rig.participant("database")]
    transaction = await ClientTransaction.begin(coordinator, names)
    connection = await rig.insert(row, transaction.xids[2])
    await transaction.close(coordinator)
    await rig.prepare_row(connection, transaction.xids[2])
    assert (await transaction.commit(coordinator)).state == ROLLED_BACK
    assert rig.ended("one", transaction.xids[0]) == "rolled-back"
    assert row not in await rig.rows()
    await rig.settled()


async def test_a_client_rolls_back_what_it_has_prepared(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    row = next(_rows)
    transaction = await ClientTransaction.begin(
        coordinator, [rig.participant("one"), rig.participant("database")]
    )
    connection = await rig.insert(row, transaction.xids[1])
    await transaction.close(coordinator)
    await rig.prepare_row(connection, transaction.xids[1])
    assert (await transaction.rollback(coordinator)).state == ROLLED_BACK
    assert row not in await rig.rows()
    await rig.settled()
    assert (await transaction.commit(coordinator)).state == ROLLED_BACK


async def test_read_only_participants_are_not_told_the_end(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    names = [rig.participant("one", "readonly"), rig.participant("two")]
    transaction = await ClientTransaction.begin(coordinator, names)
    assert (await transaction.commit(coordinator)).state == COMMITTED
    assert rig.ended("one", transaction.xids[0]) == ""
    assert rig.ended("two", transaction.xids[1]) == "committed"


async def test_a_single_participant_commits_without_the_log(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    transaction = await ClientTransaction.begin(coordinator, [rig.participant("one")])
    assert (await transaction.commit(coordinator)).state == COMMITTED
    assert rig.ended("one", transaction.xids[0]) == "committed"
    assert await rig.etcd.get(DecisionKeys(rig.cluster).outcome(GlobalId(transaction.transaction_id))) is None


async def test_two_coordinators_asked_at_once_agree(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    other = await rig.start_coordinator()
    for _ in range(5):
        transaction = await ClientTransaction.begin(
            coordinator, [rig.participant("one"), rig.participant("two")]
        )
        answers = await asyncio.gather(transaction.commit(coordinator), transaction.commit(other))
        assert [answer.state for answer in answers] == [COMMITTED, COMMITTED]
        assert rig.ended("one", transaction.xids[0]) == rig.ended("two", transaction.xids[1]) == "committed"
    await rig.settled()


async def test_many_transactions_are_prepared_at_once(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    """Each answer of a slow participant takes 0.3 s, a transaction two of them: one after the other they would take 18 s."""
    names = [rig.participant("one", "slow"), rig.participant("two")]
    begun = await asyncio.gather(*(ClientTransaction.begin(coordinator, names) for _ in range(30)))
    started = time.monotonic()
    answers = await asyncio.gather(*(one.commit(coordinator) for one in begun))
    assert {answer.state for answer in answers} == {COMMITTED}
    assert time.monotonic() - started < 16


EXPECTED = {
    Step.CLOSE_ASKED: ROLLED_BACK,
    Step.CLOSE_WRITTEN: ROLLED_BACK,
    Step.COMMIT_ASKED: ROLLED_BACK,
    Step.PARTICIPANTS_WRITTEN: ROLLED_BACK,
    Step.VOTE_RECEIVED: ROLLED_BACK,
    Step.VOTES_COMPLETE: ROLLED_BACK,
    Step.DECISION_WRITTEN: COMMITTED,
    Step.BRANCH_COMPLETED: COMMITTED,
    Step.ALL_COMPLETED: COMMITTED,
    Step.LOG_DELETED: COMMITTED,
}
"""What the other coordinator makes of it, nobody asking."""


async def test_every_step_has_a_kill_point() -> None:
    assert {step.value for step in EXPECTED} | {Step.ONE_PHASE_COMPLETED.value} == set(STEPS)


@pytest.mark.parametrize("step", [pytest.param(step, id=step.value) for step in EXPECTED])
async def test_another_coordinator_finishes_what_was_killed_at(
    rig: CoordinationRig, coordinator: CoordinatorClient, step: Step
) -> None:
    row = next(_rows)
    doomed = await rig.start_coordinator(exit_at=step.value)
    names = [rig.participant("one"), rig.participant("two", "slow"), rig.participant("database")]
    transaction = await ClientTransaction.begin(doomed, names)
    connection = await rig.insert(row, transaction.xids[2])
    heard: int | None = None
    try:
        await transaction.close(doomed)
        await rig.prepare_row(connection, transaction.xids[2])
        heard = (await transaction.commit(doomed)).state
    except InDoubt:
        await connection.close()
    killed = rig.child(doomed.address)
    await asyncio.wait_for(killed.exited(), 30)
    assert killed.status == -signal.SIGKILL, "the step was reached"
    started = time.monotonic()
    if step is Step.CLOSE_ASKED:
        # Nobody but the client knows of it.
        assert (await transaction.rollback(coordinator)).state == ROLLED_BACK
    await rig.settled()
    assert time.monotonic() - started < 20
    expected = EXPECTED[step]
    assert await coordinator.outcome(transaction, fence=False) == expected
    assert heard == (COMMITTED if step is Step.LOG_DELETED else None)
    ends = {rig.ended("one", transaction.xids[0]), rig.ended("two", transaction.xids[1])}
    assert ends == {"committed" if expected == COMMITTED else "rolled-back"}
    assert (row in await rig.rows()) == (expected == COMMITTED)


async def test_a_one_phase_commit_whose_answer_was_lost_is_told_by_its_participant(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    doomed = await rig.start_coordinator(exit_at=Step.ONE_PHASE_COMPLETED.value)
    transaction = await ClientTransaction.begin(doomed, [rig.participant("one")])
    with pytest.raises(InDoubt):
        await transaction.commit(doomed)
    await asyncio.wait_for(rig.child(doomed.address).exited(), 30)
    assert (await transaction.commit(coordinator)).state == COMMITTED


async def test_a_database_that_is_down_hears_the_decision_when_it_is_back(
    rig: CoordinationRig, coordinator: CoordinatorClient, postgres: PostgresProcess
) -> None:
    row = next(_rows)
    names = [rig.participant("one", "held"), rig.participant("database")]
    transaction = await ClientTransaction.begin(coordinator, names)
    connection = await rig.insert(row, transaction.xids[1])
    await transaction.close(coordinator)
    await rig.prepare_row(connection, transaction.xids[1])
    with held(rig.files["one"]):
        commit = asyncio.ensure_future(transaction.commit(coordinator))
        await until(
            "the database has voted",
            lambda: transaction.listed(coordinator),
            lambda seen: bool(seen) and seen[0].branches[1].vote == "ok",
        )
        await postgres.crash()
    answer = await commit
    assert answer.state == COMMITTED
    assert list(answer.pending) == [names[1]]
    await postgres.start()
    await rig.settled()
    assert row in await rig.rows()


async def test_what_is_prepared_too_late_is_rolled_back(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    row = next(_rows)
    transaction = await ClientTransaction.begin(
        coordinator, [rig.participant("one"), rig.participant("database")]
    )
    connection = await rig.insert(row, transaction.xids[1])
    await transaction.close(coordinator)
    assert await coordinator.outcome(transaction, fence=True) == ROLLED_BACK
    await until("it is out of the log", rig.logged, lambda keys: not keys)
    await rig.prepare_row(connection, transaction.xids[1])
    await until("the orphan is gone", rig.prepared_gids, lambda gids: not gids)
    assert row not in await rig.rows()


async def test_nothing_is_presumed_in_another_history_of_the_cluster(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    """History 26: what was begun before the generation changed may have been committed, whatever the log lacks."""
    ours = await ClientTransaction.begin(coordinator, [rig.participant("database")])
    foreign = branch_xid(GlobalId(ours.transaction_id), 0, generation_tag("00000000"))
    rows = (next(_rows), next(_rows))
    for row, xid in zip(rows, (foreign, ours.xids[0]), strict=True):
        await rig.prepare_row(await rig.insert(row, xid), xid)
    # The one of this history goes, which shows that both were looked at.
    left = await until("ours is gone", rig.prepared_gids, lambda gids: len(gids) < 2)
    await asyncio.sleep(1.2)
    assert await rig.prepared_gids() == left == [gid_of(foreign)]
    async with await rig.connect() as connection:
        await connection.execute(f"rollback prepared '{gid_of(foreign)}'")


async def test_a_time_out_rolls_back_what_was_never_committed(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    transaction = await ClientTransaction.begin(
        coordinator, [rig.participant("one"), rig.participant("two")], timeout_ms=3000
    )

    async def ends() -> list[str]:
        return [rig.ended("one", transaction.xids[0]), rig.ended("two", transaction.xids[1])]

    await until("both are told", ends, lambda seen: seen == ["rolled-back", "rolled-back"])
    assert (await transaction.commit(coordinator)).state == ROLLED_BACK


async def test_a_listing_shows_what_hangs_and_on_whom(
    rig: CoordinationRig, coordinator: CoordinatorClient
) -> None:
    names = [rig.participant("one", "held"), rig.participant("two")]
    transaction = await ClientTransaction.begin(coordinator, names)
    with held(rig.files["one"]):
        commit = asyncio.ensure_future(transaction.commit(coordinator))
        shown = await until(
            "one has voted, and the log has it",
            lambda: transaction.listed(coordinator),
            lambda seen: bool(seen) and seen[0].branches[1].vote == "ok" and bool(seen[0].owner),
        )
    assert (shown[0].phase, shown[0].state) == ("preparing", pb.DISTRIBUTED_STATE_UNDECIDED)
    assert [branch.participant for branch in shown[0].branches] == names
    assert shown[0].is_owner_alive and not shown[0].is_closed
    assert (await commit).state == COMMITTED


@pytest.mark.parametrize(
    ("method", "request_message", "identifiers"),
    [
        (
            "Enlist",
            pb.EnlistParticipantRequest(transaction_id=bytes(16), generation="a" * 8, participant="nobody"),
            {"participant": "nobody"},
        ),
        (
            "Enlist",
            pb.EnlistParticipantRequest(
                transaction_id=bytes(16), generation="a" * 8, participant="grpc://x/y"
            ),
            {"participant": "grpc://x/y"},
        ),
        (
            "Enlist",
            pb.EnlistParticipantRequest(
                transaction_id=bytes(15), generation="a" * 8, participant="grpc://x:1/y"
            ),
            {"transaction": "00" * 15},
        ),
        (
            "Enlist",
            pb.EnlistParticipantRequest(transaction_id=bytes(16), generation="a", participant="grpc://x:1/y"),
            {"generation": "a"},
        ),
        ("Begin", pb.BeginDistributedRequest(timeout_ms=100_000_000), {}),
        (
            "Close",
            pb.CloseDistributedRequest(transaction_id=bytes(16), generation="a" * 8),
            {"transaction": "00" * 16},
        ),
        (
            "Commit",
            pb.CommitDistributedRequest(
                transaction_id=bytes(16), generation="a" * 8, participants=["grpc://x:1/" + "y" * 300] * 2
            ),
            {"transaction": "00" * 16},
        ),
        (
            "Rollback",
            pb.RollbackDistributedRequest(
                transaction_id=bytes(16), generation="a" * 8, participants=["set:a/b"]
            ),
            {"participant": "set:a/b"},
        ),
        ("GetOutcome", pb.GetDistributedOutcomeRequest(transaction_id=b"x"), {"transaction": "78"}),
        ("Forget", pb.ForgetDistributedRequest(transaction_id=bytes(64)), {"transaction": "00" * 40}),
    ],
)
async def test_bad_input_is_refused_by_name(
    coordinator: CoordinatorClient, method: str, request_message: object, identifiers: dict[str, str]
) -> None:
    with pytest.raises(Rejected) as caught:
        await coordinator.call(method, request_message, pb.CommitDistributedResponse())  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert caught.value.details.items() >= identifiers.items()


async def test_too_many_participants_and_what_nobody_keeps_are_refused_by_name(
    coordinator: CoordinatorClient,
) -> None:
    transaction = ClientTransaction(bytes(16), "a" * 8, ["grpc://x:1/y"] * 65)
    with pytest.raises(Rejected) as caught:
        await transaction.commit(coordinator)
    assert caught.value.code is ErrorCode.TOO_LARGE
    assert caught.value.details["transaction"] == "00" * 16
    request = pb.ForgetDistributedRequest(transaction_id=bytes(16))
    with pytest.raises(Rejected) as caught:
        await coordinator.call("Forget", request, pb.ForgetDistributedResponse())
    assert (caught.value.code, caught.value.details) == (ErrorCode.NOT_FOUND, {"transaction": "00" * 16})


async def test_an_unknown_transaction_is_not_known_rather_than_rolled_back(
    coordinator: CoordinatorClient,
) -> None:
    """History 26."""
    request = pb.GetDistributedOutcomeRequest(transaction_id=bytes(16), fence=True)
    response = await coordinator.call("GetOutcome", request, pb.GetDistributedOutcomeResponse())
    assert response.state == pb.DISTRIBUTED_STATE_NOT_KNOWN
